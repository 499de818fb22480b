"""matplotlib, which is an extra: the one place that asks for it."""

from types import ModuleType

from kjax.errors import InputError


def require_matplotlib(purpose: str) -> ModuleType:
    """The package matplotlib, or one line that says what needs it and how to get it."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError(f"{purpose} needs matplotlib: pip install 'kjax[figures]'") from None
    return mpl
