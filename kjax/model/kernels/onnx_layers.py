"""Convolutions for onnxruntime on CPUs: the network's own up to rounding, in less time.

onnxruntime holds channels in blocks, sixteen with AVX-512, and convolves wide layers at nearly the
processor's peak. What is left to save: in the last layer multiplications, by Winograd's filtering
as in `cpu_convolution`; in a light model's first layers, whose channels fill half a block, the
other half, by taking two rows of a map for one with twice the channels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from kjax.model.dimensions import STRIDES, TRUNK_STRIDE
from kjax.model.kernels.onnx_writer import GraphWriter

ROWS = 4
"""Rows of the output that Winograd's filtering makes together."""
WIDE = 64
"""Channels from which on that pays."""
SURELY_NEGATIVE = -1e30
"""Added to what ReLU shall make zero."""
ROW_COMBINATIONS = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
KERNEL_COMBINATIONS = np.divide(
    [(6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24)], 24
)
"""F(4, 3) as Lavin and Gray (2016) have it; its points are 0, ±1, ±2 and ∞."""

Layer = tuple[Float32[np.ndarray, "3 3 _ _"], Float32[np.ndarray, " _"]]


def write_trunk(
    graph: GraphWriter, images: str, layers: Mapping[str, Any], *, size: int, block: int
) -> str:
    """φ [B,c,n,n] of images [B,1,N,N].

    Args:
        graph: gets the operators.
        images: the name of what they take.
        layers: the trunk's folded weights.
        size: N.
        block: channels that onnxruntime holds together.
    """
    convolutions = [layers[f"conv{i}"] for i in range(1, len(STRIDES) + 1)]
    weights = [(np.asarray(each["kernel"]), np.asarray(each["bias"])) for each in convolutions]
    x, done, side = images, 0, size // TRUNK_STRIDE
    if all(2 * len(bias) == block for _, bias in weights[:2]):
        x, done = _write_in_pairs(graph, images, weights[:3], size), 3
    for (kernel, bias), stride in zip(weights[done:-1], STRIDES[done:-1], strict=True):
        x = graph.add("Relu", graph.convolve(x, kernel, bias, stride=stride))
    kernel, bias = weights[-1]
    if kernel.shape[2] >= WIDE and side % ROWS == 0:
        return _write_by_rows(graph, x, kernel, bias, side)
    return graph.add("Relu", graph.convolve(x, kernel, bias))


def _write_by_rows(
    graph: GraphWriter,
    x: str,
    kernel: Float32[np.ndarray, "3 3 C C2"],
    bias: Float32[np.ndarray, " C2"],
    side: int,
) -> str:
    """A layer of stride 1, four rows from six products, each a 1×3 convolution.

    Rows and products are combined by convolutions of each channel alone: onnxruntime runs these on
    blocks of channels, too, and adds what is to be added in the same pass.
    """
    channels, products = kernel.shape[2], list[str]()
    for rows, taps in zip(ROW_COMBINATIONS, KERNEL_COMBINATIONS, strict=True):
        weights = np.tile(np.reshape(rows, (-1, 1, 1, 1)), (1, 1, 1, channels))
        combined = graph.convolve(x, weights, stride=(ROWS, 1), pads=(1, 0, 1, 0), group=channels)
        own = np.tensordot(taps, kernel, 1)[None]
        # The second is part of every row of the output, once.
        shift = bias if len(products) == 1 else None
        products.append(graph.convolve(combined, own, shift, pads=(0, 1, 0, 1)))

    def scaled(factor: int, y: str) -> str:
        weights = np.full((1, 1, 1, len(bias)), factor)
        return graph.convolve(y, weights, pads=(0, 0, 0, 0), group=len(bias))

    m0, m1, m2, m3, m4, m5 = products
    even1, odd1 = graph.add("Add", m1, m2), graph.add("Add", scaled(-1, m2), m1)
    even2, odd2 = graph.add("Add", m3, m4), graph.add("Add", scaled(-1, m4), m3)
    outputs = (
        graph.add("Add", m0, graph.add("Add", even1, even2)),
        graph.add("Add", scaled(2, odd2), odd1),
        graph.add("Add", scaled(4, even2), even1),
        graph.add("Add", m5, graph.add("Add", scaled(8, odd2), odd1)),
    )
    rectified = [
        graph.reshape(graph.add("Relu", y), -1, len(bias), side // ROWS, 1, side) for y in outputs
    ]
    return graph.reshape(graph.add("Concat", *rectified, axis=3), -1, len(bias), side, side)


def _write_in_pairs(graph: GraphWriter, images: str, layers: Sequence[Layer], size: int) -> str:
    """The first three layers, between which a row has all channels of two rows of the map.

    Behind the first layer they are 2j−1 and 2j, as the second makes rows 2j and 2j+1 of two such
    pairs, and must be zero where they are outside: a second channel of the images marks the places
    at which ReLU shall see to that.
    """
    (kernel1, bias1), (kernel2, bias2), (kernel3, bias3) = layers
    marks = np.zeros((1, 2, size, size))
    marks[:, 1, [1, -2]] = 1
    image_alone = graph.constant(np.reshape([1, 0], (1, 2, 1, 1)))
    marked = graph.add("Add", graph.add("Mul", images, image_alone), graph.constant(marks))
    # Of pixels 2j−2 to 2j+1 the last is marked for j = 0 alone, the first for j = N/2 alone.
    at_marks = np.zeros((4, 3, 1, 2, len(bias1)))
    at_marks[3, 1, 0, 0] = at_marks[0, 1, 0, 1] = SURELY_NEGATIVE
    first = np.concatenate([_two_rows(kernel1), at_marks.reshape(4, 3, 1, -1)], axis=2)
    x = graph.convolve(marked, first, np.tile(bias1, 2), stride=(2, 1), pads=(2, 1, 2, 1))
    second = _of_pairs(_two_rows(kernel2))
    x = graph.convolve(graph.add("Relu", x), second, np.tile(bias2, 2), pads=(0, 1, 0, 1))
    third = _of_pairs(_from_row(kernel3, 1))
    x = graph.convolve(graph.add("Relu", x), third, bias3, stride=(1, 2), pads=(1, 1, 0, 1))
    return graph.add("Relu", x)


def _from_row(
    kernel: Float32[np.ndarray, "3 3 C C2"], start: int
) -> Float32[np.ndarray, "4 3 C C2"]:
    """A kernel that takes three of four rows, the first of them or the last."""
    return np.pad(kernel, ((start, 1 - start), (0, 0), (0, 0), (0, 0)))


def _two_rows(kernel: Float32[np.ndarray, "3 3 C C2"]) -> Float32[np.ndarray, "4 3 C 2*C2"]:
    """A kernel that makes two rows of four."""
    return np.concatenate([_from_row(kernel, 0), _from_row(kernel, 1)], axis=3)


def _of_pairs(kernel: Float32[np.ndarray, "4 3 C C2"]) -> Float32[np.ndarray, "2 3 2*C C2"]:
    """The same kernel for rows in pairs."""
    apart = kernel.reshape(2, 2, *kernel.shape[1:]).swapaxes(1, 2)
    return apart.reshape(2, 3, -1, kernel.shape[3])
