"""Test storages on the simulated card, copies of them, and memory that is handed on by DLPack."""

import copy
import gc

import numpy as np
import pytest
import torch

import rung
from tests.support.devices import simulated_card

MB = 2**20


card = simulated_card("v100")


def test_a_storage_names_its_card(card):
    here, there = torch.ones(4), torch.ones(4, device="cuda")
    storage = there.untyped_storage()
    assert (str(storage.device), storage.is_cuda, storage.get_device()) == ("cuda:0", True, 0)
    assert (str(here.untyped_storage().device), here.untyped_storage().is_cuda) == ("cpu", False)
    assert str(there[1:].untyped_storage().device) == "cuda:0"


def test_storages_move_as_tensors_do(card):
    storage = torch.arange(4.0).untyped_storage()
    moved = storage.cuda()
    assert (str(moved.device), str(moved.cpu().device), moved.cuda() is moved) == ("cuda:0", "cpu", True)
    back = torch.empty(0).set_(moved.cpu(), 0, (4,))
    assert back.tolist() == [0, 1, 2, 3]
    assert str(torch.empty(0, device="cuda").set_(moved, 0, (4,)).device) == "cuda:0"
    assert str(moved.clone().device) == "cuda:0"


def test_deep_copies_stay_on_the_card(card):
    tensor = torch.ones(MB, device="cuda")
    before = torch.cuda.memory_allocated()
    twin = copy.deepcopy(tensor)
    assert str(twin.device) == "cuda:0"
    assert torch.cuda.memory_allocated() - before == 4 * MB
    module = torch.nn.Linear(4, 4).cuda()
    copied = copy.deepcopy(module)
    assert {str(value.device) for value in copied.parameters()} == {"cuda:0"}
    copied.weight.data.fill_(0)
    assert module.weight.abs().sum() > 0
    assert copied(torch.ones(1, 4, device="cuda")).isfinite().all()


@pytest.mark.parametrize(
    "way", [lambda t: torch.from_dlpack(t), lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t))]
)
def test_what_dlpack_hands_on_lies_on_the_card_once(card, way):
    tensor = torch.zeros(MB, device="cuda")
    allocated = torch.cuda.memory_allocated()
    taken = way(tensor)
    assert str(taken.device) == "cuda:0"
    taken.add_(1)
    assert tensor.sum().item() == MB
    assert torch.cuda.memory_allocated() == allocated
    del tensor
    gc.collect()
    assert torch.cuda.memory_allocated() == allocated
    del taken
    gc.collect()
    assert torch.cuda.memory_allocated() == allocated - 4 * MB


def test_numpy_takes_nothing_of_a_card(card):
    with pytest.raises(BufferError, match="Unsupported device"):
        np.from_dlpack(torch.ones(3, device="cuda"))
    assert np.from_dlpack(torch.ones(3)).tolist() == [1, 1, 1]
    assert torch.from_dlpack(np.ones(3)).device.type == "cpu"


def test_outside_all_is_as_before():
    before = (torch.UntypedStorage.clone, torch.from_dlpack, torch.Tensor.__dlpack__)
    with rung.simulate("v100"):
        kept = torch.ones(2, device="cuda")
    assert (torch.UntypedStorage.clone, torch.from_dlpack, torch.Tensor.__dlpack__) == before
    assert kept.untyped_storage().device.type == "cpu"
