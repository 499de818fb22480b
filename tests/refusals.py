"""Errors for bad input."""

import pytest

from kjax.cli import main
from kjax.errors import InputError


def refused(message):
    """Expect an `InputError` of one line."""
    return pytest.raises(InputError, match=rf"^[^\n]*{message}[^\n]*$")


def assert_refused(message, function, *arguments, **options):
    """Call a function, which raises an `InputError` of one line; return it."""
    with pytest.raises(InputError, match=message or None) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def refused_command(capsys, *words) -> str:
    """Run a command of kjax, which ends with one line and exit code 2; return the line."""
    capsys.readouterr()  # what was printed before
    assert main([*map(str, words)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"kjax {words[0]}: "), line
    assert line.count("\n") == 1, line
    return line
