"""Defects of a simulated card as they stand on the command line."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from rung.core.errors import UsageError
from rung.simulation.defects import Defect

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
