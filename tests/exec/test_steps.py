"""Refused operations are repeated one rung lower, with the values, dtypes and gradients that they would have had."""

from __future__ import annotations

import pytest
import torch

import rung
from rung.exec import fallbacks
from rung.exec.fallbacks import _CUTS, in_pieces, ways
from rung.exec.report import Notes, read
from rung.exec.step_down import Steps
from tests.exec.helped import helped

GEMM_EX = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`"
aten = torch.ops.aten


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes"
    path.touch()
    return path


def said(path):
    return [(op, before, after) for op, _, before, after, _ in read(str(path))]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_refused_product_is_computed_in_f32_and_keeps_its_dtype(notes):
    a, b = random(5, 32).bfloat16(), random(32, 7, seed=1).bfloat16()
    with helped(notes, "p2200", software="torch 1.10+cu102"):
        for _ in range(3):
            found = a.cuda() @ b.cuda()
        assert found.device.type == "cuda"
        assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.cpu(), (a.float() @ b.float()).bfloat16(), rtol=0, atol=0)
    assert said(notes) == [("mm", "bfloat16", "float32")]
    ((_, device, _, _, reason),) = read(str(notes))
    assert device == "cuda:0"
    assert "not implemented for struct c10::BFloat16" in reason


def step(layer, x):
    """The gradients of a step, and the loss."""
    loss = torch.nn.functional.gelu(layer(x)).float().square().mean()
    loss.backward()
    return [loss, *(p.grad for p in layer.parameters())]


def test_gradients_and_threads(notes):
    layer, x = torch.nn.Linear(16, 8).bfloat16(), random(4, 16).bfloat16()
    expected = [value.detach().clone() for value in step(layer, x)]
    layer.zero_grad()
    from concurrent.futures import ThreadPoolExecutor

    with helped(notes, "p2200", software="torch 1.10+cu102"), ThreadPoolExecutor(1) as pool:
        found = [value.detach().cpu() for value in pool.submit(lambda: step(layer.cuda(), x.cuda())).result()]
    assert [value.dtype for value in found[1:]] == [torch.bfloat16] * 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-3)
    assert ("addmm", "bfloat16", "float32") in said(notes)
    assert ("mm", "bfloat16", "float32") in said(notes)  # of the backward pass


def test_autocast(notes):
    layer, x = torch.nn.Linear(16, 8), random(4, 16)
    with helped(notes, "gtx 980"), torch.autocast("cuda", torch.bfloat16):
        found = layer.cuda()(x.cuda())
    assert found.dtype is torch.bfloat16
    assert said(notes) == [("addmm", "bfloat16", "float32")]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(notes, mode):
    with mode(), helped(notes, "p2200", software="torch 1.10+cu102"):
        layer = torch.nn.Linear(16, 8, device="cuda", dtype=torch.bfloat16)
        assert layer(torch.ones(2, 16, device="cuda", dtype=torch.bfloat16)).dtype is torch.bfloat16
        q = torch.ones(1, 2, 4, 8, device="cuda", dtype=torch.bfloat16)
        assert torch.nn.functional.scaled_dot_product_attention(q, q, q).dtype is torch.bfloat16
    assert {(before, after) for _, before, after in said(notes)} == {("bfloat16", "float32")}


def test_what_is_written_is_written(notes):
    a, b = random(4, 4).half(), random(4, 4, seed=1).half()
    refused = rung.Defect("matmul", "f16", RuntimeError, "CUDNN_STATUS_NOT_SUPPORTED")
    with helped(notes, "2080 ti", defects=[refused]):
        out = torch.empty(4, 4, device="cuda", dtype=torch.float16)
        assert torch.mm(a.cuda(), b.cuda(), out=out) is out
        total = torch.ones(4, 4, device="cuda", dtype=torch.float16)
        assert total.addmm_(a.cuda(), b.cuda()) is total
    expected = (a.float() @ b.float()).half()
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(total.cpu(), (1 + a.float() @ b.float()).half())


def test_several_results_have_the_dtypes_that_they_would_have(notes):
    x = random(2, 3, 8).bfloat16()
    refused = rung.Defect(
        "native_layer_norm", "bf16", RuntimeError, "\"LayerNormKernelImpl\" not implemented for 'BFloat16'"
    )
    with helped(notes, "2080 ti", defects=[refused]):
        found = torch.native_layer_norm(x.cuda(), [8], None, None, 1e-5)
    assert [one.dtype for one in found] == [one.dtype for one in torch.native_layer_norm(x, [8], None, None, 1e-5)]
    torch.testing.assert_close(found[0].cpu(), torch.native_layer_norm(x, [8], None, None, 1e-5)[0])


def test_a_bug_is_not_repeated(notes):
    with helped(notes, "p2200", software="torch 1.10+cu102"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
        with pytest.raises(RuntimeError, match="at least two devices"):
            torch.ones(2, 2, device="cuda") @ torch.ones(2, 2)
    assert said(notes) == []


def test_what_nothing_lower_does_fails_as_it_failed(notes):
    refused = rung.Defect("matmul", "*", RuntimeError, GEMM_EX)
    with helped(notes, "2080 ti", defects=[refused]), pytest.raises(RuntimeError, match="cublasGemmEx") as caught:
        torch.ones(2, 2, device="cuda", dtype=torch.float16) @ torch.ones(2, 2, device="cuda", dtype=torch.float16)
    assert caught.value.__cause__ is None
    assert said(notes) == []


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.mm.default, (random(3, 8), random(8, 5, seed=1))),
        (aten.addmm.default, (random(5, seed=2), random(3, 8), random(8, 5, seed=1))),
        (aten.bmm.default, (random(2, 3, 8), random(2, 8, 5, seed=1))),
    ],
)
def test_every_way_computes_the_same(op, args):
    expected = op(*args)
    found = {name: way(args, {}) for name, way in ways(op, torch.float32, algorithms=True)}
    assert len(found) == 2
    for value in found.values():
        torch.testing.assert_close(value, expected)
    half = tuple(a.half() for a in args)
    found = {name: way(half, {}) for name, way in ways(op, torch.float16, algorithms=False)}
    assert list(found) == ["float32", "bfloat16"]
    for value in found.values():
        torch.testing.assert_close(value, expected.half(), rtol=0.05, atol=0.05)


CONVOLUTION = [
    "Unable to find a valid cuDNN algorithm to run convolution",
    "GET was unable to find an engine to execute this computation",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    "cuDNN error: CUDNN_STATUS_BAD_PARAM",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "cuDNN error: CUDNN_STATUS_ARCH_MISMATCH",
    "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
    "miopenStatusUnknownError",
    "miopenStatusBadParm",
]
PRODUCTS = [
    "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a)`",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a)`",
    "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasGemmEx`",
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("text", CONVOLUTION)
def test_a_refused_convolution(notes, text, dtype):
    x, weight = random(2, 3, 8, 8).to(dtype), random(4, 3, 3, 3, seed=1).to(dtype)
    found, expected = [], []
    refused = rung.Defect("convolution", {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype], RuntimeError, text)
    with helped(notes, "rtx 3060", defects=[refused]):
        w = weight.cuda().requires_grad_()
        result = torch.nn.functional.conv2d(x.cuda(), w)
        result.sum().backward()
        found += [result.detach().cpu(), w.grad.cpu()]
    w = weight.double().requires_grad_()
    result = torch.nn.functional.conv2d(x.double(), w)
    result.sum().backward()
    expected += [result.detach(), w.grad]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.05)
    assert ("convolution", str(dtype).removeprefix("torch."), "float32") in said(notes)


