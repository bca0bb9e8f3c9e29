"""Capabilities that depend on the hardware and on the software, each from the report that its rule names."""

import subprocess
import sys

import pytest

import rung
from rung.core.errors import UsageError
from rung.core.types import Level, Proof
from rung.hardware import catalog
from rung.hardware.catalog import releases
from rung.hardware.catalog.rows import architectures
from tests.support.rows import each_row


def level(name, capability, software=None):
    return catalog.device(name, software).capability(capability).level.value


@pytest.mark.parametrize(
    ("name", "software", "capability", "expected"),
    [
        # gemma_pytorch#3, pytorch#67682: a build for CUDA 10.2 has no bf16 GEMM at all, on no card
        ("p2200", "torch 1.10+cu102", "matmul.bf16", "absent"),
        ("a100", "torch 1.10+cu102", "matmul.bf16", "absent"),
        ("p2200", "torch 2.3+cu121", "matmul.bf16", "emulated"),
        ("p2200", "torch 1.12+cu116", "matmul.bf16", "emulated"),
        # pytorch#57773: refused on 6.0 with CUDA 11.3
        ("p100", "torch 1.12+cu113", "matmul.bf16", "absent"),
        # pytorch#50442
        ("2080 ti", "torch 1.7+cu110", "matmul.bf16", "absent"),
        # 6.0 differs from 6.1 in f16
        ("p100", None, "matmul.f16", "native"),
        ("p100", None, "arithmetic.f16", "native"),
        ("p2200", None, "matmul.f16", "emulated"),
        ("p2200", None, "arithmetic.f16", "emulated"),
        # 7.0 has no int8 tensor cores, 7.5 has
        ("v100", None, "units.int8", "absent"),
        ("v100", None, "units.f16", "native"),
        ("t4", None, "units.int8", "native"),
        ("gtx 1660", None, "units.int8", "absent"),
        # sm_60 code runs on 6.1, without dp4a
        ("p2200", "torch 2.3+cu121", "code", "native"),
        ("p2200", "torch 2.3+cu121", "dot8", "native"),
        ("p2200", "torch 2.3+cu121", "code.dot8", "absent"),
        ("v100", "torch 2.3+cu121", "code.dot8", "native"),
        # no device code for the architecture
        ("p2200", "torch 2.13+cu130", "matmul.f32", "absent"),
        ("v100", "torch 2.11+cu128", "code", "absent"),
        ("v100", "torch 2.10+cu128", "code", "native"),
        ("5090", "torch 2.6+cu124", "code", "absent"),
        ("rx 6700 xt", "torch 2.9+rocm6.4", "code", "native"),
        ("rx 5700 xt", "torch 2.9+rocm6.4", "code", "absent"),
        ("7900 xtx", "torch 2.3+cu121", "code", "absent"),
        ("m1", "torch 2.2", "matmul.bf16", "absent"),
        ("m1", "torch 2.3", "matmul.bf16", "emulated"),
        ("p2200", None, "compile", "absent"),
        ("v100", None, "compile", "native"),
        ("a100", "torch 1.13+cu117", "attention.flash", "absent"),
        ("4090", "torch 2.0+cu118", "matmul.fp8", "absent"),
    ],
)
def test_hardware_and_software_together(name, software, capability, expected):
    assert level(name, capability, software) == expected


def test_what_is_refused_says_why_and_where_it_was_found():
    found = rung.device("p2200", software="torch 1.10+cu102").capability("matmul.bf16")
    assert found.proof is Proof.TABLE
    assert "CUDA below 11" in found.source
    assert "https://github.com/google/gemma_pytorch/issues/3" in found.source
    missing = rung.device("p2200", software="torch 2.13+cu130").capability("matmul.f32")
    assert "none of it runs on 6.1" in missing.source


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("k80", "torch 2.7+cu118"),
        ("gtx 980", "torch 2.14+cu126"),
        ("p2200", "torch 2.14+cu126"),
        ("v100", "torch 2.14+cu126"),
        ("t4", "torch 2.15+cu132"),
        ("5090", "torch 2.15+cu132"),
        ("b300", "torch 2.15+cu132"),
        ("dgx spark", "torch 2.15+cu132"),
        ("jetson nano", "torch 1.10+cu102"),
        ("rx 580", "torch 1.12+rocm5.1"),
        ("rx 5700 xt", "torch 1.13+rocm5.2"),
        ("radeon 860m", "torch 2.11+rocm7.13.0"),
        ("rx 6700 xt", "torch 2.14+rocm7.14"),
        ("arc a770", "torch 2.14+xpu"),
        ("m1", "torch 2.15"),
        ("ryzen 9 7950x", "torch 2.15+cpu"),
    ],
)
def test_without_software_a_card_gets_the_newest_build_that_carries_its_code(name, build):
    assert catalog.device(name).details["build"] == build


