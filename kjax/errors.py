"""The one exception for input that a user can mend, and what a program makes of it."""

import difflib
import sys
from collections.abc import Callable, Iterable


class InputError(ValueError):
    """Bad input. The message is one line: what is wrong, and how to mend it.

    Command-line programs print it without a traceback and exit with code 2. What a message quotes
    from a file may hold anything: line breaks, and signs that would move a terminal's cursor, are
    shown as escapes.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if text.isprintable():
            return text
        return "".join(
            sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
        )


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for a name that is not among the known ones, with the nearest as a suggestion."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"unknown {kind} {name!r}: {hint}choose from {', '.join(names)}")


def first_line(error: Exception) -> str:
    """What another library says is wrong, in one line; the kind of error if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(error: Exception) -> str:
    """All that it says, on one line; the kind of error if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def exit_code(program: str, run: Callable[[], int | None]) -> int:
    """Runs a command-line program: its own code, or 2 after one line on stderr about bad input."""
    try:
        return run() or 0
    except (InputError, OSError) as error:
        said = one_line(error)
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        print(f"{program}: {said}", file=sys.stderr)
        return 2
