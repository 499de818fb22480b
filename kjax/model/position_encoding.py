"""Position encoding: von Mises feature maps on Cartesian and polar grids.

A position p of the n×n feature map is described by two angles, (x, y) or (ρ, θ). Each angle α is
lifted to f(α) ∈ ℝ^(2s+1) whose inner products are a shift-invariant kernel,
f(α)ᵀf(β) = k(α−β), the von Mises kernel truncated to s frequencies. All of it depends on n and a
few constants only, so it is computed once, in float64, outside compiled programs.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

CoordinateSystem = Literal["xy", "polar"]
SAMPLES, SHARPEST = 4096, 1e4
"""Angles at which the kernel is sampled, and the maximum κ for which they are enough."""


@dataclasses.dataclass(frozen=True)
class PositionKernel:
    """Constants of f and w that the paper leaves open; the defaults are those of the MKD code.

    Attributes:
        s: number of frequencies; f maps to 2s+1 numbers.
        kappa_xy: concentration κ of the kernels on x and on y.
        kappa_rho: concentration κ of the kernel on ρ.
        kappa_theta: concentration κ of the kernel on θ.
        scale_xy: angle of the Cartesian coordinate 1, the patch border.
        scale_rho: angle of the radius 1, the patch corner.
        scale_theta: factor on θ; values other than 1 break its periodicity.
        corner_radius: ρ at the corner in the centre weight exp(−ρ²); published: 1 and √2.
    """

    s: int = 1
    kappa_xy: float = 1.0
    kappa_rho: float = 8.0
    kappa_theta: float = 8.0
    scale_xy: float = math.pi / 2
    scale_rho: float = math.pi
    scale_theta: float = 1.0
    corner_radius: float = 1.0

    def __post_init__(self) -> None:
        if self.s < 1:
            raise ValueError(f"s, the number of frequencies, must be at least 1, not {self.s}")
        for name in ("kappa_xy", "kappa_rho", "kappa_theta"):
            if not 0 < (kappa := getattr(self, name)) <= SHARPEST:
                raise ValueError(f"{name} must be positive, at most {SHARPEST:g}, not {kappa}")

    @property
    def dim(self) -> int:
        """Length (2s+1)² of the joint encoding of a position."""
        return (2 * self.s + 1) ** 2


def von_mises_coefficients(kappa: float, s: int) -> Float[np.ndarray, "{s}+1"]:
    """Return Fourier coefficients γ₀ … γ_s of the von Mises kernel with k(0)=1 and k(π)=0.

    γ₀ = (I₀(κ) − e^(−κ)) / (2 sinh κ) and γᵢ = Iᵢ(κ) / sinh κ. Numerator and denominator are both
    scaled by e^(−κ), so that large concentrations do not overflow.
    """
    # e^(−κ) Iᵢ(κ) is the mean of e^(κ (cos θ − 1)) cos iθ, here to the last digits.
    samples = np.exp(kappa * (np.cos(np.arange(SAMPLES) * (2 * math.pi / SAMPLES)) - 1))
    bessel = np.maximum(np.fft.rfft(samples).real[: s + 1] / SAMPLES, 0)
    gamma = 2 * bessel / -math.expm1(-2 * kappa)
    gamma[0] = (bessel[0] - math.exp(-2 * kappa)) / -math.expm1(-2 * kappa)
    return gamma


def feature_map(angles: Float[Any, "*n"], *, kappa: float, s: int) -> Float[Any, "*n {2*s+1}"]:
    """Compute f(α) = (√γ₀, √γ₁ cos α … √γ_s cos sα, √γ₁ sin α … √γ_s sin sα) for every angle α.

    The result has shape `angles.shape + (2s+1,)` and is a NumPy or JAX array, like the angles.
    """
    xp = angles.__array_namespace__()
    dtype = angles.dtype
    root_gamma = xp.asarray(np.sqrt(von_mises_coefficients(kappa, s)), dtype=dtype)
    multiples = angles[..., None] * xp.arange(1, s + 1, dtype=dtype).reshape(
        (1,) * angles.ndim + (-1,)
    )
    waves = [xp.ones_like(multiples[..., :1]), xp.cos(multiples), xp.sin(multiples)]
    amplitudes = xp.concatenate([root_gamma, root_gamma[1:]]).reshape((1,) * angles.ndim + (-1,))
    return xp.concatenate(waves, axis=-1) * amplitudes


def cartesian_grid(n: int) -> tuple[Float[np.ndarray, "{n}*{n}"], Float[np.ndarray, "{n}*{n}"]]:
    """Return x (column) and y (row) of the n² positions, row-major, each from −1 to 1."""
    if n < 2:
        raise ValueError(f"a position grid needs at least 2×2 cells, not {n}×{n}")
    y, x = np.meshgrid(np.linspace(-1, 1, n), np.linspace(-1, 1, n), indexing="ij")
    return x.ravel(), y.ravel()


def polar_grid(n: int) -> tuple[Float[np.ndarray, "{n}*{n}"], Float[np.ndarray, "{n}*{n}"]]:
    """Return ρ (0 in the centre, 1 at the corners) and θ = atan2(y, x) of the n² positions."""
    x, y = cartesian_grid(n)
    return np.hypot(x, y) / math.sqrt(2), np.arctan2(y, x)


def centre_weights(n: int, *, corner_radius: float = 1.0) -> Float[np.ndarray, "{n}*{n}"]:
    """Compute w_p = exp(−ρ_p²), with ρ = `corner_radius` at the corners."""
    rho, _ = polar_grid(n)
    return np.exp(-((corner_radius * rho) ** 2))


@functools.lru_cache(maxsize=64)
def position_matrix(
    n: int, kernel: PositionKernel, system: CoordinateSystem, *, weighted: bool = True
) -> Float[np.ndarray, "{n}*{n} dim"]:
    """Compute the paper's matrix F: row p is w_p f(x_p)⊗f(y_p), or w_p f(ρ_p)⊗f(θ_p).

    Without `weighted`, the centre weight w_p is left out.
    """
    if system == "xy":
        first, second = (kernel.scale_xy * coordinate for coordinate in cartesian_grid(n))
        kappas = kernel.kappa_xy, kernel.kappa_xy
    elif system == "polar":
        rho, theta = polar_grid(n)
        first, second = kernel.scale_rho * rho, kernel.scale_theta * theta
        kappas = kernel.kappa_rho, kernel.kappa_theta
    else:
        raise ValueError(f"unknown coordinate system {system!r}: choose 'xy' or 'polar'")
    outer = np.einsum(
        "pi,pj->pij",
        feature_map(first, kappa=kappas[0], s=kernel.s),
        feature_map(second, kappa=kappas[1], s=kernel.s),
    )
    matrix = outer.reshape(n * n, kernel.dim)
    if weighted:
        matrix = matrix * centre_weights(n, corner_radius=kernel.corner_radius)[:, None]
    matrix.setflags(write=False)  # the cache hands the same array to every caller
    return matrix


def dense_matrix(
    positions: Float[Any, "p k"],
    matrix: Float[Any, "inputs outputs"],
    multiply: Callable[..., Any] = np.matmul,
) -> Float[Any, "rows outputs"]:
    """Return the fully connected layer on vec(Φ) that F and M make, in the precision of F."""
    size = positions.shape[1]
    by_position = matrix.reshape(-1, size, matrix.shape[1]).swapaxes(0, 1)
    return multiply(positions, by_position.reshape(size, -1)).reshape(-1, matrix.shape[1])