@pytest.mark.parametrize("text", PRODUCTS)
def test_a_product_that_the_library_refuses_by_other_names(notes, text):
    a, b = random(5, 32).half(), random(32, 7, seed=1).half()
    with helped(notes, "rtx 3060", defects=[rung.Defect("matmul", "f16", RuntimeError, text)]):
        found = (a.cuda() @ b.cuda()).cpu()
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=0.01, atol=0.01)
    assert said(notes) == [("mm", "float16", "float32")]


@pytest.mark.parametrize(
    "text",
    [
        "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a"
        " signal size of[12]",
        "cuFFT doesn't support signals of half type with compute capability less than SM_53, but the device has SM_50",
    ],
)
def test_a_fourier_transform_in_half_precision(text):
    class Notes:
        def step(self, *words):
            self.words = words

    x, noted = random(12).half(), Notes()
    found = Steps(noted).repeat(aten._fft_r2c.default, (x, [0], 0, True), {}, RuntimeError(text))
    assert found.dtype is torch.complex32
    torch.testing.assert_close(found.to(torch.complex64), torch.fft.rfft(x.float()), rtol=0.01, atol=0.01)
    assert noted.words[:4] == ("_fft_r2c", "cpu", "float16", "float32")


def test_a_convolution_is_tried_without_cudnn_first(notes, monkeypatch):
    states = []

    class Op:
        name = staticmethod(lambda: "aten::convolution")

    monkeypatch.setattr(fallbacks, "ROUTES", {"convolution": fallbacks.convolved(lambda *_: states.append(_enabled()))})
    labels = [(label, way((random(2),), {})) for label, way in ways(Op, torch.float32, algorithms=True)]
    assert [label for label, _ in labels] == ["without cuDNN", "contiguous"]
    assert states == [False, True]
    assert _enabled()


