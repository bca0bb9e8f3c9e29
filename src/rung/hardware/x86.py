"""Name the features that only some cores of an x86 processor have: a thread may run on any of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rung.hardware import interpreter, topology

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


@functools.cache
def own_changes() -> str:
    """Return ``llvm_changes`` of this machine; empty where its cores are alike, or it is no x86."""
    return llvm_changes(topology.features()) if interpreter.arch() == "x86_64" else ""
