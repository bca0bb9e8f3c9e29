"""Metrics against their definitions, written out."""

import math

import numpy as np
import pytest

from rung.measure import metrics

NOISE = np.random.default_rng(0)


def pictures(scale):
    first = NOISE.integers(0, 256, (2, 16, 14, 3), dtype=np.uint8)
    noisy = first + NOISE.normal(0, scale, first.shape)
    return first, noisy.clip(0, 255).round().astype(np.uint8)


def test_equal_pictures():
    first, _ = pictures(1)
    assert metrics.psnr(first, first) == math.inf
    assert metrics.ssim(first, first) == pytest.approx(1)


def test_psnr_is_that_of_the_mean_square():
    first = np.full((1, 4, 4, 3), 100, np.uint8)
    assert metrics.psnr(first + np.uint8(5), first) == pytest.approx(20 * math.log10(255 / 5))


def test_ssim_is_its_definition():
    """Each window by itself, with two-dimensional weights."""
    first, noisy = pictures(20)
    places = np.arange(11) - 5
    line = np.exp(-(places**2) / (2 * 1.5**2))
    weights = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = []
    for a, b in zip(noisy.astype(float), first.astype(float), strict=True):
        for row in range(16 - 10):
            for column in range(14 - 10):
                for channel in range(3):
                    x = a[row : row + 11, column : column + 11, channel]
                    y = b[row : row + 11, column : column + 11, channel]
                    mx, my = (weights * x).sum(), (weights * y).sum()
                    vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
                    cov = (weights * (x - mx) * (y - my)).sum()
                    found.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    assert metrics.ssim(noisy, first) == pytest.approx(np.mean(found))


def test_tokens():
    logits = NOISE.normal(size=(5, 7))
    p, q = metrics.log_softmax(logits), metrics.log_softmax(logits[:, ::-1])
    assert np.exp(p).sum(axis=1) == pytest.approx(1)
    assert metrics.divergence(p, p) == 0
    assert metrics.divergence(p, q) == pytest.approx(np.mean([sum(np.exp(a) * (a - b)) for a, b in zip(p, q)]))  # noqa: B905
    assert metrics.agreement(p, p) == 1
    assert metrics.surprise(p, np.arange(5)) == pytest.approx(-p[range(5), range(5)].sum())
