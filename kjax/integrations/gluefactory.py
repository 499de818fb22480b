"""kjax as an extractor of glue-factory, which finds it by the name of this module.

    model:
      name: two_view_pipeline
      extractor: {name: kjax.integrations.gluefactory, weights: best, max_num_keypoints: 2048}
      matcher: {name: matchers.nearest_neighbor_matcher}

Each photograph of a batch is described within its own size, and shorter rows are filled up: with
random positions, as glue-factory's own extractors do, and zeros for everything else. Positions
have the first pixel's outer corner at (0, 0), scales are σ, and `oris` radians.
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


class Extractor(BaseModel):
    """SIFT's keypoints, described by kjax, which itself is not trained."""

    default_conf: ClassVar = {
        "weights": shipped.DEFAULT,
        "max_num_keypoints": 2048,
        "force_num_keypoints": False,  # fill up to this number, not to the batch's largest
    }
    required_data_keys: ClassVar = ["image"]

    def _init(self, conf: Any) -> None:
        self.describer = kjax.load(conf.weights)
        self.set_initialized()

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Features of photographs [B,1 or 3,H,W] from 0 to 1; `image_size` tells padding."""
        images, sizes = data["image"], data.get("image_size")
        rows = [
            self._describe(image if sizes is None else _inside(image, sizes[number]))
            for number, image in enumerate(images)
        ]
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

    def _describe(self, image: Tensor) -> dict[str, Tensor]:
        found = self.describer.describe_image(
            image.permute(1, 2, 0).cpu().numpy(), max_keypoints=self.conf.max_num_keypoints
        )
        columns = {name: column[0] for name, column in to_dictionary(found).items()}
        del columns["image_size"]
        columns["keypoints"] = columns["keypoints"] + FIRST_PIXEL["corner"]
        return {name: torch.from_numpy(column).float() for name, column in columns.items()}

    def loss(self, pred: Any, data: Any) -> Any:
        """There is none."""
        raise NotImplementedError


def _inside(image: Tensor, size: Tensor) -> Tensor:
    """The part of a padded photograph that is one."""
    width, height = (int(side) for side in size)
    return image[:, :height, :width]
