"""Errors for bad input."""

import pytest

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
