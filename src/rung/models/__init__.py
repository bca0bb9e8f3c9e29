"""What a model is, from headers alone (``open_card``), and its weights, a tensor at a time (``reader.Reader``)."""

from rung.models.card import ModelCard
from rung.models.open import open_card

__all__ = ["ModelCard", "open_card"]
