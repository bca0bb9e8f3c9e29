"""Reads demo.gguf with the ``gguf`` package into a transformers model: the reference that rung is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer
from training.demo import tokenizer as bpe
from training.demo.write_gguf import gguf_name
from transformers import Gemma3ForCausalLM, Gemma3TextConfig


def load(path: Path) -> tuple[Gemma3ForCausalLM, Tokenizer]:
    """The model with its weights decoded to f32, and the tokenizer of the file's lists."""
    reader = gguf.GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    tokens = values["tokenizer.ggml.tokens"]
    model = Gemma3ForCausalLM(_config(values, len(tokens))).eval()
    tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    state = {}
    for name, weight in model.state_dict().items():
        stored = torch.from_numpy(tensors["token_embd.weight" if name == "lm_head.weight" else gguf_name(name)].copy())
        state[name] = stored - 1 if weight.ndim == 1 else stored
    model.load_state_dict(state)
    return model, bpe.from_lists(tokens, values["tokenizer.ggml.merges"])


def learnt_cards(path: Path) -> frozenset[str]:
    """Marks of the cards that the file was trained on."""
    return frozenset(gguf.GGUFReader(path).fields["rung.cards"].contents())


def _config(values: dict[str, Any], vocabulary: int) -> Gemma3TextConfig:
    shape = {name.removeprefix("gemma3."): value for name, value in values.items() if name.startswith("gemma3.")}
    return Gemma3TextConfig(
        vocab_size=vocabulary,
        hidden_size=shape["embedding_length"],
        intermediate_size=shape["feed_forward_length"],
        num_hidden_layers=shape["block_count"],
        num_attention_heads=shape["attention.head_count"],
        num_key_value_heads=shape["attention.head_count_kv"],
        head_dim=shape["attention.key_length"],
        query_pre_attn_scalar=shape["attention.key_length"],
        max_position_embeddings=shape["context_length"],
        sliding_window=shape["attention.sliding_window"],
        rms_norm_eps=shape["attention.layer_norm_rms_epsilon"],
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
