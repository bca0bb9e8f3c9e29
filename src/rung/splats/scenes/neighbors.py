"""Which photographs look alike, from their SIFT features: vectors of locally aggregated descriptors (Jegou et al.,
CVPR 2010) over words found in the photographs themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

#: Words, rounds in which they are found, and descriptors that are looked at in all, and of each photograph.
_WORDS, _ROUNDS, _LEARNT, _EACH = 32, 8, 40_000, 1000


def descriptors(pycolmap: ModuleType, database: Path, names: list[str]) -> list[Floats]:
    """SIFT descriptors [N, 128] of each photograph, the first of them, in the order of ``names``."""
    opened = pycolmap.Database.open(str(database))
    try:
        numbers = {image.name: image.image_id for image in opened.read_all_images()}
        found = [opened.read_descriptors(numbers[name]).data[:_EACH] if name in numbers else None for name in names]
    finally:
        opened.close()
    return [np.zeros((0, 128), np.float32) if each is None else np.asarray(each, np.float32) for each in found]


def _nearest(rows: Floats, words: Floats) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.argmin((words * words).sum(1) - 2 * rows @ words.T, axis=1)
    return found


def _words(rows: Floats) -> Floats:
    """Centers [_WORDS, 128] of descriptors by Lloyd's rounds; the same for the same descriptors."""
    chance = np.random.default_rng(0)
    rows = rows[chance.permutation(len(rows))[:_LEARNT]]
    words = rows[:_WORDS].copy()
    for _ in range(_ROUNDS):
        near = _nearest(rows, words)
        for word in range(len(words)):
            own = rows[near == word]
            if len(own):
                words[word] = own.mean(0)
    return words


def alike(each: list[Floats], most: int) -> Iterable[tuple[int, int]]:
    """Pairs (a, b), a < b, of photographs: each with the ``most`` that look most like it."""
    words = _words(np.concatenate(each))
    signs = np.zeros((len(each), len(words), 128), np.float32)
    for sign, rows in zip(signs, each, strict=True):
        np.add.at(sign, near := _nearest(rows, words), rows - words[near])
    signs = np.sign(signs) * np.sqrt(np.abs(signs))  # so that patterns which repeat do not outvote the rest
    flat = signs.reshape(len(each), -1)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    close = flat @ flat.T
    np.fill_diagonal(close, -np.inf)
    found = set()
    for a, row in enumerate(close):
        found |= {(min(a, int(b)), max(a, int(b))) for b in np.argsort(-row, kind="stable")[:most] if b != a}
    return sorted(found)
