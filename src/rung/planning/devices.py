"""Compute what plans of every kind ask of devices: whether one computes, what a process takes there, how sure a speed
is."""

from __future__ import annotations

from rung.core.types import YES, Device, Level, Proof, Verdict, no

_MB = 2**20
#: Resident bytes of the process before any weight: Python, torch for CPUs, Numba and its compiled kernels.
#: ``rung calibrate`` replaces it by what this machine shows (``Device.details["runtime_bytes"]``).
RUNTIME_CPU = 345 * _MB
#: The same without torch, which language models of packed weights do not need (``benchmarks/small_models.py``).
RUNTIME_LEAN = 150 * _MB
#: The context of a GPU and the libraries that torch loads there, where nobody measured: 250 to 600 MB are usual.
RUNTIME_GPU = 400 * _MB
#: How far off a prediction may be: after rung calibrate on a steady machine, after a probe, from the catalogue alone.
#: No prediction from rates of a GPU has been held against one yet: they are trusted like a probe.
_CALIBRATED, _PROBED, _TABLE = 0.2, 0.35, 0.5


def computes(device: Device) -> Verdict:
    """Return whether a device is worth planning for: a CPU, or a GPU that multiplies, as a probe or the catalogue
    says."""
    found = [device.capability(f"matmul.{dtype}") for dtype in ("f32", "f16", "bf16")]
    if device.kind == "cpu" or any(c.level in (Level.NATIVE, Level.EMULATED) for c in found):
        return YES
    return no(found[0].source or "nobody knows what it can do; rung devices --probe finds out")


def uncertainty(device: Device) -> float:
    """How far off the predicted speed may be, as a share of it."""
    if device.rates:
        held = _CALIBRATED if device.kind == "cpu" else _PROBED
        return max(held, device.rates.get("spread", 0.0))
    probed = any(c.proof is Proof.PROBE for c in device.capabilities.values())
    return _PROBED if probed else _TABLE