def _enabled():
    return torch._C._get_cudnn_enabled()


def test_a_way_that_another_size_refuses_is_looked_for_again(notes):
    steps = Steps(Notes(str(notes)))
    small, large = random(2, 2), random(4, 4)

    def refuse(*arguments):
        raise RuntimeError(GEMM_EX)

    found = [steps.repeat(aten.mm.default, (small, small), {}, RuntimeError(GEMM_EX))]
    ((key, (label, way, reason)),) = steps.found_ways.items()
    steps.found_ways[key] = (
        label,
        lambda arguments, named: way(arguments, named) if len(arguments[0]) == 2 else refuse(),
        reason,
    )
    found += [steps.remembered(aten.mm.default, refuse, (x, x), {}) for x in (small, large, large)]
    for one, x in zip(found, (small, small, large, large), strict=True):
        torch.testing.assert_close(one, x @ x)
    assert said(notes) == [("mm", "float32", "contiguous")]


def test_addmm_by_another_route_keeps_its_factors():
    args, named = (random(5, seed=2), random(3, 8), random(8, 5, seed=1)), {"beta": 2, "alpha": 3}
    for _, way in ways(aten.addmm.default, torch.float32, algorithms=True):
        torch.testing.assert_close(way(args, named), torch.addmm(*args, **named))


def test_an_int8_product_is_emulated_exactly():
    left = torch.randint(-128, 128, (17, 5000), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    left[0], right = -128, left.t().contiguous()
    ((name, way),) = ways(aten._int_mm.default, torch.int8, algorithms=False)
    assert name == "emulated"
    assert torch.equal(way((left, right), {}), left.int() @ right.int())


def test_an_fp8_product_is_emulated():
    left, right = random(16, 32).to(torch.float8_e4m3fn), random(16, 32, seed=1).to(torch.float8_e4m3fn).t()
    scale, other = torch.tensor(0.5), torch.tensor(3.0)
    ((_, way),) = ways(aten._scaled_mm.default, torch.float8_e4m3fn, algorithms=False)
    found = way((left, right, scale, other), {"out_dtype": torch.bfloat16})
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), 1.5 * (left.float() @ right.float()), rtol=0.01, atol=0.01)


