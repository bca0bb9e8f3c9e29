"""Test checks of installed software against a card: code, driver, Triton, bitsandbytes."""

import pytest

from rung.software.companions import Host
from rung.software.installed import build_of, judge
from rung.software.setup import choose

PASCAL = Host("GTX 1080", "sm_61")
ADA = Host("RTX 4090", "sm_89")


def findings(host, **installed):
    found = judge({name.replace("_attn", "-attn"): value for name, value in installed.items()}, host, choose([host]))
    return {one.package: one for one in found}


@pytest.mark.parametrize(
    ("host", "installed", "fits", "said"),
    [
        (PASCAL, {}, False, "not installed"),
        (
            PASCAL,
            {"torch": "2.9.0+cu130", "torch_cuda": "13.0"},
            False,
            "torch 2.9.0+cu130 has no code for 6.1; 2.14.1+cu126 is the last that has.",
        ),
        (PASCAL, {"torch": "2.14.1+cu126", "torch_cuda": "12.6"}, True, "its code for 6.0 runs on 6.1"),
        (PASCAL, {"torch": "2.5.1", "torch_cuda": "12.4"}, True, "its code for 6.0 runs on 6.1"),
        (ADA, {"torch": "1.10.2+cu102", "torch_cuda": "10.2"}, False, "has no code for 8.9; 2.15.0+cu132 has."),
        (ADA, {"torch": "2.13.0+cpu"}, False, "computes on the processor only and leaves RTX 4090 unused"),
        (ADA, {"torch": "2.16.0a0+git1234", "torch_cuda": "13.4"}, None, "no build of the catalog"),
        (
            Host("RTX 4090", "sm_89", driver="535.54"),
            {"torch": "2.15.0+cu132", "torch_cuda": "13.2"},
            False,
            "asks for NVIDIA driver 580 or newer instead of 535.54",
        ),
        (Host("a processor", "x86-avx2"), {"torch": "2.13.0+cpu"}, True, "computes on the processor"),
        (Host("RX 6700", "gfx1031"), {"torch": "2.6.0+rocm6.2.4", "torch_hip": "6.2.41134"}, True, "gfx1030"),
        (Host("RX 580", "gfx803"), {"torch": "2.8.0+rocm6.4", "torch_hip": "6.4.43482"}, False, "1.12.1+rocm5.1.1"),
        (Host("M1", "apple7", system="macos", machine="aarch64"), {"torch": "2.15.0"}, True, "apple7"),
        (
            Host("Orin", "sm_87", machine="aarch64"),
            {"torch": "2.8.0", "torch_cuda": "12.6"},
            True,
            "carries code for 8.7",
        ),
    ],
)
def test_torch(host, installed, fits, said):
    found = findings(host, **installed)["torch"]
    assert found.fits is fits
    assert said in found.text


def test_what_is_installed_beside_torch():
    torch = {"torch": "2.14.1+cu126", "torch_cuda": "12.6"}
    found = findings(PASCAL, **torch, triton="3.7.0", bitsandbytes="0.50.2", flash_attn="2.8.3", xformers="0.0.35")
    assert not found["triton"].fits
    assert "belongs with Triton 3.8, not 3.7.0" in found["triton"].text
    assert found["bitsandbytes"].fits
    assert "LLM.int8(): needs compute capability 7.5, this is 6.1" in found["bitsandbytes"].text
    assert not found["flash-attn"].fits
    assert not found["xformers"].fits
    assert "triton" not in findings(PASCAL, **torch, triton="3.8.0")
    assert findings(PASCAL, **torch, bitsandbytes="0.1")["bitsandbytes"].fits is None
    old = Host("GTX 980", "sm_52")
    assert not findings(old, **torch, bitsandbytes="0.50.2")["bitsandbytes"].fits


def test_the_build_is_known_by_what_it_was_built_for_not_by_its_name():
    assert build_of({"torch": "2.5.1", "torch_cuda": "12.4"}, ADA).name == "cu124"
    assert build_of({"torch": "2.5.1"}, ADA).name == "cpu"
    arm = Host("GB200", "sm_100", machine="aarch64")
    assert build_of({"torch": "2.12.0+cu130", "torch_cuda": "13.0"}, arm).platform == "aarch64"
