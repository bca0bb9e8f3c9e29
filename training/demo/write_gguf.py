"""Writes the trained model as a GGUF file: Gemma 3, matrices in Q8_0, norms in F32.

usage, in the repository's root: python -m training.demo.write_gguf build/demo/last.pt demo.gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from training.demo import tokenizer as bpe
from transformers import Gemma3ForCausalLM

NAME = "rung demo"
DESCRIPTION = (
    "A demonstration of five million weights that talks about graphics cards and number formats. "
    "It can be wrong: `rung devices` and rung's catalogue are what knows."
)
EXAMPLE = "Does a GTX 1080 multiply bfloat16?"

# transformers' names of a layer's tensors, and GGUF's
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor of a Gemma 3 checkpoint."""
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}.weight"


def write(model: Gemma3ForCausalLM, tokenizer: Tokenizer, cards: list[str], path: Path) -> None:
    """Write weights, shape, tokenizer, chat template, sampling defaults and the cards it learnt, in one move."""
    temporary = path.with_suffix(".part")
    writer = gguf.GGUFWriter(temporary, "gemma3")
    _add_shape(writer, model)
    writer.add_array("rung.cards", cards)
    _add_tokenizer(writer, tokenizer)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied to the embedding
            continue
        values = weight.detach().float().numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values + np.float32(1))  # GGUF holds 1 + the norm's weight
        else:
            encoded = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), encoded, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(path)


def _add_shape(writer: gguf.GGUFWriter, model: Gemma3ForCausalLM) -> None:
    config = model.config
    writer.add_type("model")
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license("apache-2.0")
    writer.add_string("rung.example", EXAMPLE)
    writer.add_float32("general.sampling.temp", 0.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_float32("gemma3.rope.freq_base_swa", config.rope_parameters["sliding_attention"]["rope_theta"])


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(bpe.PRE)
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in bpe.SPECIAL else normal for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_pad_token_id(bpe.SPECIAL.index(bpe.PAD))
    writer.add_bos_token_id(bpe.SPECIAL.index(bpe.BOS))
    writer.add_eos_token_id(bpe.SPECIAL.index(bpe.END))
    writer.add_eot_token_id(bpe.SPECIAL.index(bpe.END))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(bpe.CHAT_TEMPLATE)


def main() -> None:
    """Turn a checkpoint of train.py into a GGUF file."""
    from training.demo.train import config

    source, target = sys.argv[1:]
    state = torch.load(source, weights_only=True)
    tokenizer = Tokenizer.from_str(state["tokenizer"])
    model = Gemma3ForCausalLM(config(tokenizer.get_vocab_size()))
    model.load_state_dict(state["model"])
    write(model, tokenizer, state["cards"], Path(target))


if __name__ == "__main__":
    main()
