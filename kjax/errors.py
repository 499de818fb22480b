"""The one exception for bad input, the wording of messages, and exit codes."""

import difflib
import sys
from collections.abc import Callable, Collection, Iterable


class InputError(ValueError):
    """Bad input. The message is one line: what is wrong, and how to fix it.

    Command-line programs print it without a traceback and exit with code 2. Unprintable characters,
    which a message may quote from a file, are shown as escapes.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return an error for an unknown name; it suggests the nearest known one."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"unknown {kind} {name!r}: {hint}choose from {', '.join(names)}")


def check_name(kind: str, name: str, known: Collection[str]) -> None:
    """Raise for an unknown name."""
    if name not in known:
        raise unknown_name(kind, name, known)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(error: Exception) -> str:
    """Return an error's message on one line, or its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: "1 patch", "1,200 patches"."""
    return f"{number:,} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    """Return the noun as it stands after a number."""
    if number == 1:
        return noun
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def exit_code(program: str, run: Callable[[], int | None]) -> int:
    """Run a program; return its exit code, or 2 after one line on stderr about bad input."""
    try:
        return run() or 0
    except (InputError, OSError) as error:
        message = one_line(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        print(f"{program}: {message}", file=sys.stderr)
        return 2
