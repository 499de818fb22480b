"""The weights that a training starts from, where it does not start from chance."""

from typing import Any

from kjax.errors import InputError
from kjax.runs.config import ModelConfig
from kjax.weights.info import fields_of
from kjax.weights.source import LoadedModel, load_sources

_SHAPES_TELL = ("head", "s", "head_bias", "channels", "dimension")
"""What bare weights tell of their model; the constants of position kernels leave no trace."""


def load_start(word: str, config: ModelConfig) -> dict[str, Any] | None:
    """The variables that `config.init` stands for; None if it names nothing.

    Args:
        word: a name that ships, a run (of several seeds, the first) or a weights file.
        config: of the model that is trained.

    Raises:
        InputError: there are no such weights, or they are another model's.
    """
    if not word:
        return None
    source = load_sources(word)[0]
    known = _known_fields(source, config.head)
    other = {name: value for name, value in known.items() if value != getattr(config, name)}
    if other:
        has = ", ".join(f"{name} {value}" for name, value in other.items())
        settings = (f'--config.model.{name}="{value}"' for name, value in other.items())
        raise InputError(
            f"the weights of config.init, {word}, are of another model than config.model, with "
            f"{has}: set {' '.join(settings)}"
        )
    return source.variables


def _known_fields(source: LoadedModel, head: str) -> dict[str, Any]:
    """What is known of the weights' model; of several that they fit, of the one with the head."""
    fitting = [model for model in source.candidates if model.head == head]
    model = fitting[0] if fitting else source.candidates[0]
    fields = fields_of(model)
    if not source.inferred:
        return fields
    told = {*_SHAPES_TELL, *(["patch_size"] if model.head == "hardnet" else [])}
    return {name: value for name, value in fields.items() if name in told}
