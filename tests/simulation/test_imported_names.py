"""Functions of torch that a module imported by name, before a simulation and inside of one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types

import pytest
import torch
import torch._dynamo  # wraps torch.manual_seed when it is first imported, which a simulation does
from torch import Generator, empty_like, tensor
from torch.cuda import is_available

import rung


def test_what_was_imported_by_name_before_sees_the_card_too():
    """As torchmetrics does with ``from torch import tensor``; without it the card exists for half of a program."""
    with rung.simulate("Quadro P2200"):
        assert is_available()
        built = tensor([1.0, 2.0], device="cuda")
        assert built.device == torch.device("cuda:0")
        assert tensor(3, device=built.device).is_cuda
        assert empty_like(built).is_cuda
        assert Generator("cuda").device.type == "cuda"
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            built + tensor([1.0, 2.0])


@pytest.mark.parametrize("card", ["v100", "rx 7900 xtx", "arc a770", "m1"])
def test_what_was_imported_by_name_is_put_back(card, monkeypatch):
    owners = (torch, torch.accelerator, torch.cuda, torch.xpu, torch.mps, contextlib, functools)
    holder = types.ModuleType("holder")
    vars(holder).update({f"{of.__name__}_{name}": value for of in owners for name, value in vars(of).items()})
    monkeypatch.setitem(sys.modules, "holder", holder)
    before = {name: dict(vars(module)) for name, module in sys.modules.items() if isinstance(module, types.ModuleType)}
    with rung.simulate(card):
        assert tensor is torch.tensor is holder.torch_tensor
        assert holder.contextlib_nullcontext is before["contextlib"]["nullcontext"]
    for name in [name for name in before if not name.startswith("rung")]:
        changed = [
            key
            for key, value in before[name].items()
            if callable(value) and vars(sys.modules[name]).get(key) is not value
        ]
        assert not changed, name


def test_what_was_imported_by_name_inside_is_torchs_afterwards_and_sees_the_next_card(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text("from torch import tensor\nfrom torch.cuda import device_count, is_available\n")
    monkeypatch.syspath_prepend(tmp_path)
    with rung.simulate("Quadro P2200"):
        late = importlib.import_module("late")
        assert late.device_count() == 1
    try:
        assert late.tensor is torch.tensor
        assert not late.is_available()
        with rung.simulate("2x3090"):
            assert late.device_count() == 2
            assert late.tensor(1, device="cuda:1").device == torch.device("cuda", 1)
    finally:
        del sys.modules["late"]
