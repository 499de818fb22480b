"""The naming contract between kjax variables and PyTorch state dicts.

| state dict                         | shape            | variables                        |
|------------------------------------|------------------|----------------------------------|
| features.{0,3,…,15}.weight         | [out, in, 3, 3]  | params/trunk/conv{1…6}/kernel    |
| features.{1,4,…,16}.running_mean   | [out]            | batch_stats/trunk/norm{1…6}/mean |
| features.{1,4,…,16}.running_var    | [out]            | batch_stats/trunk/norm{1…6}/var  |
| features.19.weight (`hardnet`)     | [128, 128, n, n] | params/head/kernel               |
| features.20.running_mean, …_var    | [128]            | batch_stats/head/norm/mean, var  |
| features_polar.… (`combined_star`) | as features.…    | …/trunk_polar/…                  |
| head.weight (encoded heads)        | [128, K]         | params/head/kernel               |
| head.bias (encoded heads)          | [128]            | params/head/bias                 |

With other channels or another dimension than the paper's, the sizes above follow.
`features` is laid out as in the HardNet release and in kornia, so their checkpoints load as they
are. `…num_batches_tracked` is ignored on the way in and written as 0 on the way out.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kjax.errors import InputError
from kjax.extras import require
from kjax.model.dimensions import CHANNELS, DIMENSION, ENCODED_HEADS, TRUNK_STRIDE
from kjax.weights.fields import Fields

if TYPE_CHECKING:
    import torch

    from kjax.model.descriptor import Descriptor

CONV_INDICES = tuple(range(0, 18, 3))
NORM_INDICES = tuple(range(1, 18, 3))
FC_INDEX, FC_NORM_INDEX = 19, 20


class Entry(NamedTuple):
    """One array of the state dict: its shape there, and where it lives in the variables."""

    shape: tuple[int, ...]
    path: tuple[str, ...]


def from_torch(
    state_dict: Mapping[str, Any], model: "Descriptor | None" = None
) -> dict[str, dict[str, Any]]:
    """The variables of a PyTorch state dict of tensors or NumPy arrays.

    A wrapper `{"state_dict": …}` and the prefix `module.` of a data-parallel checkpoint are taken
    off first.

    Args:
        state_dict: names as in this module's table.
        model: the module that the variables are for. Without it, the head follows from the names
            and shapes present.

    Raises:
        InputError: naming every entry that is missing, unexpected, wrong-shaped or not finite.
    """
    import jax  # here, because those who read weights for PyTorch may not have it

    arrays = plain_arrays(state_dict)
    expected = _announced_contract(arrays) if model is None else contract_of(model)
    check(arrays, expected)
    variables: dict[str, dict[str, Any]] = {"params": {}, "batch_stats": {}}
    for name, entry in expected.items():
        *parents, leaf = entry.path
        node: dict[str, Any] = variables
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = jax.device_put(_from_torch_layout(arrays[name]), may_alias=False)
    return variables


def to_torch(variables: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
    """The PyTorch state dict of kjax variables, ready for `load_state_dict(strict=True)`."""
    torch = require("torch", "a PyTorch state dict")
    return {name: torch.from_numpy(np.array(array)) for name, array in to_arrays(variables).items()}


def to_arrays(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The PyTorch state dict of kjax variables as NumPy arrays, without torch."""
    arrays: dict[str, np.ndarray] = {}
    for name, entry in _contract_of_variables(variables).items():
        value: Any = variables
        for key in entry.path:
            value = value[key]
        arrays[name] = _to_torch_layout(np.asarray(value))
        if name.endswith("running_var"):
            counter = name.replace("running_var", "num_batches_tracked")
            arrays[counter] = np.zeros((), np.int64)
    return arrays


def contract(
    *,
    side: int | None = None,
    two_trunks: bool = False,
    inputs: int | None = None,
    bias: bool = True,
    channels: Sequence[int] = CHANNELS,
    dimension: int = DIMENSION,
) -> dict[str, Entry]:
    """All entries of a state dict.

    Args:
        side: n of `hardnet`'s fully connected layer, None for the other heads.
        two_trunks: whether there is a second trunk.
        inputs: K of an encoded head, None for the other heads.
        bias: whether that head has a bias.
        channels: of the convolutions.
        dimension: of the descriptors.
    """
    entries = _trunk_contract("features", "trunk", channels)
    if two_trunks:
        entries |= _trunk_contract("features_polar", "trunk_polar", channels)
    if side is not None:
        shape = (dimension, channels[-1], side, side)
        entries[f"features.{FC_INDEX}.weight"] = Entry(shape, ("params", "head", "kernel"))
        entries |= _norm_contract(f"features.{FC_NORM_INDEX}", dimension, ("head", "norm"))
    if inputs is not None:
        entries["head.weight"] = Entry((dimension, inputs), ("params", "head", "kernel"))
        if bias:
            entries["head.bias"] = Entry((dimension,), ("params", "head", "bias"))
    return entries


