"""``torch.autocast`` on simulated cards, held against torch's own on tensors that lie nowhere."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rung

ops = torch.ops.aten
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def operations(new, wide):
    """Name and what calls it, of every policy that torch has and of operations that it leaves alone.

    ``wide``: the widest dtype that the card has.
    """
    a, b, c, v, w = new(4, 4), new(4, 4), new(4, 4), new(4), new(4)
    line, image, stack = new(1, 2, 6), new(1, 2, 5, 5), new(2, 3, 3)
    kernel, taps = new(2, 2, 3, 3), new(2, 2, 3)
    half, other, narrow = new(4, 4, dtype=F16), new(4, 4, dtype=BF16), new(4, dtype=F16)
    index = torch.zeros(4, dtype=torch.long, device=a.device)
    return {
        "mm": lambda: torch.mm(a, b),
        "mm f16": lambda: torch.mm(half, half),
        "mm wide": lambda: torch.mm(a.to(wide), b.to(wide)),
        "addmm": lambda: torch.addmm(a, b, c),
        "bmm": lambda: torch.bmm(stack, stack),
        "baddbmm": lambda: torch.baddbmm(stack, stack, stack),
        "mv": lambda: torch.mv(a, v),
        "addmv": lambda: torch.addmv(v, a, w),
        "addr": lambda: torch.addr(a, v, w),
        "matmul": lambda: a @ b,
        "linear": lambda: torch.nn.functional.linear(a, b, v),
        "einsum": lambda: torch.einsum("ij,jk->ik", a, b),
        "chain_matmul": lambda: ops.chain_matmul([a, b, c]),
        "multi_dot": lambda: torch.linalg.multi_dot([a, b, c]),
        "conv1d": lambda: torch.conv1d(line, taps),
        "conv2d": lambda: torch.conv2d(image, kernel),
        "convolution": lambda: ops.convolution(image, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        "conv_transpose2d": lambda: torch.conv_transpose2d(image, kernel),
        "conv_transpose3d": lambda: torch.conv_transpose3d(new(1, 2, 3, 3, 3), new(2, 2, 2, 2, 2)),
        "prelu": lambda: torch.prelu(a, new(1)),
        "lstm_cell": lambda: ops.lstm_cell(a, [b, c], new(16, 4), new(16, 4), new(16), new(16)),
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(stack, stack, stack),
        "exp": lambda: half.exp(),
        "pow": lambda: half**1.5,
        "number to a power": lambda: 2**half,
        "rsqrt": lambda: torch.rsqrt(other),
        "layer_norm": lambda: torch.nn.functional.layer_norm(half, (4,)),
        "rms_norm": lambda: torch.rms_norm(half, (4,)),
        "mse_loss": lambda: torch.nn.functional.mse_loss(half, half),
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(half, index),
        "interpolate": lambda: torch.nn.functional.interpolate(image.half(), scale_factor=2),
        "softmax": lambda: torch.softmax(half, -1),
        "softmax in a dtype": lambda: torch.softmax(half, -1, dtype=wide),
        "sum": lambda: half.sum(),
        "sum in a dtype": lambda: half.sum(dtype=F16),
        "sum of rows": lambda: other.sum(1),
        "sum of whole numbers": lambda: index.sum(),
        "cumsum": lambda: half.cumsum(0),
        "norm": lambda: ops.norm.Scalar(half),
        "norm of rows": lambda: ops.norm.ScalarOpt_dim(half, None, [1]),
        "norm wide": lambda: ops.norm.Scalar(a.to(wide)),
        "vector_norm": lambda: torch.linalg.vector_norm(half),
        "addcmul": lambda: torch.addcmul(a, half, half),
        "addcmul bf16": lambda: torch.addcmul(a, other, other),
        "atan2": lambda: torch.atan2(half, half),
        "dot": lambda: torch.dot(v, narrow),
        "scatter_add": lambda: torch.scatter_add(v, 0, index, narrow),
        "index_put": lambda: torch.index_put(narrow, (index,), narrow),
        "tensordot": lambda: torch.tensordot(a, half),
        "binary_cross_entropy": lambda: torch.nn.functional.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
        "add": lambda: a + half,
        "add f16": lambda: half + half,
        "cat": lambda: torch.cat([a, half]),
        "relu": lambda: half.relu(),
        "pad": lambda: torch.nn.functional.pad(line.half(), (1, 1), "reflect"),
        "fft": lambda: torch.fft.fft(a).abs(),
        "quantile": lambda: torch.quantile(a, 0.5),
    }


def outcomes(device):
    """The dtypes of results, or the words of an error, each operation by itself."""
    found = {}
    for name, call in operations(operands(device), F64 if "cuda" in device else F32).items():
        try:
            result = call()
            found[name] = [t.dtype for t in (result if isinstance(result, (list, tuple)) else [result])]
        except RuntimeError as error:
            found[name] = str(error) if "autocast" in str(error) else "refused"
    return found


@contextlib.contextmanager
def torchs_own(kind, dtype):
    """torch's kernels of ``autocast`` as on a card, on tensors without values, where there is no card."""
    with FakeTensorMode(), torch.no_grad():
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled(kind, False)


