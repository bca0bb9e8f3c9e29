"""Harmonics that take less memory: as float16 or float32, both of Adam's means in 8 bits, and no gradient of their own.

The rung that draws is given colors, not harmonics; the gradient of a splat's harmonics is that of its color times the
harmonics of the direction it is seen from, which Adam's step forms for itself. The codes are those of
"8-bit Optimizers via Block-wise Quantization" (arXiv:2110.02861); a block is one splat, so that splats can be copied
and dropped.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.nn.stepping import adam_update, codebook, decode, encode_nearest
from rung.ops.rasterize.projecting import basis

#: Splats whose harmonics are float32 at a time where no compiled kernel computes.
_PIECE = 1 << 15


class Books(NamedTuple):
    """The sorted values [256] that codes of either mean stand for.

    The lowest of the second is not 0 but half of the next: divided by 0, whatever is left of a first mean is endless.
    """

    first: Tensor
    second: Tensor

    @staticmethod
    @functools.cache
    def of(device: torch.device) -> Books:
        """Return the books on a device."""
        second = codebook(False, device).clone()
        second[0] = second[1] / 2
        return Books(codebook(True, device), second)


class Means8(NamedTuple):
    """Both means of Adam: codes uint8 [N, K, 3], and the largest magnitude of each splat [N]; 0: nothing was seen."""

    first: Tensor
    first_sizes: Tensor
    second: Tensor
    second_sizes: Tensor


class ColorGradients:
    """Hold what a picture told of colors: where it was seen from [3], the degree, and the colors' gradients [N,
    3]."""

    def __init__(self, position: Tensor, degree: int) -> None:
        self.position, self.degree = position.detach(), degree
        self.of_colors: Tensor | None = None


class Shade(torch.autograd.Function):
    """(harmonics, centers, position, gradients) -> colors [N, 3]; the way back leaves theirs in ``gradients``."""

    @staticmethod
    def forward(ctx: Any, harmonics: Tensor, means: Tensor, position: Tensor, gradients: ColorGradients) -> Tensor:
        if compiled := compiled_for(means):
            colors = compiled.shade(harmonics, gradients.degree, means, gradients.position)
        else:
            colors = torch.cat([_plain(rows, at, gradients) for rows, at in _pieces(harmonics, means.detach())])
        ctx.gradients = gradients
        ctx.save_for_backward(harmonics, means, colors)
        result: Tensor = colors
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, None]:
        harmonics, means, colors = ctx.saved_tensors
        gradients: ColorGradients = ctx.gradients
        if compiled := compiled_for(means):
            gradients.of_colors, slopes = compiled.shade_back(
                harmonics, gradients.degree, means, gradients.position, colors, gradient
            )
        else:
            gradients.of_colors = gradient * (colors > 0)
            pieces = _pieces(harmonics, means.detach(), gradients.of_colors)
            slopes = torch.cat([_slopes(rows, at, slope, gradients) for rows, at, slope in pieces])
        return None, slopes, -slopes.sum(0), None


def compiled_for(values: Tensor) -> Any:
    """The module of compiled kernels where they compute, else None."""
    if values.device.type != "cpu" or importlib.util.find_spec("numba") is None:
        return None
    from rung.splats.training import compiled

    return compiled


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(_PIECE) for tensor in tensors), strict=True)


def _basis(means: Tensor, gradients: ColorGradients) -> Tensor:
    """The harmonics of the directions in which splats are seen [N, terms]."""
    return basis(gradients.degree, torch.nn.functional.normalize(means - gradients.position, dim=-1))


def _plain(harmonics: Tensor, means: Tensor, gradients: ColorGradients) -> Tensor:
    values = _basis(means, gradients)
    return ((values[:, :, None] * harmonics[:, : values.shape[1]].float()).sum(1) + 0.5).clamp_min(0)


def _slopes(harmonics: Tensor, means: Tensor, gradient: Tensor, gradients: ColorGradients) -> Tensor:
    if gradients.degree == 0:
        return torch.zeros_like(means)
    with torch.enable_grad():
        taken = means.detach().requires_grad_()
        values = _basis(taken, gradients)
        weights = (harmonics[:, : values.shape[1]].float() * gradient[:, None]).sum(2)
        (result,) = torch.autograd.grad((values * weights).sum(), taken)
    return result


def learn(
    harmonics: Tensor,
    means: Tensor,
    gradients: ColorGradients,
    state: Means8,
    rates: tuple[float, ...],
    taken: int,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """One step of Adam for harmonics [N, K, 3], with a rate for each value of a row; ``taken`` counts steps."""
    upstream = gradients.of_colors
    assert upstream is not None
    if compiled := compiled_for(means):
        view, books = (gradients.degree, means, gradients.position, upstream), Books.of(means.device)
        compiled.learn(harmonics, *view, state._asdict(), books, rates, taken, betas, epsilon)
        return
    chance = torch.Generator(means.device).manual_seed(taken)
    steps = torch.tensor(rates, device=means.device).view(harmonics.shape[1:])
    books, shapes = Books.of(means.device), harmonics.shape[1:]
    for piece, positions, slopes, *parts in _pieces(harmonics, means.detach(), upstream, *state):
        gradient = torch.zeros(len(piece), *shapes, device=means.device)
        values = _basis(positions, gradients)
        gradient[:, : values.shape[1]] = values[:, :, None] * slopes[:, None]
        first, second = _decoded(parts[0], parts[1], books.first), _decoded(parts[2], parts[3], books.second)
        update, factor = adam_update(gradient, first, second, betas, epsilon, taken)
        piece.copy_(_rounded(piece.float() - update * (steps * factor), piece.dtype, chance))
        _encode(first, parts[0], parts[1], books.first)
        _encode(second, parts[2], parts[3], books.second)


def _decoded(codes: Tensor, sizes: Tensor, book: Tensor) -> Tensor:
    return decode(codes.view(-1), sizes, book, codes[0].numel()).view(codes.shape)


def _encode(values: Tensor, codes: Tensor, sizes: Tensor, book: Tensor) -> None:
    encoded, absmax = encode_nearest(values.view(-1), book, values[0].numel())
    codes.copy_(encoded.view(codes.shape))
    sizes.copy_(absmax)


def _rounded(values: Tensor, dtype: torch.dtype, chance: torch.Generator) -> Tensor:
    """As float16 rounded up as often as they are near to that: changes smaller than half a step would vanish."""
    if dtype == torch.float32:
        return values
    random = torch.randint(0, 1 << 13, values.shape, generator=chance, device=values.device, dtype=torch.int32)
    return ((values.view(torch.int32) + random) & ~0x1FFF).view(torch.float32).half()
