import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from models import make_model, random_patches

from kjax.runs.config import LossConfig
from kjax.train.losses import squared_norm_difference
from kjax.train.step import StepConfig, loss_and_stats


def test_hynets_norm_term_reaches_the_loss(rng):
    model, variables = make_model("xy", s=1, patch_size=16, dropout=0.0)
    pairs = jnp.asarray(random_patches(rng, 8, 16).reshape(4, 2, 16, 16))
    hynet = LossConfig(name="hynet", norm_weight=0.0)

    @jax.jit
    def losses():
        return [
            loss_and_stats(
                variables["params"],
                variables["batch_stats"],
                pairs,
                jax.random.key(0),
                model=model,
                config=StepConfig(loss=dataclasses.replace(hynet, norm_weight=weight)),
            )[0]
            for weight in (0.0, 0.5)
        ]

    without, with_norms = losses()
    raw = [
        model.apply(variables, view, train=True, normalize=False, mutable=["batch_stats"])[0]
        for view in (pairs[:, 0], pairs[:, 1])
    ]
    expected = 0.5 * squared_norm_difference(*raw).mean()
    assert expected > 1e-3
    np.testing.assert_allclose(with_norms - without, expected, rtol=1e-4)
