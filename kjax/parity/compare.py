"""JAX against PyTorch, number by number: layers, descriptor, loss, gradients, training.

Both sides start from the same weights and see the same patches. Relative differences are
‖jax − torch‖ / ‖torch‖ over all numbers of a row.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from kjax.model import CHANNELS
from kjax.model.descriptor import Descriptor, build
from kjax.model.layers import BatchNorm
from kjax.parity import torch_reference
from kjax.parity.torch_reference import TorchDescriptor
from kjax.train.optim import linear_decay, torch_sgd
from kjax.train.step import StepConfig, TrainState, create_state, train_step
from kjax.weights.torch_names import from_torch, to_arrays

KEY_SEED = 0  # no dropout here, so nothing random happens in a step


class Difference(NamedTuple):
    """One row of the comparison."""

    quantity: str
    largest: float
    """Largest absolute difference."""
    relative: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        head: as in `kjax.build`.
        s: number of frequencies.
        patch_size: side of the patches.
        dtype: "float32" or "float64" (needs JAX's x64 mode).
        learning_rate: of the training steps, falling linearly to zero.
        steps: number of training steps, over which it falls.
        step: mining and BatchNorm rules.
        channels: of the six convolutions.
    """

    head: str
    s: int = 2
    patch_size: int = 32
    dtype: str = "float32"
    learning_rate: float = 10.0
    steps: int = 20
    step: StepConfig = dataclasses.field(default_factory=StepConfig)
    channels: tuple[int, ...] = CHANNELS

    def jax_model(self) -> Descriptor:
        """The linen module, without dropout."""
        return build(
            self.head,
            s=self.s,
            patch_size=self.patch_size,
            dropout=0.0,
            dtype=self.dtype,
            channels=self.channels,
        )

    def initial_torch_model(self) -> TorchDescriptor:
        """The torch module with initial weights."""
        return TorchDescriptor(self.head, self.s, self.patch_size, channels=self.channels)

    def torch_model(self, state_dict: Mapping[str, Any]) -> TorchDescriptor:
        """The torch module with the given weights."""
        with torch.device("meta"):  # whose initial weights cost nothing
            model = self.initial_torch_model()
        copies = {name: torch.tensor(np.asarray(value)) for name, value in state_dict.items()}
        model.load_state_dict(copies, assign=True)
        return model.to(getattr(torch, self.dtype))


