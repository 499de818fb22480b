"""HardNet in PyTorch, as fast as it goes unchanged: what kjax's speed is compared with."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from kjax.model.describe import cores
from kjax.parity.torch_reference import TorchDescriptor
from kjax.weights.source import load_source
from kjax.weights.torch_names import to_torch
from speed.inference import END_TO_END, IN_MEMORY, Candidate, blocks_of

SIZE = 32
EAGER = "float32"
TWIN = "torch twin of HardNet"
"""`kjax.parity.torch_reference`, where kornia is missing."""


@dataclasses.dataclass(frozen=True)
class _Variant:
    """One way to run the network."""

    name: str
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    compiled: bool = False


ON_CPU = (_Variant(EAGER), _Variant("float32 channels-last", channels_last=True))
ON_GPU = (
    _Variant(EAGER),
    _Variant("compiled float32 channels-last", torch.float32, True, True),
    _Variant("bfloat16 channels-last", torch.bfloat16, True),
    _Variant("compiled bfloat16 channels-last", torch.bfloat16, True, True),
)


def torch_candidates(
    batches: Sequence[int], patches: int, notes: list[str], *, device: str
) -> Iterator[Candidate]:
    """HardNet with the weights that ship with kjax, in the ways that suit the device.

    Args:
        batches: sizes to try.
        patches: that a run describes, rounded up to whole batches.
        notes: gets a line about every way that does not work here.
        device: "cpu" or "cuda".
    """
    torch.set_num_threads(cores())
    for variant in ON_CPU if device == "cpu" else ON_GPU:
        name, describe = make_hardnet(variant, device)
        try:
            describe(_as_tensor(blocks_of(1, batches[0], SIZE)[0], variant))
        except Exception as error:  # compilers fail in a dozen ways of their own
            reason = str(error).strip().splitlines() or [type(error).__name__]
            notes.append(f"{name}, {variant.name}, does not run here: {reason[0]}")
            continue
        for batch in batches:
            yield from _in_both_places(
                name, variant, describe, blocks_of(patches, batch, SIZE), device
            )


def make_hardnet(
    variant: _Variant, device: str
) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The name of a HardNet, kornia's or else kjax's twin, and its function of [B,1,N,N]."""
    try:
        from kornia.feature import HardNet
    except ImportError:
        name, model = TWIN, TorchDescriptor("hardnet", patch_size=SIZE)
    else:
        name, model = "kornia HardNet", HardNet(pretrained=False)
    weights = to_torch(load_source("hardnet").variables)
    model.load_state_dict({key: torch.as_tensor(value) for key, value in weights.items()})
    layout = torch.channels_last if variant.channels_last else torch.contiguous_format
    model = model.eval().to(device, variant.dtype)
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    forward = torch.compile(model) if variant.compiled else model

    @torch.inference_mode()
    def describe(patches: torch.Tensor) -> torch.Tensor:
        return forward(patches.to(device, variant.dtype, memory_format=layout))

    return name, describe


def _in_both_places(
    name: str,
    variant: _Variant,
    describe: Callable[[torch.Tensor], torch.Tensor],
    blocks: Sequence[np.ndarray],
    device: str,
) -> Iterator[Candidate]:
    batch, count = len(blocks[0]), sum(map(len, blocks))
    candidate = functools.partial(
        Candidate, name=name, variant=variant.name, batch=batch, patches=count
    )
    resident = [_as_tensor(block, variant).to(device) for block in blocks]

    def in_memory() -> None:
        descriptors = [describe(block) for block in resident]
        if device == "cuda":
            torch.cuda.synchronize()
        del descriptors

    def end_to_end() -> Any:
        found = [describe(torch.from_numpy(block)[:, None]) for block in blocks]
        return torch.cat(found).float().cpu().numpy()

    yield candidate(place=IN_MEMORY, run=in_memory)
    yield candidate(place=END_TO_END, run=end_to_end)


def _as_tensor(block: np.ndarray, variant: _Variant) -> torch.Tensor:
    layout = torch.channels_last if variant.channels_last else torch.contiguous_format
    return torch.from_numpy(block)[:, None].to(dtype=variant.dtype, memory_format=layout)
