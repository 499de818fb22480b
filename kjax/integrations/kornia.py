"""kjax's descriptors as a kornia module: local affine frames in, descriptors out, in torch.

    from kjax.integrations.kornia import LAFDescriptor

    descriptor = LAFDescriptor("best").to(device)
    descriptors = descriptor(images, lafs)  # [B,1 or 3,H,W] and [B,N,2,3] to [B,N,128]

kornia cuts the patches and the PyTorch twin describes them: neither needs JAX, images and frames
get gradients, and affine shapes count. A frame is taken as it is, from −1 to 1. The frames of
kornia's detectors have a side of 12σ; the weights expect wider ones:

    LocalFeature(detector, descriptor, scaling_coef=descriptor.scaling_coef)
"""

from pathlib import Path

from kornia import feature
from torch import Tensor, nn

from kjax.data.cutting.patches import EXTENT
from kjax.data.phototour import PATCH_SIDE
from kjax.parity.torch_twin import load
from kjax.weights import shipped
from kjax.weights.files import read_metadata

KORNIA_EXTENT = 6.0
"""Side of the frames of kornia's detectors (its `mr_size`) over the keypoint's diameter."""


class PatchModule(nn.Module):
    """Describe patches [B,1,64,64], the size of training sets."""

    patch_size = PATCH_SIDE

    def __init__(self, source: str | Path = shipped.DEFAULT) -> None:
        super().__init__()
        self.network = load(source)
        if self.network.context is not None:
            raise shipped.no_surroundings(str(source))

    def forward(self, patches: Tensor) -> Tensor:
        """Return unit vectors [B,D]; patches are resized as in training."""
        size = self.network.patch_size
        return self.network(
            nn.functional.interpolate(patches, (size, size), mode="bilinear", align_corners=False)
        )


class LAFDescriptor(feature.LAFDescriptor):
    """kornia's `LAFDescriptor` with weights of kjax, a shipped name or a weights file.

    `scaling_coef` is the factor from the frames of kornia's detectors to those of the weights.
    """

    def __init__(self, source: str | Path = shipped.DEFAULT) -> None:
        super().__init__(PatchModule(source), patch_size=PATCH_SIDE)
        name = str(source).partition(":")[0]
        known = shipped.card(name) if shipped.find(name) else read_metadata(Path(name))
        extent = EXTENT if known is None or known.extent is None else known.extent
        self.scaling_coef = extent / KORNIA_EXTENT
