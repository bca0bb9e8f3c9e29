"""Options of ``rung tune``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Hold what a run is made of. Names and defaults are TRL's, but for the learning rate, of which TRL's advice for
    adapters (ten times its 2e-5) is taken, and for targets, which are all linear layers, as in QLoRA. ``max_length`` is
    by default TRL's 1,024 tokens, or what the model holds if that is less; ``format`` nf4, or what
    a quantized folder is stored in."""

    format: str | None = None
    epochs: float = 3.0
    learning_rate: float = 2e-4
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    targets: str = "all-linear"
    max_length: int | None = None
    batch: int = 8
    accumulate: int = 1
    packing: bool = False
    eval_split: float = 0.0
    seed: int = 42


def names(targets: str) -> list[str]:
    """Return the names in ``--targets``."""
    return [name.strip() for name in targets.split(",")]
