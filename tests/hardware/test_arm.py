"""Features of ARM as LLVM names them: what the compiler is told, and that this is no restriction of the user's."""

from __future__ import annotations

import pytest

from rung.core.types import Level
from rung.hardware import cpu_features
from rung.hardware.families import cpu

PI_5 = frozenset(
    [
        "fp",
        "asimd",
        "evtstrm",
        "aes",
        "crc32",
        "atomics",
        "fphp",
        "asimdhp",
        "cpuid",
        "asimdrdm",
        "lrcpc",
        "dcpop",
        "asimddp",
    ]
)


def test_linux_lists_what_llvm_does_not_find_out() -> None:
    assert cpu_features.llvm_features(PI_5).split(",") == [
        *("+neon", "+fp-armv8", "+crc", "+aes", "-sha2", "+lse", "+rdm", "+rcpc", "+fullfp16", "+dotprod"),
        *("-i8mm", "-bf16", "-sve", "-sve2"),
    ]


def test_a_mac_is_asked_by_sysctl() -> None:
    m1 = frozenset(cpu_features.MAC[name] for name in ("neon", "fullfp16", "dotprod"))
    assert cpu_features.llvm_features(m1) == "+neon,+fullfp16,+dotprod,-i8mm,-bf16"


def test_no_list_of_features_tells_the_compiler_nothing() -> None:
    assert cpu_features.llvm_features(frozenset()) == cpu_features.llvm_features(frozenset({"avx2"})) == ""


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({"NUMBA_CPU_FEATURES": cpu_features.llvm_features(PI_5)}, Level.NATIVE),
        ({"NUMBA_CPU_FEATURES": "+neon"}, Level.UNKNOWN),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": cpu_features.llvm_features(PI_5)}, Level.UNKNOWN),
    ],
)
def test_only_what_a_user_sets_restricts_the_compiler(variables: dict[str, str], level: Level) -> None:
    found = {c.name: c for c in cpu.declared("aarch64", PI_5, variables)}
    assert found["isa.kernels"].level is level
    assert found["isa.neon_dotprod"].level is level
    assert level is Level.UNKNOWN or found["isa.kernels"].detail == "neon_dotprod"
