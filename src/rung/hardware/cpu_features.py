"""Name the features of a processor as LLVM does: on ARM it finds out only some, on x86 cores may differ."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from rung.hardware import topology
from rung.hardware.interpreter import arch
from rung.hardware.sysctl import sysctl

#: LLVM's names to the flags of Linux in /proc/cpuinfo.
_LINUX = {
    "neon": "asimd",
    "fp-armv8": "fp",
    "crc": "crc32",
    "aes": "aes",
    "sha2": "sha2",
    "lse": "atomics",
    "rdm": "asimdrdm",
    "rcpc": "lrcpc",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
#: The same on a Mac, in the names of sysctl; the rest follows from the name of the processor.
MAC: dict[str, str] = {
    "neon": "hw.optional.arm.AdvSIMD",
    "fullfp16": "hw.optional.arm.FEAT_FP16",
    "dotprod": "hw.optional.arm.FEAT_DotProd",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
    "bf16": "hw.optional.arm.FEAT_BF16",
}


def llvm_features(flags: frozenset[str]) -> str:
    """Return the features that a processor with those flags has and lacks, as ``NUMBA_CPU_FEATURES`` takes them; empty
    without flags.

    >>> llvm_features(frozenset({"hw.optional.arm.AdvSIMD", "hw.optional.arm.FEAT_DotProd"}))
    '+neon,-fullfp16,+dotprod,-i8mm,-bf16'
    """
    names = MAC if any(flag in flags for flag in MAC.values()) else _LINUX
    if not any(flag in flags for flag in names.values()):
        return ""
    return ",".join(f"{'+' if flag in flags else '-'}{name}" for name, flag in names.items())


@functools.cache
def own_features() -> str:
    """Return ``llvm_features`` of all cores of this machine; empty where it is no ARM, or nothing tells."""
    if arch() != "aarch64":
        return ""
    if sys.platform == "darwin":
        return llvm_features(frozenset(name for name in MAC.values() if sysctl(name) == "1"))
    return llvm_features(topology.shared_features())


#: LLVM's names to the flags of Linux in /proc/cpuinfo, where they differ.
_FLAGS = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "sha": "sha_ni",
    "pclmul": "pclmulqdq",
    "avxvnni": "avx_vnni",
    "avx512vnni": "avx512_vnni",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512vp2intersect": "avx512_vp2intersect",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
    "amx-fp16": "amx_fp16",
}
_ALIKE = ("ssse3", "popcnt", "aes", "avx", "f16c", "fma", "avx2", "bmi2", "movbe", "adx", "gfni", "vaes", "vpclmulqdq")
_WIDE = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512vbmi", "avx512ifma")
_NAMES = _FLAGS | {name: name for name in (*_ALIKE, *_WIDE)}


def llvm_changes(cores: Sequence[frozenset[str]]) -> str:
    """Return the features that LLVM must not use though one of the cores has them, as ``NUMBA_CPU_FEATURES`` takes
    them.

    >>> llvm_changes([frozenset({"avx2", "avx512f", "avx512_vnni"}), frozenset({"avx2", "avx_vnni"})])
    '-avxvnni,-avx512vnni,-avx512f'
    """
    if not cores:
        return ""
    some = frozenset.union(*cores) - frozenset.intersection(*cores)
    return ",".join(f"-{name}" for name, flag in _NAMES.items() if flag in some)


def llvm_names(flags: frozenset[str]) -> frozenset[str]:
    """Return LLVM's names of the features that a system lists by its own.

    >>> sorted(llvm_names(frozenset({"asimddp", "avx512_vnni", "ssse3"})))
    ['avx512vnni', 'dotprod', 'ssse3']
    """
    names = {flag: name for known in (_NAMES, _LINUX, MAC) for name, flag in known.items()}
    return frozenset(names.get(flag, flag) for flag in flags)


@functools.cache
def own_changes() -> str:
    """Return ``llvm_changes`` of this machine; empty where its cores are alike, or it is no x86."""
    return llvm_changes(topology.features()) if arch() == "x86_64" else ""