def _trunk_contract(prefix: str, trunk: str, channels: Sequence[int]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    channels_in = 1
    for i, channels_out in enumerate(channels):
        shape = (channels_out, channels_in, 3, 3)
        entries[f"{prefix}.{CONV_INDICES[i]}.weight"] = Entry(
            shape, ("params", trunk, f"conv{i + 1}", "kernel")
        )
        norm = f"{prefix}.{NORM_INDICES[i]}"
        entries |= _norm_contract(norm, channels_out, (trunk, f"norm{i + 1}"))
        channels_in = channels_out
    return entries


def _norm_contract(prefix: str, channels: int, path: tuple[str, ...]) -> dict[str, Entry]:
    return {
        f"{prefix}.running_{statistic}": Entry((channels,), ("batch_stats", *path, statistic))
        for statistic in ("mean", "var")
    }


def contract_of(model: "Descriptor") -> dict[str, Entry]:
    """All entries of the state dict of a model."""
    if model.folded:
        raise InputError("a folded model has no PyTorch counterpart: convert the original")
    return contract_of_fields(
        model.head,
        s=model.position_kernel.s,
        patch_size=model.patch_size,
        head_bias=model.head_bias,
        channels=model.channels,
        dimension=model.dimension,
    )


def contract_of_fields(
    head: str,
    *,
    s: int,
    patch_size: int,
    head_bias: bool = True,
    channels: Sequence[int] = CHANNELS,
    dimension: int = DIMENSION,
) -> dict[str, Entry]:
    """All entries of the state dict of a model, from the arguments of `kjax.build`."""
    systems = 2 if head.startswith("combined") else 1
    return contract(
        side=patch_size // TRUNK_STRIDE if head == "hardnet" else None,
        two_trunks=head == "combined_star",
        inputs=systems * channels[-1] * (2 * s + 1) ** 2 if head in ENCODED_HEADS else None,
        bias=head_bias,
        channels=channels,
        dimension=dimension,
    )


def _contract_of_variables(variables: Mapping[str, Any]) -> dict[str, Entry]:
    if "batch_stats" not in variables:
        raise InputError("variables without batch_stats (folded?) have no PyTorch counterpart")
    params = variables["params"]
    head = params.get("head", {})
    kernel_shape: tuple[int, ...] = head["kernel"].shape if head else ()
    return contract(
        side=kernel_shape[0] if len(kernel_shape) == 4 else None,
        two_trunks="trunk_polar" in params,
        inputs=kernel_shape[0] if len(kernel_shape) == 2 else None,
        bias="bias" in head,
        channels=trunk_channels(variables),
        dimension=kernel_shape[-1] if kernel_shape else DIMENSION,
    )


def trunk_channels(variables: Mapping[str, Any]) -> tuple[int, ...]:
    """Output channels of the convolutions of variables."""
    trunk = variables["params"]["trunk"]
    return tuple(trunk[f"conv{i + 1}"]["kernel"].shape[-1] for i in range(len(CHANNELS)))


def announced_widths(arrays: Mapping[str, np.ndarray]) -> Fields:
    """Channels and dimension, as most arrays of each layer have them."""
    layers = zip(CONV_INDICES, NORM_INDICES, CHANNELS, strict=True)
    channels = tuple(
        _announced(arrays, default, f"features.{conv}.weight", f"features.{norm}")
        for conv, norm, default in layers
    )
    encoded = _announced(arrays, DIMENSION, "head.weight", "head.bias")
    full = _announced(arrays, encoded, f"features.{FC_INDEX}.weight", f"features.{FC_NORM_INDEX}")
    return {"channels": channels, "dimension": full}


def _announced(arrays: Mapping[str, np.ndarray], default: int, layer: str, after: str) -> int:
    """The first size of a layer's arrays that most have; of what follows it, if in doubt."""
    names = (f"{after}.running_mean", f"{after}.running_var", after, layer)
    sizes = [arrays[name].shape[0] for name in names if name in arrays and arrays[name].ndim]
    return Counter(sizes).most_common(1)[0][0] if sizes else default


def _announced_contract(arrays: Mapping[str, np.ndarray]) -> dict[str, Entry]:
    """The contract that the names announce; impossible sizes are left for `check` to refuse."""
    two_trunks = any(name.startswith("features_polar.") for name in arrays)
    widths = announced_widths(arrays)
    side = inputs = None
    if any(
        name.startswith((f"features.{FC_INDEX}.", f"features.{FC_NORM_INDEX}.")) for name in arrays
    ):
        side = _last_axis(arrays, f"features.{FC_INDEX}.weight", default=8)
    if two_trunks or any(name.startswith("head.") for name in arrays):
        inputs = _nearest_inputs(
            _last_axis(arrays, "head.weight", default=0), two_trunks, widths["channels"][-1]
        )
    return contract(side=side, two_trunks=two_trunks, inputs=inputs, **widths)


def _last_axis(arrays: Mapping[str, np.ndarray], name: str, *, default: int) -> int:
    return arrays[name].shape[-1] if name in arrays and arrays[name].ndim else default


def _nearest_inputs(inputs: int, two_trunks: bool, channels: int) -> int:
    """The possible K, m·c·(2s+1)², closest to the one found."""
    blocks = (2,) if two_trunks else (1, 2)
    largest_s = max(1, inputs)  # (2s+1)² passes K/c long before s does
    possible = (
        m * channels * (2 * s + 1) ** 2 for m in blocks for s in range(1, 2 + math.isqrt(largest_s))
    )
    return min(possible, key=lambda size: abs(size - inputs))


def plain_arrays(state_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a state dict by their names in the contract, without counters and wrappers."""
    inner = state_dict.get("state_dict", state_dict)
    if not isinstance(inner, Mapping) or not inner:
        raise InputError("this is no state dict: expected a mapping from names to arrays")
    return {
        str(name).removeprefix("module."): plain_array(str(name), value)
        for name, value in inner.items()
        if not str(name).endswith("num_batches_tracked")
    }


def plain_array(name: str, value: Any) -> np.ndarray:
    """An entry of a state dict as NumPy's; a torch tensor, without importing torch to ask.

    Raises:
        InputError: it is no array, or one that NumPy does not know: sparse, bfloat16.
    """
    try:
        if hasattr(value, "detach"):
            return value.detach().cpu().numpy()
        if hasattr(value, "__array__"):
            array = np.asarray(value)
            # JAX knows this machine's order of bytes only.
            return array.astype(array.dtype.newbyteorder("="), copy=False)
    except (TypeError, ValueError, RuntimeError):
        pass
    # Lists too: of lists within lists, NumPy would make an array of any size.
    kind = getattr(value, "dtype", type(value).__name__)
    raise InputError(f"{name} holds {kind}: save float32, or float16, instead") from None


def check(arrays: Mapping[str, np.ndarray], expected: Mapping[str, Entry]) -> None:
    """Refuses arrays that are not those of a contract, naming every one that is not."""
    problems = []
    if missing := sorted(expected.keys() - arrays.keys()):
        problems.append(f"missing {', '.join(missing)}")
    if extra := sorted(arrays.keys() - expected.keys()):
        problems.append(f"unexpected {', '.join(extra)}")
    for name in sorted(expected.keys() & arrays.keys()):
        found, wanted = arrays[name].shape, expected[name].shape
        if found != wanted:
            problems.append(f"{name} has shape {list(found)} instead of {list(wanted)}")
        elif arrays[name].dtype not in (np.float16, np.float32, np.float64):
            problems.append(f"{name} holds {arrays[name].dtype}, not floating-point numbers")
    if not problems and (broken := [n for n in sorted(expected) if not _is_finite(arrays[n])]):
        problems.append(_not_finite(broken))
    if problems:
        raise InputError("the checkpoint does not fit: " + "; ".join(problems))


def check_finite(variables: Mapping[str, Any]) -> None:
    """Refuses variables that hold NaN or an infinity, naming the first array that does.

    Looking at descriptors would not do: some machines' compiled ReLU turns NaN into 0.

    Raises:
        InputError: an array is not finite.
    """
    import jax  # here, because those who read weights for PyTorch may not have it

    broken = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
        if not _is_finite(np.asarray(leaf, np.float32))
    ]
    if broken:
        raise InputError(f"the weights are no use: {_not_finite(broken)}")


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


def _not_finite(names: list[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]} is not finite: it holds NaN or an infinity{more}"


def _from_torch_layout(array: np.ndarray) -> np.ndarray:
    """OIHW → HWIO, [out, in] → [in, out]."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def _to_torch_layout(array: np.ndarray) -> np.ndarray:
    """HWIO → OIHW, [in, out] → [out, in]."""
    return np.ascontiguousarray(array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T)
