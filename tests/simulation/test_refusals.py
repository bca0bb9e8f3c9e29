"""Test that a card refuses in the words of the real software, and that rung's knowledge base knows them."""

from __future__ import annotations

import pytest
import torch

import rung
from rung.core.errors import UsageError
from rung.core.types import Level, StepClass
from rung.diagnosis import classify
from rung.hardware import catalog
from rung.simulation.cards import describe
from rung.simulation.dispatch.dispatcher import Operation
from rung.simulation.simulation import World

CARDS = {
    product.arch: product.name for product in catalog.products() if catalog.architectures()[product.arch].kind != "cpu"
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}


@pytest.mark.parametrize(("arch", "name"), CARDS.items(), ids=CARDS)
def test_every_architecture_refuses_what_the_catalog_says_and_nothing_else(arch, name):
    """Asked without entering a simulation: each product would cost a second."""
    card = World(describe([name])).card
    operations = {
        "matmul": [torch.ops.aten.mm.default, torch.ops.aten.bmm.default],
        "attention": [torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default],
    }
    for kind, funcs in operations.items():
        for dtype, torch_dtype in DTYPES.items():
            level = card.device.capability(f"{kind}.{dtype}").level
            for func in funcs:
                failure = Operation(func).failure(card, torch_dtype)
                assert (failure is not None) == (level is Level.ABSENT), (kind, dtype, level)
                if failure is not None:
                    found = classify(failure())
                    assert found is not None, str(failure())
                    assert found.signature.step is StepClass.UNSUPPORTED


def test_products_of_a_card_that_has_no_bf16():
    with rung.simulate("Tesla K80"):
        x = torch.ones(4, 4, device="cuda", dtype=torch.bfloat16)
        assert (x + 1).device.type == "cuda"
        for product in (lambda: x @ x, lambda: torch.nn.functional.linear(x, x), lambda: torch.bmm(x[None], x[None])):
            with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemm"):
                product()
        assert (x.float() @ x.float())[0, 0] == 4


def test_a_gpu_without_f64():
    with rung.simulate("M1 Pro"), pytest.raises(TypeError, match="MPS framework doesn't support float64"):
        torch.ones(2, dtype=torch.float64, device="mps")


def test_a_kernel_that_demands_more():
    x = torch.ones(1, 1, 4, 8, dtype=torch.float16)
    only_flash = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
    with rung.simulate("2080 ti"):
        there = x.cuda()
        torch.nn.functional.scaled_dot_product_attention(there, there, there)
        with only_flash, pytest.raises(RuntimeError, match="No available kernel"):
            torch.nn.functional.scaled_dot_product_attention(there, there, there)
    with rung.simulate("3090"), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        there = x.cuda()
        assert torch.nn.functional.scaled_dot_product_attention(there, there, there).device.type == "cuda"


def test_an_injected_defect_raises_where_it_hits_and_only_there():
    defect = rung.Defect("matmul", "f16", RuntimeError, "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")
    with rung.simulate("2080 ti", defects=[defect]):
        x = torch.ones(4, 4, device="cuda")
        assert (x @ x).sum() == 64
        with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_SUPPORTED"):
            torch.nn.functional.linear(x.half(), x.half())
        assert (x.half() * 2).sum() == 32
        host = torch.ones(2, 2).half()
        assert (host @ host).sum() == 8


def test_wrong_numbers():
    """As f16 on a GTX 1660: no exception, not a number."""
    with rung.simulate("GTX 1660", defects=[rung.Defect("matmul", "f16"), rung.Defect("convolution", "f16")]):
        x = torch.ones(4, 4, device="cuda")
        assert torch.isnan(x.half() @ x.half()).all()
        assert not torch.isnan(x @ x).any()
        layer = torch.nn.Conv2d(1, 1, 2).cuda().half()
        assert torch.isnan(layer(torch.ones(1, 1, 4, 4, device="cuda").half())).all()


def test_a_defect_by_the_name_of_an_operation():
    text = "igemmlt not available (probably built with NO_CUBLASLT)"
    with rung.simulate("v100", defects=[rung.Defect("_int_mm", "int8", NotImplementedError, text)]):
        x = torch.ones(32, 32, dtype=torch.int8, device="cuda")
        with pytest.raises(NotImplementedError, match="NO_CUBLASLT"):
            torch._int_mm(x, x)
        assert (x + x).sum() == 2 * 32 * 32


def test_bf16_depends_on_the_build_too():
    """The Gemma of the reports: refused by a torch for CUDA 10.2, converted by later ones."""
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with rung.simulate("Quadro P2200", software="torch 1.10+cu102"):
        there = x.cuda()
        assert not torch.cuda.is_bf16_supported()
        assert torch.version.cuda == "10.2"
        with pytest.raises(RuntimeError, match="at::cuda::blas::gemm: not implemented for struct c10::BFloat16"):
            there @ there
        with pytest.raises(RuntimeError, match="at::cuda::blas::bgemm"):
            torch.bmm(there[None], there[None])
    with rung.simulate("Quadro P2200", software="torch 2.3+cu121"):
        there = x.cuda()
        assert (there @ there).sum() == 8


@pytest.mark.parametrize(
    ("software", "words"),
    [
        ("torch 1.10+cu102", "(GPU 0; 1.00 GiB total capacity; 0 bytes already allocated"),
        ("torch 2.3+cu121", "GPU 0 has a total capacity of 1.00 GiB of which"),
    ],
)
def test_messages_are_those_of_the_version(software, words):
    with rung.simulate("Quadro P2200", software=software, memory="1GB"), pytest.raises(RuntimeError) as caught:
        torch.empty(2**31, device="cuda")
    assert words in str(caught.value)


def test_a_build_that_is_none():
    with pytest.raises(rung.RungError, match="names no release of a package"):
        rung.simulate("v100", software="newest")


@pytest.mark.parametrize(
    ("name", "software", "words"),
    [
        ("Quadro P2200", "torch 2.9+cu130", "CUDA error: no kernel image is available for execution on the device"),
        ("RX 580", "torch 2.9+rocm6.4", "HIP error: invalid device function"),
    ],
)
def test_a_build_without_code_for_the_card(name, software, words):
    """Copies and memory need no kernel; the first kernel is refused."""
    with rung.simulate(name, software=software):
        x = torch.ones(3).cuda()
        assert x.view(3, 1).cpu().sum() == 3
        with pytest.raises(RuntimeError, match=words) as caught:
            x + 1
        found = classify(caught.value)
        assert found is not None
        assert found.signature.step is StepClass.UNSUPPORTED


def test_a_defect_that_names_no_operation_is_said():
    begins = rung.simulate("t4", defects=[rung.Defect("matmull", "f16")])
    with pytest.warns(UserWarning, match="no operation called 'matmull'.*Did you mean matmul"), begins:
        pass
    with pytest.raises(UsageError, match="'matmul' is no defect"):
        rung.simulate("t4", defects=["matmul"])
