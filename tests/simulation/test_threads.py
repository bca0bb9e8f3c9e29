"""A simulation is in force in every thread until its block ends, and in none after it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rung


def work():
    x = torch.ones(4, 4, device="cuda", requires_grad=True)
    y = (x @ x).sum()
    y.backward()
    return {y.device.type, x.grad.device.type, torch.cuda.get_device_name()}


def test_threads_and_pools_that_began_before_or_inside():
    expected = {"cuda", "Quadro P2200"}
    with ThreadPoolExecutor(2) as old:
        old.submit(int).result()
        with rung.simulate("Quadro P2200"), ThreadPoolExecutor(2) as new:
            assert [pool.submit(work).result() for pool in (old, new)] == [expected, expected]
            found = []
            thread = threading.Thread(target=lambda: found.append(work()))
            thread.start()
            thread.join()
            assert found == [expected]
        assert old.submit(torch._C._len_torch_dispatch_stack).result() == 0


def test_refusals_and_memory_hold_in_a_pool():
    with rung.simulate("Tesla K80", memory="1GB"), ThreadPoolExecutor(1) as pool:
        x = torch.ones(4, 4, device="cuda", dtype=torch.bfloat16)
        with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_SUPPORTED"):
            pool.submit(lambda: x @ x).result()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            pool.submit(lambda: torch.empty(2**33, device="cuda")).result()


def test_a_thread_that_outlives_the_block_computes_on_the_host():
    go, found = threading.Event(), []

    def late():
        go.wait(20)
        found.append((kept + 1).device.type)

    with rung.simulate("v100", defects=[rung.Defect("elementwise", "f32", RuntimeError, "refused on the card")]):
        kept = torch.empty(2, device="cuda")
        thread = threading.Thread(target=late)
        thread.start()
    go.set()
    thread.join()
    assert found == ["cpu"]


def test_the_peak_adds_up_over_threads():
    with rung.simulate("v100"), ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda _: torch.zeros(1000, device="cuda"), range(32)))
        assert torch.cuda.memory_allocated() == 32 * 4096
        kept.clear()
        assert torch.cuda.memory_allocated() == 0
