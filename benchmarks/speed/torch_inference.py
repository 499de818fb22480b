"""Runs of HardNet in PyTorch, the reference for kjax's speed."""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from kjax.errors import first_line
from kjax.model.describe import cores
from kjax.parity.torch_reference import TorchDescriptor
from kjax.weights.source import load_source
from kjax.weights.torch_names import to_torch
from speed.inference import END_TO_END, IN_MEMORY, TimedRun, blocks_of

SIZE = 32
TWIN = "torch twin of HardNet"
"""`kjax.parity.torch_reference`, if kornia is not installed."""


class TorchVariant(NamedTuple):
    """Precision, memory format and compilation of the network."""

    name: str
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    compiled: bool = False


ON_CPU = (TorchVariant("float32"), TorchVariant("float32 channels-last", channels_last=True))
ON_GPU = (
    TorchVariant("float32"),
    TorchVariant("compiled float32 channels-last", torch.float32, True, True),
    TorchVariant("bfloat16 channels-last", torch.bfloat16, True),
    TorchVariant("compiled bfloat16 channels-last", torch.bfloat16, True, True),
)


def torch_runs(batches: Sequence[int], patches: int, device: str) -> Iterator[TimedRun]:
    """Yield runs of HardNet with the shipped weights; failing variants are reported."""
    torch.set_num_threads(cores())
    for variant in ON_CPU if device == "cpu" else ON_GPU:
        name, describe = make_hardnet(variant, device)
        layout = torch.channels_last if variant.channels_last else torch.contiguous_format
        try:
            describe(torch.from_numpy(blocks_of(1, batches[0], SIZE)[0])[:, None])
        except Exception as error:  # compilers fail in many ways
            print(f"{name}, {variant.name}, fails here: {first_line(error)}", file=sys.stderr)
            continue
        for batch in batches:
            blocks = blocks_of(patches, batch, SIZE)
            form = {"dtype": variant.dtype, "memory_format": layout}
            resident = [torch.from_numpy(one)[:, None].to(**form).to(device) for one in blocks]

            def in_memory(describe: Any = describe, resident: Any = resident) -> None:
                descriptors = [describe(block) for block in resident]
                if device == "cuda":
                    torch.cuda.synchronize()
                del descriptors

            def end_to_end(describe: Any = describe, blocks: Any = blocks) -> Any:
                found = [describe(torch.from_numpy(block)[:, None]) for block in blocks]
                return torch.cat(found).float().cpu().numpy()

            made = functools.partial(
                TimedRun, name, variant.name, batch=batch, patches=batch * len(blocks)
            )
            yield made(place=IN_MEMORY, run=in_memory)
            yield made(place=END_TO_END, run=end_to_end)


def make_hardnet(
    variant: TorchVariant, device: str
) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the name of a HardNet, kornia's or else kjax's twin, and its function of [B,1,N,N]."""
    try:
        from kornia.feature import HardNet
    except ImportError:
        print(f"kornia is not installed: a {TWIN} stands in for it", file=sys.stderr)
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
