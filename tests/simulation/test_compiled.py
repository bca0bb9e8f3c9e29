"""Kernels in CUDA C on simulated cards, which run them on the processor: what is bound, answers, graphs."""

import contextlib

import numpy as np
import pytest
import torch

import rung
from rung import formats
from rung.kernels.cuda import driver, fibers
from rung.kernels.gpu import cuda_products, stored
from rung.simulation.cards import describe
from tests.fixtures import references
from tests.support.weights import weight

pytestmark = pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
#: Of the compute capabilities 6.1, 7.0, 7.5 and 8.6, and one of AMD's.
CARDS = ("p2200", "v100", "t4", "3060", "7900 xtx")
OPTIONS = {"max_tokens": 6, "temperature": 0, "raw": True}


@contextlib.contextmanager
def launches():
    """The names of kernels that are launched in the block."""
    names, launch = [], driver.launch
    driver.launch = lambda *given: names.append(given[2]) or launch(*given)
    try:
        yield names
    finally:
        driver.launch = launch


def answers(model):
    return ["".join(model.generate(prompt, **OPTIONS)) for prompt in ("The model", "Memory is " * 9)]


@pytest.fixture(scope="module")
def right():
    """The fixture with formats of both kinds of codes, and its answers on the processor."""
    path = str(references.fixture("llama-q4_k_m").path)
    return path, answers(rung.load(path, device="cpu"))


@pytest.mark.parametrize("name", CARDS)
def test_a_model_takes_the_kernels_and_gives_the_tokens_of_the_processor(name, right):
    """A token, and prompts of more rows than a kernel takes."""
    path, tokens = right
    with rung.simulate(name) as card:
        model = rung.load(path, device=card.id)
        linears = {rung for op, rung in model.report.rungs.items() if op.startswith("linear")}
        assert linears == {"cuda.rows"}
        assert not model.report.steps
        assert answers(model) == tokens


@pytest.mark.parametrize(
    ("format", "taken"), [("nf4", "cuda.stored"), ("int8", "cuda.stored"), ("q4_0", "torch.decode")]
)
def test_layers_hold_no_second_copy_of_a_weight(format, taken):
    """What is read as it is stored has a kernel; what a kernel wants packed is decoded."""
    plain = torch.nn.Linear(256, 40)
    with rung.simulate("p2200"), torch.no_grad():
        layer = rung.quantize(torch.nn.Sequential(plain), format).to("cuda")[0]
        x = torch.randn(3, 256, device="cuda")
        got, right = layer(x).cpu(), (x @ layer.weight.float().T + layer.bias).cpu()
        assert layer.stored.linear(x).rungs[0].name == taken
    assert np.allclose(got, right, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_training_decodes_a_slab_at_a_time(dtype, monkeypatch):
    """Gradients of activations are those of the decoded weight, which is never whole in the card's memory."""
    monkeypatch.setattr(stored, "SLAB", 1 << 16)
    plain = torch.nn.Linear(1024, 512, bias=False)
    with rung.simulate("3060"), launches() as launched:
        layer = rung.quantize(torch.nn.Sequential(plain), "nf4").to("cuda")[0]
        whole = layer.weight.detach().float().cpu()
        x = torch.randn(20, 1024, dtype=dtype, device="cuda", requires_grad=True)
        layer(x).float().square().sum().backward()  # the first call proves the rung
        x.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer(x).float().square().sum().backward()
        assert torch.cuda.max_memory_allocated() - before < 1024 * 512 * dtype.itemsize
        got, x = x.grad.cpu(), x.detach().cpu()
    right = (2 * (x.float() @ whole.T) @ whole).numpy()
    assert np.allclose(got.float(), right, atol=(2e-3 if dtype is torch.float16 else 1e-5) * np.abs(right).max())
    assert "decode" in launched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_operators_of_bitsandbytes(dtype, monkeypatch):
    """The product by the codebook and decoded weights, on the card as on the processor."""
    from rung.formats.families.codebook4 import CODEBOOKS
    from rung.hub.bitsandbytes.kernels import KERNELS

    monkeypatch.setattr(stored, "SLAB", 1 << 16)
    codes, absmax = KERNELS["quantize_4bit"](torch.randn(96, 256), 64, "nf4", torch.uint8)
    x, code = torch.randn(2, 3, 256).to(dtype), torch.from_numpy(CODEBOOKS["nf4"])
    given = (codes, [96, 256], absmax, code, 64)
    right = KERNELS["gemv_4bit"](x, *given), KERNELS["dequantize_4bit"](codes, absmax, 64, "nf4", [96, 256], dtype)
    with rung.simulate("3060"), launches() as launched:
        there = [each.to("cuda") if isinstance(each, torch.Tensor) else each for each in (x, *given)]
        product = KERNELS["gemv_4bit"](*there).cpu()
        weight_there = KERNELS["dequantize_4bit"](there[1], there[3], 64, "nf4", [96, 256], dtype).cpu()
    assert torch.equal(weight_there, right[1])
    assert np.allclose(product.float(), right[0].float(), atol=1e-5 if dtype is torch.float32 else 0.05)
    assert "decode" in launched


def test_a_graph_launches_them_again():
    encoded = weight(formats.get("q4_0"), 20, 128)
    dense = torch.from_numpy(formats.decode(encoded))
    with rung.simulate("3060") as card:
        made = cuda_products.packed(encoded, torch.device(card.id))
        given, graph = torch.zeros(2, 128, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = cuda_products.multiply(made, given) + 1
        given.copy_(torch.randn(2, 128))
        graph.replay()
        got, x = y.cpu() - 1, given.cpu()
    assert np.allclose(got, x @ dense.T, atol=0.05 * float((x @ dense.T).abs().max()))


def test_without_a_compiler_a_card_has_none(monkeypatch):
    monkeypatch.setattr(fibers, "compiler", lambda: "")
    (card,) = describe(["p2200"])
    assert "nvrtc" not in card.software
