"""The same descriptors and training step in PyTorch, written to be read.

An independent implementation: it shares no code with the JAX one, follows the paper's formulas
literally (it builds every position's Kronecker product), and relies on torch's layers and SGD. It
does not import JAX. `kjax.parity.torch_twin` is faster.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import iv
from torch import Tensor, nn


def von_mises_map(angle: Tensor, kappa: float, s: int) -> Tensor:
    """Compute f(α) ∈ ℝ^(2s+1) for a vector of angles, from the unscaled closed form."""
    gamma = [(iv(0, kappa) - math.exp(-kappa)) / (2 * math.sinh(kappa))]
    gamma += [iv(i, kappa) / math.sinh(kappa) for i in range(1, s + 1)]
    columns = [math.sqrt(gamma[0]) * torch.ones_like(angle)]
    columns += [math.sqrt(gamma[i]) * torch.cos(i * angle) for i in range(1, s + 1)]
    columns += [math.sqrt(gamma[i]) * torch.sin(i * angle) for i in range(1, s + 1)]
    return torch.stack(columns, dim=-1)


def make_trunk(dropout: float, channels: Sequence[int]) -> list[nn.Module]:
    """Return HardNet's layers 0–18: six convolutions with BatchNorm and ReLU, then dropout."""
    layers: list[nn.Module] = []
    channels_in = 1
    for channels_out, stride in zip(channels, (1, 1, 2, 1, 2, 1), strict=True):
        layers += [
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out, affine=False),
            nn.ReLU(),
        ]
        channels_in = channels_out
    return [*layers, nn.Dropout(dropout)]


