"""Writes the help of a command where a page of the site says `<!-- help: COMMAND -->`."""

import argparse
import re
from typing import Any

from kjax.cli import make_parser

_MARK = re.compile(r"<!-- help: ([a-z-]+) -->")
_WIDTH = 88


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the marks of a page; called by mkdocs."""
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
