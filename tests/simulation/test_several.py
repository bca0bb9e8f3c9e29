"""Several cards at once: numbered in their order, each with its memory, and not to be mixed."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rung
from rung.core.errors import UnknownDevice, UsageError

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
GB = 2**30


@pytest.fixture
def cards():
    with rung.simulate("3090", "3060") as device:
        yield device


def test_torch_and_rung_see_both_in_their_order(cards):
    assert cards.name == "GeForce RTX 3090"
    assert torch.cuda.device_count() == 2
    assert [torch.cuda.get_device_name(i) for i in (0, "cuda:1")] == ["GeForce RTX 3090", "GeForce RTX 3060 12GB"]
    assert torch.cuda.get_device_properties(SECOND).total_memory == torch.cuda.mem_get_info(1)[1] < 12 * GB
    assert [(d.id, d.real) for d in rung.devices()[:2]] == [("cuda:0", False), ("cuda:1", False)]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")


def test_the_current_card_is_the_one_that_cuda_alone_means(cards):
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        x = torch.ones(2, device="cuda")
        assert torch.ones(2).cuda().device == x.device == SECOND
        assert x.get_device() == 1
        assert torch.cuda.get_device_name() == "GeForce RTX 3060 12GB"
        assert torch.cuda.Stream().device == SECOND
    assert torch.ones(1, device="cuda").device == FIRST
    with torch.cuda.device_of(x):
        assert torch.cuda.current_device() == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.cuda.device(2):
        pass
    assert isinstance(torch.cuda.device(1), torch.cuda.device)
    torch.cuda.set_device(1)
    with ThreadPoolExecutor(1) as pool:  # each thread has its own
        assert pool.submit(torch.cuda.current_device).result() == 0
    assert torch.nn.Linear(2, 2, device="cuda").weight.device == SECOND


@pytest.mark.skipif(not hasattr(torch.accelerator, "device_index"), reason="this torch has no such block")
def test_the_current_accelerator_is_the_current_card(cards):
    with torch.accelerator.device_index(1):
        assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 1
    assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 0


def test_copies_between_cards_are_copies_with_a_gradient(cards):
    x = torch.arange(3.0, device="cuda:0", requires_grad=True)
    y = x.to("cuda:1")
    assert y.device == SECOND
    assert y.to(1) is y
    (y * torch.tensor([1.0, 2.0, 3.0], device="cuda:1")).sum().backward()
    assert x.grad.device == FIRST
    assert x.grad.tolist() == [1, 2, 3]
    z = torch.zeros(3, device="cuda:1")
    z.copy_(x.detach())
    assert (z.device, z.tolist()) == (SECOND, [0, 1, 2])


def test_each_card_has_its_memory(cards):
    x = torch.empty(1000, device="cuda:1")
    assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)) == (0, 4096)
    y = x.to(0)
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_allocated("cuda:1")) == (4096, 4096)
    del x
    assert torch.cuda.memory_allocated(1) == 0
    with pytest.raises(torch.cuda.OutOfMemoryError, match="GPU 1 has a total capacity of 11"):
        torch.empty(16 * GB, dtype=torch.uint8, device="cuda:1")
    assert torch.empty(16 * GB, dtype=torch.uint8, device="cuda:0").device == y.device


def test_tensors_on_two_cards_do_not_mix(cards):
    x, y = torch.ones(4, 4, device="cuda:0"), torch.ones(4, 4, device="cuda:1")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1!"):
        x + y
    with pytest.raises(
        RuntimeError, match=r"mat2 is on cuda:1, different from other tensors on cuda:0.*wrapper_CUDA_mm"
    ):
        x @ y
    with pytest.raises(RuntimeError, match="at least two devices, cuda:1 and cuda:0!"):
        y + torch.tensor(1.0, device="cuda:0")  # a number of the host may be anywhere, one of a card may not
    assert (y + torch.tensor(1.0)).device == SECOND
    assert (y @ y).device == SECOND


def test_a_module_in_two_halves(cards):
    first, second = torch.nn.Linear(4, 4).cuda(0), torch.nn.Linear(4, 4).to(1)
    out = second(first(torch.ones(2, 4, device=0)).to(1))
    out.sum().backward()
    assert (first.weight.grad.device, second.weight.grad.device) == (FIRST, SECOND)


@pytest.mark.parametrize("chunks", [4, 3, 1])
def test_data_parallel_spreads_a_batch_and_gathers_gradients(cards, chunks):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(4, 4), torch.randn(chunks, 4)
    layer(x).square().sum().backward()
    devices = set()
    there = torch.nn.Linear(4, 4).cuda()
    there.load_state_dict(layer.state_dict())
    there.register_forward_pre_hook(lambda module, inputs: devices.add(inputs[0].device))
    with pytest.warns(UserWarning, match="imbalance between your GPUs"):  # torch's own, from their properties
        spread = torch.nn.DataParallel(there)
    out = spread(x.cuda())
    assert out.device == FIRST
    assert devices == ({FIRST, SECOND} if chunks > 1 else {FIRST})
    out.square().sum().backward()
    assert torch.allclose(there.weight.grad.cpu(), layer.weight.grad, atol=1e-5)


def test_a_share_of_the_memory_may_be_all_that_is_used(cards):
    torch.cuda.set_per_process_memory_fraction(0.25, 1)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(4 * GB, dtype=torch.uint8, device="cuda:1")
    torch.empty(2 * GB, dtype=torch.uint8, device="cuda:1")
    with pytest.raises(ValueError, match="Allowed range"):
        torch.cuda.set_per_process_memory_fraction(2.0)


def test_chance_is_each_card_s_own(cards):
    torch.manual_seed(3)
    pair = [torch.rand(4, device=device) for device in (FIRST, SECOND)]
    assert torch.equal(pair[0].cpu(), pair[1].cpu())
    torch.manual_seed(3)
    torch.rand(4, device=FIRST)
    assert torch.equal(torch.rand(4, device=SECOND), pair[1])
    assert len(torch.cuda.get_rng_state_all()) == 2
    there = torch.Generator("cuda:1")
    assert there.device == SECOND
    assert torch.rand(2, device="cuda:1", generator=there).device == SECOND


def test_files_come_back_to_the_card_that_they_name():
    file = io.BytesIO()
    with rung.simulate("2x3090"):
        torch.save(torch.arange(3.0, device="cuda:1"), file)
        file.seek(0)
        assert torch.load(file).device == SECOND
        file.seek(0)
        assert torch.load(file, map_location={"cuda:1": "cuda:0"}).device == FIRST
    file.seek(0)
    with (
        rung.simulate("3090"),
        pytest.raises(RuntimeError, match=r"CUDA device 1 but torch.cuda.device_count\(\) is 1"),
    ):
        torch.load(file)


@pytest.mark.parametrize("names", [("2x3090",), ("3090+3060",), ("sim:3090", "3060")], ids=str)
def test_ways_to_name_several(names):
    with rung.simulate(*names, memory="2GB"):
        assert torch.cuda.device_count() == 2
        assert torch.cuda.mem_get_info(1)[1] == 2 * GB


def test_they_share_the_newest_torch_that_has_code_for_all():
    alone = rung.simulate("3090").devices[0].software
    both = [device.software for device in rung.simulate("3090", "Quadro P2200").devices]
    assert both[0] == both[1]
    assert "sm_60" in both[0]["arch_list"]  # runs on 6.1
    assert "sm_60" not in alone["arch_list"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("3090", "7900xtx"), "one torch drives GPUs of one maker"),
        (("m1 pro", "m1 max"), "one GPU of a Mac"),
        (("k80", "5090"), "no release of torch has code for all"),
        (("3090", "ryzen 9 7950x"), "only GPUs are simulated"),
        ((), "No card to simulate is named"),
    ],
)
def test_cards_that_cannot_be_together(names, words):
    with pytest.raises(UsageError, match=words):
        rung.simulate(*names)


@pytest.mark.parametrize("name", ["0x3090", "99x3090"])
def test_a_number_of_cards_that_is_none(name):
    with pytest.raises(UnknownDevice, match="no number of devices"):
        rung.simulate(name)
