"""How far results are from a reference: pictures by PSNR and SSIM, next tokens by divergence and agreement."""

from __future__ import annotations

import math

import numpy as np

#: The window and the constants of SSIM (Wang et al., 2004, "Image Quality Assessment"), for values from 0 to 255.
_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2

Array = np.ndarray


def psnr(frames: Array, reference: Array) -> float:
    """Peak signal to noise ratio in dB of uint8 frames of the same shape; infinite where they are equal."""
    error = float(np.mean((frames.astype(np.float64) - reference.astype(np.float64)) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def ssim(frames: Array, reference: Array) -> float:
    """Structural similarity of uint8 frames [number, height, width, 3], 1 where they are equal; the mean over all.

    Of each channel alone, with a Gaussian window of 11 (of the smaller side, where that is less).
    """
    size = min(_WINDOW, frames.shape[1], frames.shape[2])
    places = np.arange(size) - (size - 1) / 2
    weights = np.exp(-(places**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    found = [_ssim(a.astype(np.float64), b.astype(np.float64), weights) for a, b in zip(frames, reference, strict=True)]
    return float(np.mean(found))


def _ssim(x: Array, y: Array, weights: Array) -> float:
    """Return the value of one frame [height, width, channels]."""
    mean_x, mean_y = _blurred(x, weights), _blurred(y, weights)
    xx, yy = _blurred(x * x, weights) - mean_x**2, _blurred(y * y, weights) - mean_y**2
    xy = _blurred(x * y, weights) - mean_x * mean_y
    top = (2 * mean_x * mean_y + _C1) * (2 * xy + _C2)
    return float(np.mean(top / ((mean_x**2 + mean_y**2 + _C1) * (xx + yy + _C2))))


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
