import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kjax.train.optim import linear_decay, scale_by_torch_momentum, torch_sgd


def test_first_gradient_is_not_dampened():
    transform = scale_by_torch_momentum(momentum=0.9, dampening=0.9)
    state = transform.init(jnp.zeros(()))
    buffers = []
    for _ in range(3):
        update, state = transform.update(jnp.ones(()), state)
        buffers.append(float(update))
    np.testing.assert_allclose(buffers, [1, 0.9 + 0.1, 0.9 + 0.1])
    update, _ = transform.update(jnp.asarray(5.0), state)
    assert float(update) == pytest.approx(0.9 * 1 + 0.1 * 5)


@pytest.mark.parametrize("dampening", [0.0, 0.5, 0.9])
def test_equals_torch(rng, dampening):
    torch = pytest.importorskip("torch")
    steps = 12
    gradients = rng.normal(size=(steps, 7)).astype(np.float32)
    start = rng.normal(size=7).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    options = {"dampening": dampening, "weight_decay": 1e-2}
    reference = torch.optim.SGD([parameter], lr=10.0, momentum=0.9, **options)
    optimizer = torch_sgd(linear_decay(10.0, steps), **options)
    params = jnp.asarray(start)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for step, gradient in enumerate(gradients):
        reference.param_groups[0]["lr"] = 10.0 * (1 - step / steps)
        parameter.grad = torch.from_numpy(gradient)
        reference.step()
        updates, state = update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params, parameter.detach().numpy(), rtol=2e-5)


def test_the_learning_rates_of_the_hardnet_release():
    """Its formula: lr · (1 − step · batch / (triplets · epochs)), step by step."""
    batch, triplets, epochs = 512, 51_200, 10
    schedule = linear_decay(10.0, epochs * triplets // batch)
    for step in (0, 1, 500, 999, 1000):  # 0 at the end
        expected = 10.0 * (1 - step * batch / (triplets * epochs))
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5, abs=1e-5)
