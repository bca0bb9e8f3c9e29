"""Pages of other sizes than this machine's."""

import ctypes
import mmap
import sys

import numpy as np
import pytest
from tests.hardware.trees import tree

from rung.core import pages
from rung.kernels.cpu.pack.layouts import HUGE
from rung.kernels.cpu.pack.packing import empty


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="advice of Linux")
@pytest.mark.parametrize(
    ("size", "advice"),
    [
        ("2097152", "MADV_HUGEPAGE"),  # pages of 4 kB
        ("33554432", "MADV_NOHUGEPAGE"),  # of 16 kB
        ("536870912", "MADV_NOHUGEPAGE"),  # of 64 kB
        ("", "MADV_HUGEPAGE"),
        (None, "MADV_HUGEPAGE"),
    ],
)
def test_huge_pages_are_taken_up_to_2_mb(tmp_path, size, advice):
    if size is not None:
        tree(tmp_path, {"sys/kernel/mm/transparent_hugepage/hpage_pmd_size": size})
    assert pages.huge_advice(HUGE, tmp_path) == getattr(mmap, advice)


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_only_whole_pages_within_are_released(monkeypatch, page):
    class Mapped:
        def madvise(self, advice, first, length):
            calls.append((first, length))

    calls = []
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    pages.release(Mapped(), 1, 3 * page + 1)
    pages.release(Mapped(), 1, page)
    assert calls == [(page, 2 * page)]


def test_memory_for_weights_is_zero_and_aligned_whatever_the_system_advises(monkeypatch):
    for advice in (None, 10**6):  # the second is none that a system knows
        monkeypatch.setattr("rung.kernels.cpu.pack.packing.huge_advice", lambda most, advice=advice: advice)
        array = empty(20 << 20)
        assert array.ctypes.data % 64 == 0
        assert not np.any(array)


@pytest.mark.skipif(sys.platform != "linux", reason="advice of Linux")
def test_memory_that_is_populated_keeps_its_bytes_and_is_there():
    size, page = 8 << 20, mmap.PAGESIZE
    with mmap.mmap(-1, size) as mapped:
        memory = np.frombuffer(mapped, np.uint8)
        low = memory.ctypes.data
        mapped[5 * page] = 7
        for first, end in ((1, 3 * page - 1), (4 * page, 100 * page), (200 * page, 200 * page)):
            pages.populate(low + first, low + end)
        there = np.zeros(size // page, np.uint8)
        assert (
            ctypes.CDLL(None).mincore(
                ctypes.c_void_p(low), ctypes.c_size_t(size), there.ctypes.data_as(ctypes.c_void_p)
            )
            == 0
        )
        assert (np.nonzero(there & 1)[0] == [1, *range(4, 100)]).all()
        assert mapped[5 * page] == 7
        assert not np.any(memory[: 5 * page])
        del memory
