"""Ways of training a language model, and what optimisers hold of each weight."""

from __future__ import annotations

from collections.abc import Mapping

from rung.core.errors import UsageError
from rung.core.text import did_you_mean

WAYS = ("lora", "full")
#: Bytes of state for each trained weight: moments in f32, or in blocks of 8 bits; factored ones count as nothing.
OPTIMIZERS: Mapping[str, int] = {"adamw": 8, "adamw8bit": 2, "lion": 4, "adafactor": 0, "momentum": 4, "sgd": 0}


def optimizer_state(name: str) -> int:
    """Bytes of state for each trained weight. Raises ``UsageError`` for an optimiser that nobody knows."""
    if name not in OPTIMIZERS:
        raise UsageError(
            f"There is no optimizer {name!r}.{did_you_mean(name, OPTIMIZERS)}",
            [f"known: {', '.join(OPTIMIZERS)}"],
            ["rung check MODEL --training lora --optimizer adamw"],
            code="name-unknown",
        )
    return OPTIMIZERS[name]
