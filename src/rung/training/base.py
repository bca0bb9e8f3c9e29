"""The model that an adapter is trained for, in transformers: from a folder."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rung.hub.transformers import QuantizationConfig
from rung.models.card import ModelCard
from rung.training.fitting import PLAIN, STORED

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def load_tokenizer(card: ModelCard) -> Any:
    """The tokenizer of a folder, with a token to pad with."""
    tokenizer = AutoTokenizer.from_pretrained(card.path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(card: ModelCard, format: str, dtype: str) -> Any:
    """The model with its linear layers in ``format``, or as they are ``STORED``, computing in ``dtype``."""
    quantised = {} if format in (*PLAIN, STORED) else {"quantization_config": QuantizationConfig(format=format)}
    return AutoModelForCausalLM.from_pretrained(card.path, dtype=_DTYPES[dtype], **quantised)
