"""transformers: models quantized while they are loaded, and checkpoints of other quantizers.

The names that programs import; files that were pickled with a model name ``Method`` and ``Quantizer`` here.
"""

from __future__ import annotations

from rung.hub.quantizer import Method, QuantizationConfig, Quantizer

__all__ = ["Method", "QuantizationConfig", "Quantizer", "install", "uninstall"]


def install() -> None:
    """Load other quantizers' checkpoints with rung from now on, in ``from_pretrained``; see ``rung.hub.quantized``.

    bitsandbytes in 4 and 8 bits (which also quantizes while loading), GPTQ, AWQ, compressed-tensors, fp8, MXFP4, HQQ.
    """
    from rung.hub import quantized

    quantized.install()


def uninstall() -> None:
    """Put transformers' own quantizers back; models that are loaded stay as they are."""
    from rung.hub import quantized

    quantized.uninstall()
