"""Parts that the programs in this folder share: command line, timing, Markdown tables, records."""

import argparse
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kjax.errors import exit_code
from kjax.files.json import append_line, read_lines

SOFTWARE = ("kjax", "python", "jax", "flax", "optax", "commit")
"""Versions that a record names."""
AddArgument = Callable[..., Any]
"""`ArgumentParser.add_argument`."""
TRAINED = Path(__file__).parents[1] / "kjax" / "weights" / "trained"


def make_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a program's docstring, as it is written there."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def run_main(
    run: Callable[[argparse.Namespace], int | None],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
) -> int:
    """Parse the arguments and run; bad input prints one line to stderr and returns 2."""
    args = parser.parse_args(argv)
    return exit_code(Path(inspect.getfile(run)).stem, lambda: run(args))


def command(
    run: Callable[[argparse.Namespace], int | None],
) -> Callable[[Callable[[AddArgument], None]], Callable[..., int]]:
    """Return a decorator that makes the `main` of a program from a function that adds arguments."""

    def decorate(add_arguments: Callable[[AddArgument], None]) -> Callable[..., int]:
        def main(argv: Sequence[str] | None = None) -> int:
            parser = make_parser(run.__globals__["__doc__"])
            add_arguments(parser.add_argument)
            return run_main(run, parser, argv)

        return main

    return decorate


def fill_defaults(args: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
    """Set the options that were not given, for defaults that depend on the device."""
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def take_turns(
    runs: Mapping[Any, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: bool = True,
    progress: bool = False,
) -> tuple[dict[Any, list[float]], dict[Any, Any]]:
    """Time several functions in turns, so that a busy machine slows all of them alike.

    `warm_up` runs one more round before, which compiles and does not count. Returns the seconds of
    every round by name, and the results of the last round.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    results: dict[Any, Any] = {}
    rounds = repeats + warm_up
    with tqdm(total=rounds * len(runs), desc="measuring", disable=not progress) as bar:
        for attempt in range(rounds):
            for name, run in runs.items():
                spent, results[name] = timed(run)
                if attempt or not warm_up:
                    seconds[name].append(spent)
                bar.update()
    return seconds, results


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], *, text: int = 1) -> str:
    """Return a Markdown table; columns after the first `text` ones are aligned to the right."""
    rules = [":--" if column < text else "--:" for column in range(len(header))]
    lines = ([str(cell).replace("|", r"\|") for cell in line] for line in (header, rules, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent, or a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def in_words(items: Sequence[str]) -> str:
    """Join items with commas and a last "and"."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, one JSON object per line; damaged lines are reported."""
    return read_lines(path, dict, what="a record")


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record and fsync: recorded work is never repeated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, record, dict)


def software() -> dict[str, str]:
    """Return the versions that a result may depend on, and the commit."""
    from kjax.runs.workdir import plain_versions

    found = plain_versions()
    return {name: found[name] for name in SOFTWARE if name in found}


def read_card(name: str) -> dict[str, Any] | None:
    """Return the facts about shipped weights, or None if the name does not ship."""
    path = TRAINED / f"{name.removeprefix('kjax-')}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
