"""Errors for bad input."""

import pytest

from kjax.errors import InputError


def refused(message):
    """Expect an `InputError` of one line."""
    return pytest.raises(InputError, match=rf"^[^\n]*{message}[^\n]*$")
