"""Tiny random encoders of the kind of BERT, as transformers and llama.cpp's converter save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"word{number}" for number in range(60)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##ing", "##ed", ".", ",", "a", "##b"]


def write(folder: Path, *, tokenizer: bool = True, **changes: Any) -> Path:
    """Save a BERT of two layers with weights large enough that every part counts, and its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}
    config = BertConfig(**{**sizes, "vocab_size": len(VOCABULARY), "max_position_embeddings": 96, **changes})
    torch.manual_seed(5)
    model = BertModel(config).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "LayerNorm.weight" in name:
                values.uniform_(0.5, 1.5)
            elif values.ndim == 1:
                values.normal_(0, 0.3)
            else:
                values.normal_(0, 0.6 if "embeddings" in name else 2.0 / values.shape[1] ** 0.5)
    model.save_pretrained(folder)
    if tokenizer:
        _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    from transformers import BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    BertTokenizerFast(vocab={text: n for n, text in enumerate(VOCABULARY)}, do_lower_case=True).save_pretrained(folder)


def write_pooling(folder: Path, mode: str, *, normalize: bool) -> None:
    """Add what sentence-transformers writes of pooling; ``mode`` is a flag of its versions before 6."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + [("Normalize", "2_Normalize")] * normalize
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {name: name == mode for name in ("pooling_mode_cls_token", "pooling_mode_mean_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **flags, mode: True}))


_GGUF = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_GGUF_OUTSIDE = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}


def write_gguf(folder: Path, path: Path, kind: str = "F32", pooling: int = 1, vocabulary: bool = True) -> Path:
    """Write the model of a folder as llama.cpp's converter does; ``kind`` is how its linears are stored."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_tokenizer_model("bert")
    if vocabulary:
        control = [text.startswith("[") for text in VOCABULARY]
        plain = [text[2:] if text.startswith("##") else f"▁{text}" for text in VOCABULARY]
        writer.add_token_list([a if c else b for a, b, c in zip(VOCABULARY, plain, control, strict=True)])
        writer.add_token_types([3 if c else 1 for c in control])
        for name, text in (("cls", "[CLS]"), ("seperator", "[SEP]"), ("unknown", "[UNK]"), ("padding", "[PAD]")):
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", VOCABULARY.index(text))
    for name, values in load_file(folder / "model.safetensors").items():
        if name.startswith("pooler"):
            continue
        to = _GGUF_OUTSIDE.get(name)
        if to is None:
            _, _, layer, rest = name.split(".", 3)
            module, _, part = rest.rpartition(".")
            to = f"blk.{layer}.{_GGUF[module]}.{part}"
        stored = gguf.GGMLQuantizationType[kind if values.ndim == 2 and to.startswith(("blk", "token_embd")) else "F32"]
        data = np.ascontiguousarray(values, np.float32)
        writer.add_tensor(to, gguf.quants.quantize(data, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
