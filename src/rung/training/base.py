"""The model that an adapter is trained for, in transformers: from a folder."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rung.hub.quantized_layout import ReadConfig
from rung.hub.quantizer import QuantizationConfig
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.models.card import ModelCard
from rung.models.checkpoints import OWN
from rung.models.settings import QUANTISATION, Settings, quantisation
from rung.training.fitting import PLAIN, STORED


def load_tokenizer(card: ModelCard) -> Any:
    """The tokenizer of a folder, with a token to pad with."""
    tokenizer = AutoTokenizer.from_pretrained(card.path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(card: ModelCard, format: str, dtype: str) -> Any:
    """The model with its linear layers in ``format``, or as they are ``STORED``, computing in ``dtype``."""
    options: dict[str, Any] = {"dtype": TORCH_DTYPE[dtype]}
    if format == STORED and card.quantised != OWN:  # transformers itself would ask for the package that wrote it
        options["config"] = config = AutoConfig.from_pretrained(card.path)
        described = quantisation(Settings(card.metadata, card.name)) or {}
        for key in QUANTISATION:
            config.__dict__.pop(key, None)
        options["quantization_config"] = ReadConfig(described, card.name, {})
    elif format not in (*PLAIN, STORED):
        options["quantization_config"] = QuantizationConfig(format=format)
    return AutoModelForCausalLM.from_pretrained(card.path, **options)
