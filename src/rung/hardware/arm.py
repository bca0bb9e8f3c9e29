"""Name the features of an ARM processor as LLVM does, which finds out only some of them by itself."""

from __future__ import annotations

import functools
import sys

from rung.hardware import interpreter, topology
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
MAC = {
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
    if interpreter.arch() != "aarch64":
        return ""
    if sys.platform == "darwin":
        return llvm_features(frozenset(name for name in MAC.values() if sysctl(name) == "1"))
    return llvm_features(topology.shared_features())
