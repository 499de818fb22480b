"""Hooks of mkdocs: pages made from files outside docs/, help of commands, values of defaults."""

import argparse
import importlib
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kjax.cli import make_parser

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "CITATION.cff": "citation.cff",
}
"""Files outside docs/ and their names on the site."""
_MARK = re.compile(r"<!-- help: ([a-z-]+) -->")
_LINK = re.compile(r"\]\(([^)#:]+)")
_WIDTH = 88


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages made from files outside docs/; called by mkdocs."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_LINK.sub(_site_link, text)))


def _site_link(link: re.Match[str]) -> str:
    return f"]({PAGES.get(link[1], link[1].removeprefix('docs/'))}"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write a command's help where a page says `<!-- help: COMMAND -->`; called by mkdocs."""
    return _MARK.sub(lambda mark: f"```text\n{_help(mark[1])}```", markdown)


def _help(command: str) -> str:
    (commands,) = (
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    parser = commands.choices[command]
    made = parser.formatter_class
    parser.formatter_class = lambda prog: made(prog, width=_WIDTH)
    return parser.format_help()


class DefaultValues(griffe.Extension):
    """Show the values of constants that are defaults in signatures: 4000, not MAX_KEYPOINTS."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace defaults that are names of a module's numbers, strings or tuples."""
        for parameter in func.parameters:
            if not re.fullmatch(r"_?[A-Z][A-Z_0-9]+", str(parameter.default)):
                continue
            value = getattr(importlib.import_module(func.module.path), str(parameter.default))
            if isinstance(value, int | float | str | tuple):
                parameter.default = repr(value)
