"""Memory on a simulated card: accounts, the error when it is full, and that it comes back."""

from __future__ import annotations

import pytest
import torch

import rung
from rung.core.types import StepClass
from rung.diagnosis import classify

GB = 2**30


def test_a_card_may_have_more_memory_than_it_is_sold_with():
    with rung.simulate("RTX 2080 Ti", memory="22GB") as device:
        assert (device.memory, device.free) == (22 * GB, 22 * GB)
        assert torch.cuda.mem_get_info()[1] == torch.cuda.get_device_properties(0).total_memory == 22 * GB
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"22\.00 GiB"):
            torch.empty(23 * GB, dtype=torch.uint8, device="cuda")


def test_allocations_are_counted_and_come_back():
    with rung.simulate("Quadro P2200", memory="4GB"):
        assert torch.cuda.mem_get_info()[1] == 4 * GB
        free = torch.cuda.mem_get_info()[0]
        a = torch.empty(1000, device="cuda")
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (4096, 2 << 20)
        b = a.view(10, 100)
        assert torch.cuda.memory_allocated() == 4096
        c = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.mem_get_info()[0] == free - (2 << 20) - (100 << 20)
        del a, c
        assert torch.cuda.memory_allocated() == 4096  # the view holds the storage
        del b
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 4096 + (100 << 20)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] == free
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0


def test_the_first_product_takes_the_workspace_of_cublas():
    with rung.simulate("v100"):
        x = torch.ones(2, 2, device="cuda")
        y = x @ x
        assert torch.cuda.memory_allocated() == 8_519_680 + 512 * 2
        del x, y


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (
            "Quadro P2200",
            "cuda",
            ["CUDA out of memory. Tried to allocate 64.00 GiB", "GPU 0 has a total capacity of 2.00 GiB"],
        ),
        ("RX 7900 XTX", "cuda", ["HIP out of memory. Tried to allocate 64.00 GiB"]),
        ("Arc A770", "xpu", ["XPU out of memory. Tried to allocate 64.00 GiB"]),
        ("M1 Pro", "mps", ["MPS backend out of memory", "Tried to allocate 64.00 GiB"]),
    ],
)
def test_full_memory_raises_the_words_of_the_vendor(name, kind, words):
    with rung.simulate(name, memory="2GB"):
        ones = torch.ones(100, device=kind)
        with pytest.raises(RuntimeError) as caught:
            torch.empty(64 * GB, dtype=torch.uint8, device=kind)
        assert all(word in str(caught.value) for word in words)
        assert kind == "mps" or isinstance(caught.value, torch.cuda.OutOfMemoryError)
        found = classify(caught.value)
        assert found is not None
        assert found.signature.step is StepClass.OUT_OF_MEMORY
        assert (ones + 1).sum() == 200  # the card goes on


def test_the_result_of_an_operation_may_be_what_does_not_fit():
    with rung.simulate("Quadro P2200", memory="500MB"):
        x = torch.ones(3000, 3000, device="cuda")
        many = [x] * 3
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.cat(many)
        del x, many
        assert torch.cuda.memory_allocated() == 0


def test_tensors_that_outlive_the_block_are_no_burden_to_the_next():
    with rung.simulate("v100"):
        kept = torch.ones(1000, device="cuda")
    with rung.simulate("v100"):
        assert torch.cuda.memory_allocated() == 0
        assert kept.device.type == "cpu"
        assert kept.cuda().device.type == "cuda"
        assert torch.cuda.memory_allocated() == 0
