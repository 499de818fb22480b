"""JAX against PyTorch, number by number: layers, descriptor, loss, gradients, training.

Both sides start from the same weights and see the same patches. Relative differences are
‖jax − torch‖ / ‖torch‖ over all numbers of a row.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
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
from kjax.train.step import StepConfig, create_state, train_step
from kjax.weights.torch_names import from_torch, to_arrays


class Difference(NamedTuple):
    """One row of the comparison."""

    quantity: str
    largest: float
    """Largest absolute difference."""
    relative: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The model and the training that are compared; float64 needs JAX's x64 mode.

    The learning rate decays linearly to zero over `steps`.
    """

    head: str
    s: int = 2
    patch_size: int = 32
    dtype: str = "float32"
    learning_rate: float = 10.0
    steps: int = 20
    step: StepConfig = dataclasses.field(default_factory=StepConfig)
    channels: tuple[int, ...] = CHANNELS
    context: tuple[float, ...] = (1.0,)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of both sides' models."""
        names = ("s", "patch_size", "channels", "context")
        return {name: getattr(self, name) for name in names}

    def jax_model(self) -> Descriptor:
        """Return the linen module, without dropout."""
        return build(self.head, **self.fields, dropout=0.0, dtype=self.dtype)

    def torch_model(self, state_dict: Mapping[str, Any]) -> TorchDescriptor:
        """Return the torch module with these weights."""
        with torch.device("meta"):  # initial weights cost nothing there
            model = TorchDescriptor(self.head, **self.fields)
        copies = {name: torch.tensor(np.asarray(value)) for name, value in state_dict.items()}
        model.load_state_dict(copies, assign=True)
        return model.to(getattr(torch, self.dtype))

    def variables(self, state_dict: Mapping[str, Any]) -> Any:
        """Return the linen module's variables."""
        variables = from_torch(state_dict, self.jax_model())
        return jax.tree.map(lambda leaf: leaf.astype(self.dtype), variables)

    def loss_rules(self) -> dict[str, bool]:
        """Return the rules as arguments of the reference's loss."""
        joint = self.step.joint_batch_norm
        return {"anchor_swap": self.step.loss.anchor_swap, "joint_batch_norm": joint}


def random_state_dict(comparison: Comparison, *, seed: int) -> dict[str, torch.Tensor]:
    """Return initial weights, with running statistics like those of a trained network."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        state = TorchDescriptor(comparison.head, **comparison.fields).state_dict()
    for name, tensor in state.items():
        if name.endswith("running_mean"):
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
        if name.endswith("running_var"):
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return state


def compare(
    comparison: Comparison, state_dict: Mapping[str, Any], batches: Sequence[np.ndarray]
) -> Iterator[Difference]:
    """Yield all rows as they are computed, for these initial weights of both sides.

    Each training step has a batch of pairs [B,2,N,N], with context [B,2,C,N,N]; the first also
    serves for all other rows.
    """
    batches = [np.asarray(batch, comparison.dtype) for batch in batches]
    for train in (False, True):
        yield from compare_forward(comparison, state_dict, batches[0][:, 0], train=train)
    yield from compare_training(comparison, state_dict, batches)


def compare_forward(
    comparison: Comparison, state_dict: Mapping[str, Any], patches: np.ndarray, *, train: bool
) -> Iterator[Difference]:
    """Compare descriptors, and in inference the outputs of all BatchNorms.

    Training normalises by batch statistics, inference by running ones.
    """
    reference = comparison.torch_model(state_dict).train(train)
    layers: dict[str, np.ndarray] = {}
    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(
                lambda _, __, output, name=name: layers.update(
                    {name: output.permute(0, 2, 3, 1).numpy()}
                )
            )
    with torch.no_grad():
        by_point = patches if patches.ndim == 4 else patches[:, None]
        expected = reference(torch.from_numpy(by_point)).numpy()
    # Not compiled as a whole: single operations compile once for all heads.
    found, updated = comparison.jax_model().apply(
        comparison.variables(state_dict),
        jnp.asarray(patches),
        train=train,
        capture_intermediates=lambda module, _: isinstance(module, BatchNorm),
        mutable=["intermediates", "batch_stats"],
    )
    if not train:
        outputs = [  # in torch's order
            np.asarray(output["__call__"][0])
            for part in ("trunk", "head", "trunk_polar")
            for output in updated["intermediates"].get(part, {}).values()
        ]
        for (name, wanted), output in zip(layers.items(), outputs, strict=True):
            yield _difference(f"layer {name}", output.reshape(wanted.shape), wanted)
    yield _difference(f"descriptor ({'train' if train else 'eval'})", found, expected)


def compare_training(
    comparison: Comparison, state_dict: Mapping[str, Any], batches: Sequence[np.ndarray]
) -> Iterator[Difference]:
    """Compare loss and gradients of the first batch, then the results of an SGD step per batch."""
    recorder = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda gradients, _, params=None: (gradients, gradients),
    )
    sgd = torch_sgd(linear_decay(comparison.learning_rate, comparison.steps))
    optimizer, model = optax.chain(recorder, sgd), comparison.jax_model()
    step = jax.jit(
        functools.partial(train_step, model=model, optimizer=optimizer, config=comparison.step)
    )
    state = create_state(optimizer, comparison.variables(state_dict))
    losses: list[float] = []
    for batch in batches:
        # Without dropout, the key is not used.
        state, metrics = step(state, jnp.asarray(batch), jax.random.key(0))
        losses.append(float(metrics["loss"]))
        if len(losses) == 1:
            reference = comparison.torch_model(state_dict).train()
            loss = torch_reference.batch_loss(reference, batch, **comparison.loss_rules())
            loss.backward()
            yield _difference("loss", losses[0], loss.detach().numpy())
            found = to_arrays({"params": state.opt_state[0], "batch_stats": state.batch_stats})
            for name, parameter in reference.named_parameters():
                assert parameter.grad is not None
                yield _difference(f"gradient {name}", found[name], parameter.grad.numpy())
    reference = comparison.torch_model(state_dict).train()
    expected_losses = torch_reference.train(
        reference,
        batches,
        learning_rate=comparison.learning_rate,
        total_steps=comparison.steps,
        **comparison.loss_rules(),
    )
    found = to_arrays({"params": state.params, "batch_stats": state.batch_stats})
    expected = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    after = f"{len(batches)} steps"
    yield _difference(f"losses of {after}", losses, np.asarray(expected_losses))
    for quantity, kinds in (
        ("parameters", ("weight", "bias")),
        ("running statistics", ("running_mean", "running_var")),
    ):
        rows = [
            _difference(f"{quantity} after {after}", found[name], expected[name])
            for name in found
            if name.endswith(kinds)
        ]
        yield max(rows, key=lambda row: row.relative)


def _difference(quantity: str, found: Any, expected: np.ndarray) -> Difference:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    difference = found - expected
    size = float(np.linalg.norm(expected))
    relative = float(np.linalg.norm(difference)) / size if size else float(np.any(difference))
    return Difference(quantity, float(np.abs(difference).max()), relative)
