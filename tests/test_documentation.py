"""What the README and the other pages print: its snippets run or at least are understood."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from scripts import BENCHMARKS, load_script

from kjax.cli import parse
from kjax.matcher.config import MatcherRunConfig
from kjax.runs.config import load_config, read_config, validate_as

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
OTHERS = {"colmap", "mkdir", "ray"}
"""Programs that are not ours to check."""
DOCUMENTATION = load_script(BENCHMARKS / "documentation.py")


def of_readme(language: str, *, run: bool) -> list[re.Match[str]]:
    """Blocks of the README; those to run neither install nor need anything else."""
    found = [one for one in DOCUMENTATION.read_blocks(README) if one["language"] == language]
    return [one for one in found if run == (not one["why"] and "pip install" not in one["code"])]


def commands(code: str) -> list[list[str]]:
    """The words of every command, without comments."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&")
        lexer.whitespace_split = True
        words = [*lexer, "&&"]
        while words:
            end = words.index("&&")
            found.append(words[:end])
            words = words[end + 1 :]
    return [words for words in found if words]


def check_command(words: list[str]) -> None:
    """Fails unless our parsers take the command; another program's must be known."""
    program, *rest = words
    if "=" in program or program in OTHERS:
        return
    if program.endswith("python3") or program.endswith("python"):
        check_python(rest)
    elif program.endswith("pip"):
        extras = set(re.findall(r"[a-z]+", " ".join(re.findall(r"\[(.+?)\]", " ".join(rest)))))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert extras <= set(project["optional-dependencies"])
    elif Path(program).name == "kjax":
        args = parse(rest)
        if args.command == "train":
            read_config(args.config, args.overrides)
        elif args.command == "train-matcher":
            validate_as(MatcherRunConfig, load_config(args.config, args.overrides))
    else:
        assert Path(program).name in ("ruff", "mypy", "mkdocs"), words


def check_python(words: list[str]) -> None:
    program, *rest = words
    if program == "-c":
        compile(rest[0], "snippet", "exec")
    elif program == "-m":
        assert rest[0] in ("venv", "pytest", "tests.fuzz"), words
    elif program in ("run_train.py", "run_eval.py"):
        check_command(["kjax", program[4:-3], *rest])
    else:
        assert (ROOT / program).is_file(), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_are_understood(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for snippet in DOCUMENTATION.read_blocks(page):
        if snippet["language"] == "python":
            compile(snippet["code"], page.name, "exec")
            continue
        subprocess.run(["bash", "-n"], input=snippet["code"], text=True, check=True)
        for words in commands(snippet["code"]):
            if "…" not in " ".join(words):
                check_command(words)


def test_snippets_that_do_not_fit_are_noticed():
    """The check above can fail."""
    for bad in ("kjax mtach a b", "kjax match a.jpg", "python run_eval.py x --rul 1 --nope", "sl"):
        with pytest.raises((SystemExit, AssertionError)):
            check_command(commands(bad)[0])


@pytest.mark.slow
def test_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = of_readme("python", run=True)
    assert blocks
    for block in blocks:
        exec(compile(block["code"], README.name, "exec"), names)
    assert len(names["matches"]) > 200


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path):
    blocks = of_readme("bash", run=True)
    assert blocks
    for block in blocks:
        done = DOCUMENTATION.run_block(block, Path(sys.executable), tmp_path, install=False)
        assert done.returncode == 0, done.stdout
    counts = [
        [int(number) for number in re.search(r"(\d+) of (\d+) matches", text).groups()]
        for text in (done.stdout.replace(",", ""), README.read_text().replace(",", ""))
    ]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)  # rounding decides a few
    assert (tmp_path / "matches.png").stat().st_size > 10_000


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 10
    for link in links:
        assert link.startswith("https:") or (ROOT / link).exists(), link


def test_howto_pages_are_short_and_start_with_a_command():
    start = re.compile(r"# .+\n\n(?:[A-Z].+\n\n)?(?:<!-- .+ -->\n)?```(?:bash|python)\n")
    pages = {page: page.read_text(encoding="utf-8") for page in DOCUMENTATION.howto_pages()}
    assert len(pages) > 15
    assert [page for page, text in pages.items() if not start.match(text)] == []
    assert [page for page, text in pages.items() if len(text.split()) > 900] == []


def test_ci_runs_the_test_command_to_the_letter():
    (command,) = (one for one in of_readme("bash", run=False) if "pytest" in one["code"])
    assert command["code"] in (ROOT / ".ci" / "run").read_text()


def test_versions_agree():
    import kjax

    assert f"\nversion: {kjax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {kjax.__version__} " in (ROOT / "CHANGELOG.md").read_text()
