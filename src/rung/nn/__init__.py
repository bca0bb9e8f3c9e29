"""Layers whose weights are held in a format, and turning those of a module into them (``rung.quantize``)."""

from rung.nn.experts import QuantExperts
from rung.nn.layers import QuantEmbedding, QuantLinear
from rung.nn.quantized.weight import QuantWeight

__all__ = ["QuantEmbedding", "QuantExperts", "QuantLinear", "QuantWeight"]
