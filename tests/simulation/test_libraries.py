"""Operators of other libraries on a simulated card: what their kernels ask of torch is judged."""

import pytest
import torch

import rung


@pytest.fixture
def square():
    library = torch.library.Library("rung_other_library", "DEF")
    library.define("square(Tensor x) -> Tensor")
    library.impl("square", lambda x: x @ x, "CPU")
    yield torch.ops.rung_other_library.square
    library._destroy()


def test_a_product_inside_is_refused(square):
    with rung.simulate("V100", defects=[rung.Defect("matmul", "f16", RuntimeError, "no such product")]):
        x = torch.ones(2, 2, device="cuda")
        assert square(x).device.type == "cuda"
        assert square(x).cpu().tolist() == [[2, 2], [2, 2]]
        with pytest.raises(RuntimeError, match="no such product"):
            square(x.half())