def test_an_overload_that_writes_to_a_tensor_does_so():
    left = torch.randint(-128, 128, (17, 40), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    ((_, way),) = ways(aten._int_mm.out, torch.int8, algorithms=False)
    out = torch.zeros(17, 17, dtype=torch.int32)
    assert way((left, left.t()), {"out": out}) is out
    assert torch.equal(out, left.int() @ left.int().t())


def test_a_stand_in_belongs_to_one_overload(monkeypatch):
    monkeypatch.setattr(fallbacks, "_STAND_INS", {})
    library = torch.library.Library("rung_steps", "DEF")  # not scoped: torch 2.6 crashes when two overloads are gone
    for overload in ("f", "f.out"):
        library.define(f"{overload}(Tensor x) -> Tensor")
        fallbacks.stand_in(f"rung_steps::{overload}", lambda x, overload=overload: overload)
    for op, expected in ((torch.ops.rung_steps.f.default, "f"), (torch.ops.rung_steps.f.out, "f.out")):
        ((_, way),) = ways(op, torch.float32, algorithms=False)
        assert way((None,), {}) == expected


MB = 2**20


@pytest.mark.parametrize("bias", [False, True])
def test_a_copy_that_does_not_fit_is_made_in_pieces(notes, bias):
    weight, x = random(4096, 2048).bfloat16(), random(3, 2048, seed=1).bfloat16()  # 16 MB, 32 MB in f32
    first = random(4096, seed=2).bfloat16() if bias else None
    with helped(notes, "p2200", software="torch 1.10+cu102", memory="1GB") as steps:
        free, _ = torch.cuda.mem_get_info()
        filler = torch.empty(free - 52 * MB, dtype=torch.uint8, device="cuda")
        found = torch.nn.functional.linear(x.cuda(), weight.cuda(), first.cuda() if bias else None)
        assert torch.cuda.memory_stats()["num_ooms"] > 0
        del filler
    expected = torch.nn.functional.linear(x.float(), weight.float(), first.float() if bias else None)
    torch.testing.assert_close(found.cpu(), expected.bfloat16())
    assert steps.names


def test_a_product_whose_wider_result_does_not_fit_is_made_in_pieces(notes):
    left, right = random(4096, 64).bfloat16(), random(64, 4096, seed=1).bfloat16()  # 32 MB, 64 MB in f32
    with helped(notes, "p2200", software="torch 1.10+cu102", memory="1GB") as steps:
        free, _ = torch.cuda.mem_get_info()
        filler = torch.empty(free - 70 * MB, dtype=torch.uint8, device="cuda")
        found = left.cuda() @ right.cuda()
        del filler
    torch.testing.assert_close(found.cpu(), (left.float() @ right.float()).bfloat16())
    assert steps.names


def test_a_lower_dtype_that_does_not_fit_is_said(notes):
    with helped(notes, "p2200", software="torch 1.10+cu102", memory="1GB"):
        free, _ = torch.cuda.mem_get_info()
        filler = torch.empty(free - 4 * MB, dtype=torch.uint8, device="cuda")
        half = {"dtype": torch.bfloat16, "device": "cuda"}
        with pytest.raises(RuntimeError, match="not implemented for struct c10::BFloat16"):
            torch.ones(256, 8, **half) @ torch.ones(8, 8192, **half)
        del filler
    assert "mm on cuda:0: float32 does not fit into the memory" in {row[-1] for row in read(str(notes))}


def test_a_result_that_does_not_fit_is_still_out_of_memory(notes):
    with helped(notes, "p2200", memory="450MB"), pytest.raises(torch.cuda.OutOfMemoryError):
        torch.ones(8192, 8, device="cuda") @ torch.ones(8, 8192, device="cuda")
    assert said(notes) == []


def _pieces():
    """Every operation that can be cut, with arguments."""
    a, b, bias = random(6, 8), random(8, 10, seed=1), random(10, seed=2)
    many, others = random(3, 6, 8), random(3, 8, 10, seed=1)
    return {
        "mm": (a, b), "addmm": (bias, a, b), "bmm": (many, others), "baddbmm": (random(3, 1, 10), many, others),
        "linear": (a, b.t(), bias), "matmul": (many, b), "_int_mm": (a.to(torch.int8), b.to(torch.int8)),
        "_scaled_mm": (a, b, random(6, 1), torch.tensor(2.0)),
        "convolution": (random(4, 3, 9), random(5, 3, 2), None, [1], [0], [1], False, [0], 1),
        "_cdist_forward": (many, random(3, 7, 8), 2.0, None),
    }  # fmt: skip


@pytest.mark.parametrize("name", _CUTS)
@pytest.mark.parametrize("rows", [1, 3])
def test_pieces_are_the_whole(name, rows):
    op, args = getattr(aten, name).default, _pieces()[name]
    sizes = []

    def way(arguments, named):
        found = _computed(op)(arguments, named)
        sizes.append(found.numel())
        if min(found.shape) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity")
        return found

    found, expected = in_pieces(op, way, args, {}), _computed(op)(args, {})
    torch.testing.assert_close(found, expected)
    assert max(sizes) < expected.numel()


def _computed(op):
    """Return the stand-in for an operation that this processor computes otherwise, else the operation."""
    return dict(ways(op, torch.int8, algorithms=False)).get(
        "emulated", lambda arguments, named: op(*arguments, **named)
    )


def test_what_cannot_be_cut_is_not():
    def full(arguments, named):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity")

    assert in_pieces(aten.mm.default, full, (random(2, 2), random(2, 2)), {}) is None
    assert in_pieces(aten.relu.default, full, (random(2, 2),), {}) is None
    with pytest.raises(RuntimeError, match="shapes"):
        in_pieces(aten.mm.default, lambda arguments, named: torch.mm(*arguments), (random(2, 3), random(2, 3)), {})
