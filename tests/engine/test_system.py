"""Test what a process gives back to the system."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from rung.engine import planning


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps freed arrays")
def test_what_dead_arrays_held_goes_back_to_the_system():
    arrays = [np.ones(4000) for _ in range(2000)]  # 64 MB, each too small for a mapping of its own
    last = np.ones(4000)  # the end of the heap stays in use
    del arrays
    before = planning.resident_memory()
    planning.give_back()
    assert before - planning.resident_memory() > 48 << 20
    assert last.sum() == 4000
