"""Hold what a model is, from headers alone (``open_card``), and its weights, a tensor at a time (``reader.Reader``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rung.models.card import ModelCard
    from rung.models.open import open_card

__all__ = ["ModelCard", "open_card"]


def __getattr__(name: str) -> Any:
    """Both when they are first used: scenes of photographs need the readers of models for nothing."""
    if name == "ModelCard":
        from rung.models.card import ModelCard

        return ModelCard
    if name == "open_card":
        from rung.models.open import open_card

        return open_card
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
