"""The report as one HTML page that needs nothing else: no network, no font, no other file."""

import base64
import html
import itertools
import re
from collections.abc import Iterator, Sequence
from importlib import resources

from kjax.eval.report import page_parts as parts
from kjax.eval.report.patch_pictures import pair_png
from kjax.eval.report.phrases import decimal, printable
from kjax.eval.report.render import panel_svg
from kjax.eval.report.theme import style_variables
from kjax.images.page import html_page

_MANY_COLUMNS = 8
"""From here on a table is set closer."""
_FEW_PANELS = 2
"""So many may be larger."""


def to_html(document: parts.Document) -> str:
    """The whole page."""
    script, style = _resource("page.js"), style_variables() + _resource("page.css")
    contents = "".join(
        f'<li><a href="#{section.slug}">{_text(section.title)}</a></li>'
        for section in document.sections
    )
    sections = "\n".join(_section(section) for section in document.sections)
    body = f"""{_header(document)}
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{sections}
</main>"""
    return html_page(
        title=printable(document.title),
        style=style,
        script=script,
        body=body,
        colours="light dark",
    )


def _header(document: parts.Document) -> str:
    versions = "".join(
        f"<li>{_text(name)} <b>{_text(version)}</b></li>"
        for name, version in document.versions.items()
    )
    lines = [
        f"<h1>{_text(document.title)}</h1>",
        f"<p>{_text(document.date)}</p>" if document.date else "",
        f'<pre tabindex="0"><code>{_text(document.command)}</code></pre>'
        if document.command
        else "",
        f'<ul class="versions">{versions}</ul>' if versions else "",
    ]
    return f"<header>{''.join(lines)}</header>"


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return html.escape(printable(text))


def _section(section: parts.Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f'<section id="{section.slug}"><h2>{_text(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: parts.Block) -> str:
    match block:
        case parts.Table():
            return _table(block)
        case parts.Charts():
            return _charts(block)
        case parts.PatchPairs():
            return _patch_pairs(block)
        case parts.Picture():
            image = _image(block.png, block.alt)
            return f'<figure class="picture">{image}{_caption(block.caption)}</figure>'
        case parts.Paragraph():
            text = re.sub("`([^`]*)`", r"<code>\1</code>", _text(block.text))
            return f"<p>{text}</p>"
        case parts.Items():
            return f"<ul>{_items(block.texts)}</ul>"
        case parts.Warnings():
            items = f"<strong>Warnings</strong><ul>{_items(block.texts)}</ul>"
            return f'<div class="warnings" role="note">{items}</div>'
        case parts.Subheading():
            return f"<h3>{_text(block.text)}</h3>"
        case parts.Fold():
            inner = "\n".join(_block(one) for one in block.blocks)
            return f"<details><summary>{_text(block.title)}</summary>\n{inner}\n</details>"


def _items(texts: Sequence[str]) -> str:
    return "".join(f"<li>{_text(text)}</li>" for text in texts)


def _caption(caption: str) -> str:
    return f"<figcaption>{_text(caption)}</figcaption>"


def _image(png: bytes, alt: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<img alt="{_text(alt)}" src="data:image/png;base64,{data}">'


def _charts(charts: parts.Charts) -> str:
    panels = "".join(
        f'<div class="panel">{panel_svg(panel, f"{charts.slug}-{place}")}</div>'
        for place, panel in enumerate(charts.panels)
    )
    keys = "".join(f"<li>{_swatch(key)}{_text(key.label)}</li>" for key in charts.legend)
    layout = "panels few" if len(charts.panels) <= _FEW_PANELS else "panels"
    legend = f'<ul class="legend">{keys}</ul>' if keys else ""
    return (
        f'<figure class="charts" id="figure-{charts.slug}">{legend}'
        f'<div class="{layout}">{panels}</div>{_caption(charts.caption)}</figure>'
    )


def _swatch(key: parts.Key) -> str:
    """A key's mark as a picture beside its label."""
    shapes = {
        "bar": '<rect x="3" y="1" width="18" height="10" rx="2"/>',
        "circle": '<circle cx="12" cy="6" r="4"/>',
        "square": '<rect x="8" y="2" width="8" height="8"/>',
        "cross": '<path d="M8 4l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2z"/>',
        "diamond": '<path d="M12 1l5 5-5 5-5-5z"/>',
        "triangle": '<path d="M8 1l9 5-9 5z"/>',
        "hatched": '<path class="hatched" d="M3 11l10-10M8 11l10-10M13 11l8-8M3 6l5-5"/>',
    }
    shape = shapes.get(key.mark, f'<path class="{key.mark}" d="M0 6h24"/>')
    return (
        f'<svg class="swatch" viewBox="0 0 24 12" aria-hidden="true" '
        f'style="color:var(--{key.colour})">{shape}</svg>'
    )


def _patch_pairs(block: parts.PatchPairs) -> str:
    pairs = block.pairs
    tiles = "".join(
        f"<li>{_image(pair_png(patches), f'pair {place}, distance {decimal(distance)}')}"
        f"<span>{decimal(distance)}</span></li>"
        for place, (patches, distance) in enumerate(
            zip(pairs.patches, pairs.distances.tolist(), strict=True), start=1
        )
    )
    return f'<figure class="pairs">{_caption(block.caption)}<ol>{tiles}</ol></figure>'


def _table(table: parts.Table) -> str:
    head = "".join(f"<tr>{row}</tr>" for row in _head_rows(table.columns))
    body = "".join(_row(row, table.columns) for row in table.rows)
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    wide = ' class="wide"' if len(table.columns) > _MANY_COLUMNS else ""
    # Anything that scrolls must be reachable by keyboard, and then have a name.
    return (
        f'<figure class="table"><figcaption>{_text(table.caption)}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.caption)}">'
        f"<table{wide}><thead>{head}</thead><tbody>{body}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + "</figure>"
    )


def _head_rows(columns: Sequence[parts.Column]) -> Iterator[str]:
    """One row of headings, or two where columns are grouped."""
    grouped = any(column.group for column in columns)
    if grouped:
        groups = itertools.groupby(columns, key=lambda column: column.group)
        yield "".join(_group_heading(group, list(members)) for group, members in groups)
    yield "".join(
        f'<th scope="col" data-column="{place}"{_number_class(column)}>{_text(column.title)}</th>'
        for place, column in enumerate(columns)
    )


def _group_heading(group: str, members: Sequence[parts.Column]) -> str:
    if not group:
        return "<td></td>" * len(members)
    return f'<th scope="colgroup" class="group" colspan="{len(members)}">{_text(group)}</th>'


def _number_class(column: parts.Column) -> str:
    return ' class="number"' if column.numeric else ""


def _row(row: parts.TableRow, columns: Sequence[parts.Column]) -> str:
    name, *others = row.cells
    badge = ' <span class="badge">kjax</span>' if row.kind == "ours" else ""
    cells = "".join(_cell(cell, column) for cell, column in zip(others, columns[1:], strict=True))
    title = f'<th scope="row"><span class="name">{_text(name.text)}</span>{badge}</th>'
    return f'<tr class="{row.kind}">{title}{cells}</tr>'


def _cell(cell: parts.TableCell, column: parts.Column) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value:.9g}"'
    text = _text(cell.text)
    text = f"<strong>{text}</strong>" if cell.best else text
    detail = f"<small>{_text(cell.detail)}</small>" if cell.detail else ""
    return f"<td{_number_class(column)}{value}>{text}{detail}</td>"