def operands(device):
    def new(*shape, dtype=F32):
        return torch.ones(shape, dtype=dtype, device=device)

    return new


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch's own would run on the card that is here")
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(("kind", "card"), [("cuda", "A100"), ("xpu", "arc a770"), ("mps", "m1")])
def test_every_operation_has_the_dtype_that_torch_gives_it(kind, card, dtype):
    with torchs_own(kind, dtype):
        want, on_host = outcomes(f"{kind}:0"), outcomes("cpu")
    with rung.simulate(card), torch.no_grad(), torch.autocast(kind, dtype=dtype):
        found = outcomes(kind)
        assert outcomes("cpu") == on_host
    unknown = {name for name, one in want.items() if one == "refused"}  # without a value to compute with
    assert unknown <= {"attention"}
    assert {**found, **dict.fromkeys(unknown, "refused")} == want != on_host


def test_what_lies_on_the_host_keeps_its_dtype_and_its_gradient():
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    want = torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]
    with rung.simulate("V100"), torch.autocast("cuda", dtype=F16):
        out = layer(x)
        assert out.dtype == F32
        assert not torch.is_autocast_enabled("cpu")
        assert torch.equal(torch.autograd.grad(out.square().sum(), layer.weight)[0], want)


def test_gradients_are_those_of_casts_by_hand():
    weight, x = torch.randn(4, 4), torch.randn(2, 4)
    by_hand = weight.clone().requires_grad_()
    (x.half() @ by_hand.half()).float().square().sum().backward()
    with rung.simulate("V100"):
        here, x = weight.cuda().requires_grad_(), x.cuda()
        with torch.autocast("cuda", dtype=F16):
            loss = (x @ here).float().square().sum()
        loss.backward()
        assert here.grad.dtype == F32
        assert torch.equal(here.grad.cpu(), by_hand.grad)


def test_the_cast_of_a_weight_is_kept_for_the_block():
    with rung.simulate("V100"):
        weight, x = torch.ones(512, 512, device="cuda", requires_grad=True), torch.ones(1, 512, device="cuda")
        x @ weight
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=F16):
            with torch.no_grad():
                x @ weight
            assert (x @ weight).requires_grad
            assert 512 * 512 * 2 <= torch.cuda.memory_allocated() - before < 2 * 512 * 512 * 2
        assert torch.cuda.memory_allocated() == before
        with torch.autocast("cuda", dtype=F16, cache_enabled=False):
            x @ weight
            assert torch.cuda.memory_allocated() == before


def test_the_autocast_of_the_host_is_another_one():
    with rung.simulate("V100"):
        with torch.autocast("cpu", dtype=BF16), torch.autocast("cuda", dtype=F16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == BF16
            assert (torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()).dtype == F16
        with torch.autocast("cuda", dtype=F16), torch.autocast("cuda", enabled=False):
            assert (torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()).dtype == F32


def test_torchs_own_kernels_are_back_afterwards():
    if torch.cuda.is_available():
        pytest.skip("there is a card: torch's own kernels would want its memory")
    with rung.simulate("V100"), torch.autocast("cuda", dtype=F16):
        torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    with torchs_own("cuda", F16):
        assert torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda")).dtype == F16
