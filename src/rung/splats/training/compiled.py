"""Loss and optimizer on the processor, in compiled kernels: plain torch takes longer for them than for the picture."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rung.kernels.cpu import adam
from rung.kernels.cpu.compiled import Kernel
from rung.kernels.cpu.named_words import NamedWords
from rung.kernels.cpu.splat import colors as color_kernels
from rung.kernels.cpu.splat import ssim
from rung.kernels.cpu.thread_pool import enter
from rung.measure.metrics import SSIM_CONSTANTS
from rung.ops.rasterize.compiled_picture import KERNELS
from rung.run.precompile import compile_apart

_LANES = 16


def prepare(lean: bool) -> None:
    """Sees to it that this process loads the kernels of a step from the disk; ``lean``: harmonics have no gradient."""
    harmonics = (color_kernels.shade, color_kernels.shade_back, color_kernels.learn) if lean else ()
    compile_apart((enter, ssim.compare, ssim.back, adam.step, *harmonics, *KERNELS))


def _run(kernel: Kernel, names: tuple[str, ...], **values: int | np.ndarray | Tensor) -> None:
    """Runs a kernel on all threads of torch; the words are numbers, or addresses of arrays and tensors."""
    words = NamedWords(names)
    words.set(**values)
    words.run(kernel, torch.get_num_threads())


def _padded(picture: Tensor, stride: int) -> Tensor:
    height, width, _ = picture.shape
    padded = torch.zeros(height, stride)
    padded[:, : 3 * width] = picture.reshape(height, 3 * width)
    return padded


def likeness_of(picture: Tensor, truth: Tensor, weights: np.ndarray, share: float) -> tuple[float, Tensor]:
    """``(1 - share) L1 + share (1 - SSIM)`` of pictures [H, W, 3], float32, and its gradient by the first.

    ``weights`` are those of a window's side, float32, at most 16.
    """
    height, width, _ = picture.shape
    wide, window = 3 * width, len(weights)
    stride = -(-wide // _LANES) * _LANES
    inside = np.zeros(stride, np.float32)
    inside[: wide - 3 * (window - 1)] = 1
    windows = (height - window + 1) * (wide - 3 * (window - 1))
    sums, gradient = np.zeros((height, 2)), torch.empty(height, stride)
    scratch = torch.zeros(torch.get_num_threads(), 5, stride + 2 * ssim.MARGIN)
    words: dict[str, int | np.ndarray | Tensor] = {
        "made": _padded(picture, stride),
        "truth": _padded(truth, stride),
        "slopes": torch.empty(3, height, stride),
        "scratch": scratch,
        "shares": np.array([(1 - share) / picture.numel(), share / windows, *SSIM_CONSTANTS], np.float32),
    }
    words |= {"height": height, "wide": wide, "stride": stride, "window": window, "weights": weights}
    words |= {"inside": inside, "sums": sums, "gradient": gradient}
    _run(ssim.compare, ssim.WORDS, **words)
    scratch.zero_()
    _run(ssim.back, ssim.WORDS, **words)
    away, near = sums.sum(0).tolist()
    value = (1 - share) * away / picture.numel() + share * (1 - near / windows)
    return value, gradient[:, :wide].reshape(height, width, 3)


@functools.lru_cache(64)
def _rates(columns: tuple[float, ...]) -> np.ndarray:
    return np.tile(np.array(columns, np.float32), _LANES // math.gcd(_LANES, len(columns)))


def adam_step(
    value: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    rates: tuple[float, ...],
    taken: int,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """One step for float32 tensors of the same shape, with a rate for each value of a row."""
    table = _rates(rates) * np.float32(1 / (1 - betas[0] ** taken))
    root = 1 / math.sqrt(1 - betas[1] ** taken)
    _run(
        adam.step,
        adam.WORDS,
        count=value.numel(),
        period=len(table),
        values=value.detach(),
        gradient=gradient.contiguous(),
        first=first,
        second=second,
        rates=table,
        settings=np.array([1 - betas[0], 1 - betas[1], root, epsilon], np.float32),
    )


def _colored(kernel: Kernel, harmonics: Tensor, degree: int, means: Tensor, position: Tensor, **more: Any) -> None:
    where = position.detach().double().contiguous()
    scratch = np.empty(torch.get_num_threads() * color_kernels.SCRATCH)
    sizes = {"count": len(harmonics), "terms": harmonics.shape[1], "degree": degree}
    halves = int(harmonics.dtype == torch.float16)
    _run(
        kernel,
        color_kernels.WORDS,
        **sizes,
        halves=halves,
        harmonics=harmonics,
        means=means.detach(),
        position=where,
        scratch=scratch,
        **more,
    )


def shade(harmonics: Tensor, degree: int, means: Tensor, position: Tensor) -> Tensor:
    """Colors [N, 3] that are seen from a position [3]; harmonics [N, K, 3] are float16 or float32."""
    colors = torch.empty(len(means), 3)
    _colored(color_kernels.shade, harmonics, degree, means, position, colors=colors)
    return colors


def shade_back(
    harmonics: Tensor, degree: int, means: Tensor, position: Tensor, colors: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the colors [N, 3], zero where they were cut off, and of the centers [N, 3]."""
    upstream, slopes = gradient.clone(memory_format=torch.contiguous_format), torch.empty(len(means), 3)
    _colored(
        color_kernels.shade_back, harmonics, degree, means, position, colors=colors, given=upstream, g_means=slopes
    )
    return upstream, slopes


@functools.cache
def _lookup(codebooks: tuple[Tensor, Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the codebooks, float32 [2, 256], with what ``lookup_of`` makes of them."""
    books = np.stack([book.numpy() for book in codebooks])
    return books, *color_kernels.lookup_of(books)


def learn(
    harmonics: Tensor,
    degree: int,
    means: Tensor,
    position: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    codebooks: tuple[Tensor, Tensor],
    rates: tuple[float, ...],
    taken: int,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Take a step of Adam for harmonics [N, K, 3], with a rate for each value of a row.

    ``state`` has the codes uint8 [N, K, 3] of both means and their sizes float32 [N], by the kernel's names;
    ``codebooks`` are the values float32 [256] that the codes stand for. Changes the harmonics and the state in place.
    """
    books, middles, lookup = _lookup(codebooks)
    root = 1 / math.sqrt(1 - betas[1] ** taken)
    _colored(
        color_kernels.learn,
        harmonics,
        degree,
        means,
        position,
        given=gradient,
        **state,
        books=books,
        middles=middles,
        lookup=lookup,
        rates=np.array(rates, np.float32) * np.float32(1 / (1 - betas[0] ** taken)),
        settings=np.array([1 - betas[0], 1 - betas[1], root, epsilon], np.float32),
        salt=taken,
    )
