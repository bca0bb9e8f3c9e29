"""How a simulation sees operations: beside the modes of a program, without views, in its own threads alone."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rung
from rung.simulation.dispatch import dispatch_hook


class _Noting(TorchDispatchMode):
    """A mode of a program: it notes the operations, and what they raise."""

    def __init__(self):
        super().__init__()
        self.names, self.failures = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            self.failures.append(str(error))
            raise


def test_a_mode_of_the_program_sees_operations_before_the_card_refuses_them():
    with rung.simulate("p2200", software="torch 1.10+cu102"):
        x = torch.ones(2, 2, dtype=torch.bfloat16, device="cuda")
        with _Noting() as noting, _Noting() as inner:
            product = x.float().t() @ x.float()
            with pytest.raises(RuntimeError, match="not implemented for struct c10::BFloat16"):
                x @ x
    for mode in (noting, inner):
        assert mode.names == ["aten::_to_copy", "aten::t", "aten::_to_copy", "aten::mm", "aten::mm"]
        assert len(mode.failures) == 1
    assert str(product.sum().item()) == "8.0"


def test_views_are_not_looked_at_and_lie_where_their_tensor_lies(monkeypatch):
    with rung.simulate("v100"):
        x, looked = torch.ones(4, 6, device="cuda"), []
        handler = dispatch_hook.current_handler
        monkeypatch.setattr(
            dispatch_hook, "current_handler", lambda func, *rest: looked.append(func.name()) or handler(func, *rest)
        )
        view = x.t().view(2, 3, 4)[0].unsqueeze(0).expand(5, 3, 4).detach()
        assert (looked, view.device) == ([], x.device)
        assert (view + 1).device == x.device
        assert looked == ["aten::add.Tensor"]


def test_gradients_add_up_in_place_as_on_a_card(monkeypatch):
    with rung.simulate("v100"):
        x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        lies = x.grad.data_ptr()
        looked, handler = [], dispatch_hook.current_handler
        monkeypatch.setattr(
            dispatch_hook, "current_handler", lambda func, *rest: looked.append(func.name()) or handler(func, *rest)
        )
        (x * 3).sum().backward()
        assert x.grad.data_ptr() == lies
        assert "aten::add_.Tensor" in looked
        assert x.grad.device.type == "cuda"


def test_a_thread_that_outlives_the_simulation_computes_on():
    begun, ended, found = threading.Event(), threading.Event(), []

    def work():
        x = torch.ones(3)
        begun.set()
        ended.wait(30)
        found.append((x + 1).tolist())

    with rung.simulate("v100"):
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(30)
    ended.set()
    thread.join(30)
    assert found == [[2.0, 2.0, 2.0]]
    assert not torch._C._dispatch_tls_is_dispatch_key_included(dispatch_hook._KEY)
