"""Signatures that rules of several subjects look for."""

from __future__ import annotations

#: The library holds no code for the GPU.
MISSING = (
    "cuda-no-kernel-image",
    "no-kernel-image-short",
    "cuda-invalid-device-function",
    "invalid-device-function-short",
    "legacy-invalid-device-function",
    "machine-capability-refused",
    "torch-arch-range",
    "named-symbol",
    "invalid-ptx",
)
#: Values became NaN.
NAN = (
    "nan-symptom",
    "nan-line",
    "nan-logits",
    "half-nan-symptom",
    "half-against-wide",
    "nan-probabilities",
    "invalid-cast",
    "empty-picture",
    "exclamation-marks",
)
#: Reported later than it happened.
LATE = ("cublas-not-initialized", "cuda-launch-failure", "cublas-execution-failed")
