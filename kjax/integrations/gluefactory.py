"""kjax as an extractor of glue-factory, which finds it by the name of this module.

    model:
      name: two_view_pipeline
      extractor: {name: kjax.integrations.gluefactory, weights: best, max_num_keypoints: 2048}
      matcher: {name: matchers.nearest_neighbor_matcher}

Each image of a batch is described within its own size. Shorter rows are padded as in glue-factory's
own extractors: random positions, and zeros for everything else. Positions have the first pixel's
outer corner at (0, 0), scales are σ, and `oris` are radians.
"""

from typing import Any, ClassVar

import torch
from gluefactory.models.base_model import BaseModel
from gluefactory.models.utils.misc import pad_and_stack
from torch import Tensor

import kjax
from kjax.images.conventions import FIRST_PIXEL
from kjax.images.exchange.npz import to_dictionary
from kjax.weights import shipped


class GlueFactoryExtractor(BaseModel):
    """SIFT keypoints described by kjax, which is not trained here."""

    default_conf: ClassVar = {
        "weights": shipped.DEFAULT,
        "max_num_keypoints": 2048,
        "force_num_keypoints": False,  # pad to this number, not to the batch's largest
    }
    required_data_keys: ClassVar = ["image"]

    def _init(self, conf: Any) -> None:
        self.describer = kjax.load(conf.weights)
        self.set_initialized()

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Describe images [B,1 or 3,H,W] from 0 to 1; `image_size` is their size before padding."""
        images, sizes = data["image"], data.get("image_size")
        rows = []
        for number, image in enumerate(images):
            width, height = map(int, image.shape[:0:-1] if sizes is None else sizes[number])
            found = self.describer.describe_image(
                image[:, :height, :width].permute(1, 2, 0).cpu().numpy(),
                max_keypoints=self.conf.max_num_keypoints,
            )
            columns = {name: column[0] for name, column in to_dictionary(found).items()}
            del columns["image_size"]
            columns["keypoints"] = columns["keypoints"] + FIRST_PIXEL["corner"]
            rows.append({name: torch.from_numpy(one).float() for name, one in columns.items()})
        length = self.conf.max_num_keypoints if self.conf.force_num_keypoints else None
        bounds = {"mode": "random_c", "bounds": (0, min(images.shape[-2:]))}
        return {
            name: pad_and_stack(
                [row[name] for row in rows],
                length,
                pad_dim=-1 if rows[0][name].ndim == 1 else -2,
                **(bounds if name == "keypoints" else {}),
            ).to(images.device)
            for name in rows[0]
        }

    def loss(self, pred: Any, data: Any) -> Any:
        """Raise: there is no loss."""
        raise NotImplementedError