@each_row("key", architectures())
def test_the_newest_build_carries_the_code_or_nothing_ever_did(key):
    architecture = architectures()[key]
    fits = [b for b in releases.builds() if b.platform == architecture.platform and b.image(architecture)]
    assert releases.newest(key) == (fits[0] if fits else None)
    found = catalog.capabilities.capabilities(key, releases.newest(key))
    assert found["code"].level is (Level.NATIVE if fits else Level.ABSENT)
    assert found["package.torch"].source


@pytest.mark.parametrize(
    ("code", "capability", "runs"),
    [
        # a cubin runs on its own major number from its minor on; PTX on everything later
        ("6.0", "6.1", True),
        ("6.2", "6.1", False),
        ("5.3", "5.2", False),
        ("8.0", "8.9", True),
        ("8.0", "9.0", False),
        ("12.0", "12.1", True),
    ],
)
def test_which_code_runs_where(code, capability, runs):
    build = releases.Build("9.9", "cu130", (code,), "", "", False, "checked", "")
    key = f"sm_{capability.replace('.', '')}"
    assert bool(build.image(architectures()[key])) is runs


def test_ptx_runs_on_later_cards():
    build = releases.Build("9.9", "cu130", ("7.5",), "9.0", "", False, "checked", "")
    assert build.image(architectures()["sm_120"]) == "9.0 as PTX"
    assert build.image(architectures()["sm_80"]) == ""


def test_the_software_of_a_device_is_the_build_that_was_assumed():
    device = rung.device("p2200", software="torch 1.10+cu102")
    assert device.software["torch"] == "1.10.0"
    assert device.software["cuda"] == "10.2"
    assert rung.device("p2200", software="torch==2.3.1+cu121").software["torch"] == "2.3.1"
    assert rung.device("p2200", software="2.3").details["build"] == "torch 2.3+cu121"
    assert rung.device("7900 xtx", software="torch 2.9").details["build"] == "torch 2.9+rocm6.4"


@pytest.mark.parametrize(
    "software",
    ["torch", "torch 0.1", "torch 2.3+cu999", "torch 99", "tensorflow 2.0", "", ",", "2.3+", "torch 2.3 +cu121"],
)
def test_software_that_nobody_knows_is_refused(software):
    with pytest.raises(UsageError):
        rung.device("p2200", software=software)


def test_memory_and_runtime():
    device = rung.device("p2200", memory="4GB")
    assert device.memory == 4 << 30
    assert device.free < device.memory
    assert rung.device("rtx 6000 ada").details["runtime_bytes"] == 426 << 20  # unsloth-zoo#1053
    assert rung.device("p2200", "torch 1.10+cu102").details["runtime_bytes"] == 721 << 20  # pytorch#55277
    assert rung.device("3090", "torch 1.10+cu113").details["runtime_bytes"] == 1687 << 20  # the same
    assert rung.device("v100", "torch 1.10+cu102").details["runtime_bytes"] == 1007 << 20  # pytorch#28394
    assert rung.device("7900 xtx").details["runtime_bytes"] == 400 << 20
    assert rung.device("7900 xtx").details["runtime_from"] == "no figure is known"


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, float("nan"), "much", "0GB", "-4GB", "", "100000GB", 2**70])
def test_memory_that_is_none(wrong):
    with pytest.raises(UsageError) as caught:
        rung.device("p2200", memory=wrong)
    assert caught.value.ways_out[0] == 'memory="4.6GB"'


def is_cpu(product):
    return architectures()[product.arch].kind == "cpu"


def test_more_memory_than_the_card_is_sold_with():
    rebuilt = rung.device("2080 ti", memory="22GB")
    assert rebuilt.memory == 22 << 30 > rung.device("2080 ti").memory
    assert rebuilt.free < rebuilt.memory
    largest = max(size for product in catalog.products() if not is_cpu(product) for size in product.sizes)
    assert rung.device("p2200", memory=largest).memory == largest
    with pytest.raises(UsageError, match="the largest of the catalog"):
        rung.device("p2200", memory=largest + 1)
    assert rung.device("epyc 7763", memory="4096GB").memory == 4096 << 30


def test_no_torch_is_imported():
    code = "import sys, rung; rung.device('p2200'); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
