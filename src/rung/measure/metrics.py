"""How far results are from a reference: pictures by PSNR and SSIM, next tokens by divergence and agreement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

#: The window and the constants of SSIM (Wang et al., 2004, "Image Quality Assessment"), for values from 0 to 1.
_WINDOW, _SIGMA = 11, 1.5
SSIM_CONSTANTS = (0.01**2, 0.03**2)

Array = np.ndarray
#: NumPy's arrays or torch's tensors.
Values = TypeVar("Values", bound=Any)


def psnr(frames: Array, reference: Array) -> float:
    """Peak signal to noise ratio in dB of uint8 frames of the same shape; infinite where they are equal."""
    error = float(np.mean((frames.astype(np.float64) - reference.astype(np.float64)) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def ssim(frames: Array, reference: Array) -> float:
    """Structural similarity of uint8 frames [number, height, width, 3], 1 where they are equal; the mean over all.

    Of each channel alone, with a Gaussian window of 11 (of the smaller side, where that is less).
    """
    weights = ssim_window(frames.shape[1], frames.shape[2])
    pairs = zip(frames, reference, strict=True)
    found = [structural_similarity(a / 255, b / 255, lambda x: _blurred(x, weights)) for a, b in pairs]
    return float(np.mean([np.mean(each) for each in found]))


def ssim_window(height: int, width: int) -> Array:
    """Return the weights of a side of SSIM's window, float64, for pictures of that size."""
    size = min(_WINDOW, height, width)
    offsets = np.arange(size) - (size - 1) / 2
    weights: Array = np.exp(-(offsets**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    return weights


def structural_similarity(x: Values, y: Values, blur: Callable[[Values], Values]) -> Values:
    """Return SSIM of each window of two pictures with values from 0 to 1; ``blur`` gives the weighted mean of each.

    The pictures are arrays or tensors; gradients pass.
    """
    c1, c2 = SSIM_CONSTANTS
    mean_x, mean_y = blur(x), blur(y)
    xx, yy = blur(x * x) - mean_x**2, blur(y * y) - mean_y**2
    xy = blur(x * y) - mean_x * mean_y
    top = (2 * mean_x * mean_y + c1) * (2 * xy + c2)
    similarity: Values = top / ((mean_x**2 + mean_y**2 + c1) * (xx + yy + c2))
    return similarity


def _blurred(values: Array, weights: Array) -> Array:
    """Weighted sums over windows, first down, then across; only whole windows."""
    for axis in (0, 1):
        windows = np.lib.stride_tricks.sliding_window_view(values, len(weights), axis=axis)
        values = windows @ weights
    return values


def log_softmax(logits: Array) -> Array:
    """Logarithms of probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def divergence(log_p: Array, log_q: Array) -> float:
    """Kullback-Leibler divergence of q from the reference p in nats, the mean over positions [n, vocabulary]."""
    return float(np.mean(np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)))


def agreement(log_p: Array, log_q: Array) -> float:
    """The share of positions at which both have the same likeliest token."""
    return float(np.mean(log_p.argmax(axis=-1) == log_q.argmax(axis=-1)))


def surprise(log_q: Array, following: Array) -> float:
    """Minus the logarithm of the probability of the tokens that follow [n], in all; its mean's exponential is the
    perplexity."""
    return -float(np.take_along_axis(log_q, following[:, None], axis=-1).sum())
