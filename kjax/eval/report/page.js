"use strict";
// Sorting: headings become buttons. Without this script the page is the same, in the order given.
function sortBy(table, column, numeric, button) {
  const heading = button.parentElement;
  const descending = heading.getAttribute("aria-sort") === "ascending";
  const body = table.tBodies[0];
  const key = (row) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent.trim();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const rows = [...body.rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
    return descending ? -order : order;
  });
  for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.append(...rows.map(([, row]) => row));
}
for (const heading of document.querySelectorAll("th[data-column]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  heading.append(button);
  const numeric = heading.classList.contains("number");
  const column = Number(heading.dataset.column);
  button.addEventListener("click", () => sortBy(heading.closest("table"), column, numeric, button));
}
// The section being read is marked in the contents.
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-20% 0px -75% 0px" });
for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
// Paper cannot be unfolded.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
