"""Rungs that refuse in the middle of an answer: it goes on one rung lower, and the report says so once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.accept.check import ROOT, Check, Target

import rung
from rung.ops import LADDERS

ORDER, SECONDS = 8, 180
_MODEL = str(ROOT / "tests" / "fixtures" / "gguf" / "llama-q8_0.gguf")
_REFUSALS = {
    "refused": "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`",
    "no image": "CUDA error: no kernel image is available for execution on the device",
    "no bfloat16": "\"addmm_impl_cpu_\" not implemented for 'BFloat16'",
}


def run(target: Target) -> Iterator[Check]:
    """Make the rung of ``decode_step`` fail after three tokens."""
    right = _answer(target, lambda taken: None)[0]
    for name, message in _REFUSALS.items():

        def fail(taken: Any, message: str = message) -> None:
            raise RuntimeError(message)

        text, steps = _answer(target, fail)
        holds = text[:20] == right[:20] and len(steps) == 1
        yield Check(name, holds, {"answer": text, "right": right, "steps": steps})


def _answer(target: Target, fault: Callable[[Any], None]) -> tuple[str, list[dict[str, Any]]]:
    """Return the answer and the steps down of a model whose rung calls ``fault`` at its fourth batch."""
    model = rung.load(_MODEL, device=target.name, context=64)
    taken = model.backend.step.rung
    implementation, calls = LADDERS["decode_step"].rung(taken.name).load(), []
    right = implementation.apply

    def apply(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            fault(arguments)
        return right(*arguments)

    implementation.apply = apply
    try:
        text = "".join(model.generate("The", max_tokens=12, temperature=0))
    finally:
        del implementation.apply
    return text, [step.to_json() for step in model.report.steps]