def random_state_dict(settings: Comparison, *, seed: int) -> dict[str, torch.Tensor]:
    """Initial weights, with running statistics as a trained network might have."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        state = settings.initial_torch_model().state_dict()
    for name, tensor in state.items():
        if name.endswith("running_mean"):
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
        if name.endswith("running_var"):
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return state


def compare(
    settings: Comparison, state_dict: Mapping[str, Any], batches: Sequence[np.ndarray]
) -> Iterator[Difference]:
    """All rows, one after the other as they are computed.

    Args:
        settings: what is compared.
        state_dict: the weights that both sides start from.
        batches: pairs of patches [B,2,N,N], one batch for each training step; the first serves for
            all that comes before.
    """
    batches = [np.asarray(batch, settings.dtype) for batch in batches]
    yield from compare_layers(settings, state_dict, batches[0][:, 0])
    for train in (False, True):
        yield compare_descriptors(settings, state_dict, batches[0][:, 0], train=train)
    yield from compare_gradients(settings, state_dict, batches[0])
    yield from compare_training(settings, state_dict, batches)


def compare_layers(
    settings: Comparison, state_dict: Mapping[str, Any], patches: np.ndarray
) -> Iterator[Difference]:
    """Output of every BatchNorm, in inference."""
    reference = settings.torch_model(state_dict).eval()
    recorded: dict[str, np.ndarray] = {}

    def record(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            recorded[name] = output.permute(0, 2, 3, 1).numpy()

        return hook

    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(record(name))
    with torch.no_grad():
        reference(_as_tensor(patches))
    captured = _batch_norm_outputs(settings, state_dict, patches)
    for (name, expected), found in zip(recorded.items(), captured, strict=True):
        yield _difference(f"layer {name}", found.reshape(expected.shape), expected)


def compare_descriptors(
    settings: Comparison, state_dict: Mapping[str, Any], patches: np.ndarray, *, train: bool
) -> Difference:
    """Descriptors, normalised by running or by batch statistics."""
    reference = settings.torch_model(state_dict).train(train)
    with torch.no_grad():
        expected = reference(_as_tensor(patches)).numpy()
    found = _describe(settings, _variables(settings, state_dict), patches, train=train)
    return _difference(f"descriptor ({'train' if train else 'eval'})", found, expected)


def compare_gradients(
    settings: Comparison, state_dict: Mapping[str, Any], pairs: np.ndarray
) -> Iterator[Difference]:
    """Loss of one batch, and its gradient in every parameter."""
    reference = settings.torch_model(state_dict).train()
    expected = torch_reference.batch_loss(
        reference,
        pairs,
        anchor_swap=settings.step.loss.anchor_swap,
        joint_batch_norm=settings.step.joint_batch_norm,
    )
    expected.backward()
    loss, state = _train_jax(settings, state_dict, [pairs])
    yield _difference("loss", loss[0], expected.detach().numpy())
    found = to_arrays({"params": state.opt_state.gradients, "batch_stats": state.batch_stats})
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        yield _difference(f"gradient {name}", found[name], parameter.grad.numpy())


def compare_training(
    settings: Comparison, state_dict: Mapping[str, Any], batches: Sequence[np.ndarray]
) -> Iterator[Difference]:
    """Parameters, running statistics and losses after one SGD step per batch."""
    reference = settings.torch_model(state_dict).train()
    expected_losses = torch_reference.train(
        reference,
        batches,
        learning_rate=settings.learning_rate,
        total_steps=settings.steps,
        anchor_swap=settings.step.loss.anchor_swap,
        joint_batch_norm=settings.step.joint_batch_norm,
    )
    losses, state = _train_jax(settings, state_dict, batches)
    found = to_arrays({"params": state.params, "batch_stats": state.batch_stats})
    expected = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    after = f"after {len(batches)} steps"
    yield _difference(f"losses of {len(batches)} steps", losses, np.asarray(expected_losses))
    for quantity, chosen in (
        (f"parameters {after}", [name for name in found if "weight" in name or "bias" in name]),
        (f"running statistics {after}", [name for name in found if "running" in name]),
    ):
        yield max(
            (_difference(quantity, found[name], expected[name]) for name in chosen),
            key=lambda row: row.relative,
        )


def _train_jax(
    settings: Comparison, state_dict: Mapping[str, Any], batches: Sequence[np.ndarray]
) -> tuple[np.ndarray, TrainState]:
    """The losses, and a state whose optimiser holds the last gradients."""
    state = create_state(_recording_optimizer(settings), _variables(settings, state_dict))
    step = _compiled_step(settings)
    losses = []
    for batch in batches:
        state, metrics = step(state, jnp.asarray(batch), jax.random.key(KEY_SEED))
        losses.append(float(metrics["loss"]))
    return np.asarray(losses), state


@functools.lru_cache(maxsize=4)
def _compiled_step(settings: Comparison) -> Callable[..., Any]:
    # Kept, so that gradients and training are of one program, which takes seconds to compile.
    return jax.jit(
        functools.partial(
            train_step,
            model=settings.jax_model(),
            optimizer=_recording_optimizer(settings),
            config=settings.step,
        )
    )


class _Recorded(NamedTuple):
    gradients: Any
    inner: Any


def _recording_optimizer(settings: Comparison) -> optax.GradientTransformation:
    """The training's SGD, which keeps the gradients it was given last."""
    sgd = torch_sgd(linear_decay(settings.learning_rate, settings.steps))

    def start(params: Any) -> _Recorded:
        return _Recorded(jax.tree.map(jnp.zeros_like, params), sgd.init(params))

    def update(gradients: Any, state: _Recorded, params: Any = None) -> tuple[Any, _Recorded]:
        updates, inner = sgd.update(gradients, state.inner, params)
        return updates, _Recorded(gradients, inner)

    return optax.GradientTransformation(start, update)


def _batch_norm_outputs(
    settings: Comparison, state_dict: Mapping[str, Any], patches: np.ndarray
) -> list[np.ndarray]:
    """The outputs in torch's order: first trunk, fully connected head, second trunk."""
    model = settings.jax_model()
    _, captured = model.apply(
        _variables(settings, state_dict),
        jnp.asarray(patches),
        capture_intermediates=lambda module, _: isinstance(module, BatchNorm),
        mutable=["intermediates"],
    )
    tree = captured["intermediates"]
    return [
        np.asarray(output["__call__"][0])
        for part in ("trunk", "head", "trunk_polar")
        for output in tree.get(part, {}).values()
    ]


def _describe(settings: Comparison, variables: Any, patches: np.ndarray, *, train: bool) -> Any:
    # Not compiled as a whole: single operations compile once for all heads, and run as exactly.
    model = settings.jax_model()
    if not train:
        return model.apply(variables, jnp.asarray(patches))
    return model.apply(variables, jnp.asarray(patches), train=True, mutable=["batch_stats"])[0]


def _variables(settings: Comparison, state_dict: Mapping[str, Any]) -> Any:
    variables = from_torch(state_dict, settings.jax_model())
    return jax.tree.map(lambda leaf: leaf.astype(settings.dtype), variables)


def _as_tensor(patches: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(patches[:, None])


def _difference(quantity: str, found: Any, expected: np.ndarray) -> Difference:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    difference = found - expected
    size = float(np.linalg.norm(expected))
    relative = float(np.linalg.norm(difference)) / size if size else float(np.any(difference))
    return Difference(quantity, float(np.abs(difference).max()), relative)
