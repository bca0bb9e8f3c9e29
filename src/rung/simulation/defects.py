"""Compute what no table knows but history did: an operation that raises, or computes wrong numbers."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass

from rung.core.errors import UsageError

#: Kinds of operations that defects and refusals speak of, beside torch's own names of operations.
KINDS = ("matmul", "attention", "convolution", "elementwise")
DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")


@dataclass(frozen=True)
class Defect:
    """An operation that fails on the simulated card.

    ``op`` is ``matmul``, ``attention``, ``convolution``, ``elementwise``, torch's own name (``bmm``, ``_int_mm``), or
    ``*``; ``dtype`` one of ``f32 f16 bf16 f64 int8 fp8`` or ``*``. It raises ``exception(text)``; without an exception
    it returns NaN, as f16 does on some cards of the GTX 16 series. Raises ``UsageError`` for an unknown dtype, an
    operation that is no text and an exception that is none.
    """

    op: str
    dtype: str = "*"
    exception: type[Exception] | None = None
    text: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in (*DTYPES, "*"):
            raise UsageError(
                f"A defect has no dtype {self.dtype!r}.", [f"dtypes: {', '.join(DTYPES)}"], ['Defect("matmul", "f16")']
            )
        raises = self.exception is None or (isinstance(self.exception, type) and issubclass(self.exception, Exception))
        if not raises or not isinstance(self.op, str):
            raise UsageError(
                f"A defect cannot be made of {self.op!r} and {self.exception!r}.",
                ["it takes the name of an operation, a dtype, and a class of exceptions with its text"],
                ['Defect("matmul", "f16", RuntimeError, "text")'],
            )
        if self.exception is None and self.text:
            raise UsageError(
                f"The defect of {self.op} has a text and no exception to raise it with.",
                ["without an exception a defect returns NaN and says nothing"],
                [f'Defect("{self.op}", "{self.dtype}", RuntimeError, text)'],
            )

    def hits(self, op: str, kind: str, dtype: str) -> bool:
        """Return whether it concerns an operation of that name and kind in that dtype."""
        return self.op in ("*", op, kind) and self.dtype in ("*", dtype)


_EXAMPLE = "matmul f16 RuntimeError: CUDNN_STATUS_NOT_SUPPORTED"


def defects(settings: Mapping[str, str], command: str = "python train.py") -> list[Defect]:
    """Return the defects of the settings; raise ``UsageError``, with the command that was typed, for one that is
    none."""
    return [defect(text, command) for text in settings.get("defects", "").split("\t") if text]


def defect(text: str, command: str = "python train.py") -> Defect:
    """``matmul f16 RuntimeError: CUDA error ...``; raises ``UsageError``."""
    head, _, message = text.partition(":")
    words = head.split()
    raised = getattr(builtins, words[2], None) if len(words) == 3 else None
    if not (isinstance(raised, type) and issubclass(raised, Exception)):
        raise UsageError(
            f"{text!r} is no defect.",
            ["a defect is: OPERATION DTYPE EXCEPTION: MESSAGE"],
            [f"rung exec --device sim:2080ti --defect '{_EXAMPLE}' -- {command}"],
            code="name-unknown",
        )
    return Defect(words[0], words[1], raised, message.strip())
