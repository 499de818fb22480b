"""What can be told of a command's words before its work begins. Nothing here imports JAX."""

import math
import tempfile
from pathlib import Path

from kjax.errors import InputError, unknown_name
from kjax.weights import shipped as pretrained


def check_weights(word: str) -> None:
    """Refuses a word that stands for no weights; whether they are sound is seen later."""
    name = word.partition(":")[0]
    if pretrained.find(name) is not None or any(Path(path).exists() for path in (word, name)):
        return
    if Path(name).suffix:
        raise InputError(f"{name}: no such file")
    unknown = unknown_name("pretrained model", word, pretrained.list_weights())
    raise InputError(f"{word} is no workdir or weights file; {unknown}")


def check_matcher(word: str | None, *, needed: bool, option: str) -> None:
    """Refuses a word that stands for no matcher, and one that is too much."""
    from kjax.weights.matchers import matcher_names

    if not needed:
        if word is not None:
            raise InputError(f"--matcher {word} goes with {option}")
    elif word not in matcher_names() and not (word and Path(word).exists()):
        names = ", ".join(matcher_names()) or "none"
        raise InputError(
            f"no matcher {word or 'is named'}: give --matcher the matcher.npz of a training, its "
            f"folder, or one that ships ({names})"
        )


def check_photograph(path: str) -> None:
    """Refuses what is no file; whether it is a photograph is seen later."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder: give a photograph")
    if not Path(path).exists():
        raise InputError(f"no such file: {path}")


def check_count(option: str, value: int) -> None:
    """Refuses what is no number of things."""
    if value < 1:
        raise InputError(f"{option} {value}: give at least 1")


def check_quantization(form: str | None) -> None:
    """Refuses what `kjax.quantize` does not know."""
    from kjax.model.quantization import FORMS

    if form is not None and form not in FORMS:
        raise unknown_name("--quantize", form, FORMS)


def check_positive(option: str, value: float, *, most: float = math.inf) -> None:
    """Refuses zero, negative and infinite numbers, NaN, and what is above the most."""
    if not 0 < value <= most or math.isinf(value):
        limit = "" if math.isinf(most) else f", at most {most:g}"
        raise InputError(f"{option} {value:g}: give a number above 0{limit}")


def check_output_file(path: Path, option: str = "--out") -> None:
    """Refuses a file that could not be written."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}: make it first")
    _check_writable(path.parent)


def check_output_folder(path: Path, option: str = "--out") -> None:
    """Refuses a folder that could not be written to; it need not be there yet."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{option} {path}: {existing} is a file, not a folder")
    _check_writable(existing)


def _check_writable(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write into the folder {folder}: {error.strerror}") from None