class TorchDescriptor(nn.Module):
    """Any of the paper's descriptors, with the arguments of `kjax.build` and its weight names."""

    def __init__(
        self,
        head: str,
        s: int = 2,
        patch_size: int = 32,
        dropout: float = 0.0,
        *,
        kappa_xy: float = 1.0,
        kappa_rho: float = 8.0,
        kappa_theta: float = 8.0,
        scale_xy: float = math.pi / 2,
        scale_rho: float = math.pi,
        scale_theta: float = 1.0,
        corner_radius: float = 1.0,
        channels: Sequence[int] = (32, 32, 64, 64, 128, 128),
        dimension: int = 128,
        context: Sequence[int | float] = (1,),
    ) -> None:
        super().__init__()
        self.patches_per_point = len(context)
        if len(context) > 1:
            self.context = nn.Linear(128 * len(context), dimension, bias=False)
            dimension = 128
        self.channels = tuple(channels)
        self.head_name, self.s, self.patch_size = head, s, patch_size
        self.kappas = (kappa_xy, kappa_rho, kappa_theta)
        self.scales = (scale_xy, scale_rho, scale_theta)
        self.corner_radius = corner_radius
        layers = make_trunk(dropout, channels)
        if head == "hardnet":
            layers += [
                nn.Conv2d(channels[-1], dimension, patch_size // 4, bias=False),
                nn.BatchNorm2d(dimension, affine=False),
            ]
        self.features = nn.Sequential(*layers)
        if head == "combined_star":
            self.features_polar = nn.Sequential(*make_trunk(dropout, channels))
        systems = {"xy": 1, "polar": 1, "combined": 2, "combined_star": 2}.get(head, 0)
        if systems:
            self.head = nn.Linear(systems * channels[-1] * (2 * s + 1) ** 2, dimension)
        self.apply(initialize)
        if len(context) > 1:
            nn.init.orthogonal_(self.context.weight)

    def forward(self, patches: Tensor) -> Tensor:
        """Compute ℓ2-normalised descriptors of patches [B,C,N,N]; C is 1 without context."""
        x = self.input_norm(patches.flatten(0, 1)[:, None])
        phi = self.features(x)
        match self.head_name:
            case "hardnet" | "cat":
                psi = phi.flatten(1)
            case "sum":
                psi = phi.sum(dim=(2, 3))
            case "xy":
                psi = self.head(self.encode_xy(phi))
            case "polar":
                psi = self.head(self.encode_polar(phi))
            case "combined" | "combined_star":
                shared = self.head_name == "combined"
                phi_polar = phi if shared else self.features_polar(x)
                encoded = [self.encode_xy(phi), self.encode_polar(phi_polar)]
                psi = self.head(torch.cat(encoded, dim=1))
            case _:
                raise ValueError(f"unknown head {self.head_name!r}")
        psi = psi / torch.sqrt((psi * psi).sum(dim=1, keepdim=True) + 1e-10)
        if self.patches_per_point == 1:
            return psi
        joined = self.context(psi.view(len(patches), -1))
        return joined / torch.sqrt((joined * joined).sum(dim=1, keepdim=True) + 1e-10)

    @staticmethod
    def input_norm(patches: Tensor) -> Tensor:
        """Normalise each patch by its own mean and unbiased deviation, without gradient."""
        flat = patches.flatten(1).detach()
        mean = flat.mean(dim=1).view(-1, 1, 1, 1)
        std = flat.std(dim=1, unbiased=True).view(-1, 1, 1, 1)
        return (patches - mean) / (std + 1e-7)

    def encode_xy(self, phi: Tensor) -> Tensor:
        """Compute Σ_p w_p φ^p ⊗ f(x_p) ⊗ f(y_p)."""
        x, y = self.grid(phi)
        f_x = von_mises_map(self.scales[0] * x, self.kappas[0], self.s)
        f_y = von_mises_map(self.scales[0] * y, self.kappas[0], self.s)
        return self.sum_of_kronecker_products(phi, f_x, f_y)

    def encode_polar(self, phi: Tensor) -> Tensor:
        """Compute Σ_p w_p φ^p ⊗ f(ρ_p) ⊗ f(θ_p)."""
        x, y = self.grid(phi)
        rho = torch.sqrt((x * x + y * y) / 2)
        f_rho = von_mises_map(self.scales[1] * rho, self.kappas[1], self.s)
        f_theta = von_mises_map(self.scales[2] * torch.atan2(y, x), self.kappas[2], self.s)
        return self.sum_of_kronecker_products(phi, f_rho, f_theta)

    @staticmethod
    def grid(phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return column and row of every position, −1 to 1, in double precision."""
        n = phi.shape[-1]
        line = torch.linspace(-1, 1, n, dtype=torch.float64, device=phi.device)
        return line.repeat(n), line.repeat_interleave(n)

    def sum_of_kronecker_products(self, phi: Tensor, f: Tensor, h: Tensor) -> Tensor:
        """Add up w_p φ^p ⊗ f_p ⊗ h_p, building every product."""
        x, y = self.grid(phi)
        weight = torch.exp(-(self.corner_radius**2) * (x * x + y * y) / 2)
        vectors = phi.flatten(2).transpose(1, 2)  # [B, n², c]
        f, h, weight = (t.to(phi.dtype) for t in (f, h, weight))
        products = vectors[..., :, None, None] * f[:, None, :, None] * h[:, None, None, :]
        return (weight[:, None, None, None] * products).sum(dim=1).flatten(1)


def initialize(module: nn.Module) -> None:
    """Set orthogonal weights of gain 0.6 and biases of 0.01."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, gain=0.6)
        if module.bias is not None:
            nn.init.constant_(module.bias, 0.01)


def hardest_in_batch_loss(
    anchors: Tensor, positives: Tensor, *, margin: float = 1.0, anchor_swap: bool = False
) -> Tensor:
    """Compute HardNet's triplet margin loss, averaged over the batch."""
    squared = (
        (anchors**2).sum(dim=1)[:, None]
        + (positives**2).sum(dim=1)[None, :]
        - 2 * anchors @ positives.t()
    )
    distances = torch.sqrt(squared + 1e-6) + 1e-8
    candidates = distances + 10 * torch.eye(
        len(anchors), dtype=anchors.dtype, device=anchors.device
    )
    candidates = candidates + 10 * (candidates < 0.008)
    negative = candidates.min(dim=1).values
    if anchor_swap:
        negative = torch.minimum(negative, candidates.min(dim=0).values)
    return torch.clamp(margin + distances.diagonal() - negative, min=0).mean()


def make_sgd(model: nn.Module, learning_rate: float) -> torch.optim.SGD:
    """Return the optimiser of HardNet's release."""
    return torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=0.9, dampening=0.9, weight_decay=1e-4
    )


def train(
    model: TorchDescriptor,
    batches: Sequence[np.ndarray],
    *,
    learning_rate: float = 10.0,
    total_steps: int,
    anchor_swap: bool = False,
    joint_batch_norm: bool = False,
) -> list[float]:
    """Take one SGD step per batch of pairs, with linear decay, and return the losses."""
    optimizer = make_sgd(model, learning_rate)
    losses = []
    for step, pairs in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - step / total_steps)
        loss = batch_loss(model, pairs, anchor_swap=anchor_swap, joint_batch_norm=joint_batch_norm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batch_loss(
    model: TorchDescriptor, pairs: np.ndarray, *, anchor_swap: bool, joint_batch_norm: bool
) -> Tensor:
    """Compute the training loss of one batch of pairs [B,2,N,N], with context [B,2,C,N,N]."""
    dtype = next(model.parameters()).dtype
    patches = torch.from_numpy(np.asarray(pairs)).to(dtype)
    views = (patches if patches.ndim == 5 else patches[:, :, None]).unbind(dim=1)
    if joint_batch_norm:
        anchors, positives = model(torch.cat(views)).chunk(2)
    else:
        anchors, positives = map(model, views)
    return hardest_in_batch_loss(anchors, positives, anchor_swap=anchor_swap)
