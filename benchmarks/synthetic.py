"""Writes GGUF files of real shape with random weights: enough to measure speed and memory, never quality.

    python benchmarks/synthetic.py --out FOLDER [--model gemma-2b llama-0.3b] [--format q4_0 q4_k_m q8_0]

The mixes of formats are those of ``llama-quantize``: tied embedding and head in Q6_K (Q8_0 in a Q8_0 file), and in
Q4_K_M the value and down projections of half of the layers in Q6_K. ``all_TYPE`` is a file with every matrix in that
type, ``all_iq1_s`` say. Scales are chosen so that each weight matrix
has a standard deviation of 1/sqrt(columns), so that activations neither vanish nor overflow. The embedding row of
the end-of-text token is zero: as the head is tied its logit is always 0 and greedy decoding never stops there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType

from rung import formats
from rung.formats import Encoded

F32, Q4_0, Q4_K, Q6_K, Q8_0 = (GGMLQuantizationType[name] for name in ("F32", "Q4_0", "Q4_K", "Q6_K", "Q8_0"))
END_TOKEN, BOS_TOKEN = 1, 2
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()-\n\u2581"


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder as its GGUF metadata states it."""

    name: str
    arch: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    norm_epsilon: float


SHAPES = {
    "gemma-2b": Shape("gemma-2b", "gemma", 18, 2048, 8, 1, 256, 16384, 256000, 1e-6),
    "gemma-2b-32k": Shape("gemma-2b-32k", "gemma", 18, 2048, 8, 1, 256, 16384, 32000, 1e-6),
    "llama-0.3b": Shape("llama-0.3b", "llama", 24, 1024, 16, 8, 64, 2816, 32000, 1e-5),
    "llama-0.1b": Shape("llama-0.1b", "llama", 12, 768, 12, 12, 64, 2048, 32000, 1e-5),
    "llama-0.8b": Shape("llama-0.8b", "llama", 16, 1536, 12, 2, 128, 8960, 64000, 1e-6),
    "llama-0.1b-128k": Shape("llama-0.1b-128k", "llama", 6, 768, 12, 2, 64, 2048, 128000, 1e-5),
    "llama-30m": Shape("llama-30m", "llama", 8, 512, 8, 4, 64, 1536, 8000, 1e-5),
}


@dataclass(frozen=True)
class Mix:
    """The types of a file's matrices: of the layers, of the embedding, and of what gets more bits in some layers."""

    base: GGMLQuantizationType
    embedding: GGMLQuantizationType
    better: GGMLQuantizationType
    file_type: LlamaFileType


#: Every type that rung decodes, and llama.cpp with it.
TYPES = [kind for kind in GGMLQuantizationType if formats.gguf_type(kind)]
FORMATS = {
    "q4_0": Mix(Q4_0, Q6_K, Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_k_m": Mix(Q4_K, Q6_K, Q6_K, LlamaFileType.MOSTLY_Q4_K_M),
    "q8_0": Mix(Q8_0, Q8_0, Q8_0, LlamaFileType.MOSTLY_Q8_0),
    **{f"all_{kind.name.lower()}": Mix(kind, kind, kind, LlamaFileType.GUESSED) for kind in TYPES},
}
CONTEXT = 8192


def _more_bits(layer: int, layers: int) -> bool:
    """Which layers of a Q4_K_M file hold value and down projections in Q6_K: the outer eighths and each third."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(shape: Shape, mix: Mix) -> Iterator[tuple[str, tuple[int, ...], GGMLQuantizationType]]:
    """Name, shape (rows first) and type of every tensor, in the order in which they are written."""
    query, value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocabulary, shape.hidden), mix.embedding
    for layer in range(shape.layers):
        better = mix.better if _more_bits(layer, shape.layers) else mix.base
        yield f"blk.{layer}.attn_norm.weight", (shape.hidden,), F32
        yield f"blk.{layer}.attn_q.weight", (query, shape.hidden), mix.base
        yield f"blk.{layer}.attn_k.weight", (value, shape.hidden), mix.base
        yield f"blk.{layer}.attn_v.weight", (value, shape.hidden), better
        yield f"blk.{layer}.attn_output.weight", (shape.hidden, query), mix.base
        yield f"blk.{layer}.ffn_norm.weight", (shape.hidden,), F32
        yield f"blk.{layer}.ffn_gate.weight", (shape.feed_forward, shape.hidden), mix.base
        yield f"blk.{layer}.ffn_up.weight", (shape.feed_forward, shape.hidden), mix.base
        yield f"blk.{layer}.ffn_down.weight", (shape.hidden, shape.feed_forward), better
    yield "output_norm.weight", (shape.hidden,), F32


#: Mean code of the types with minima: the field that takes it off, and what to multiply the scale with.
_CENTER = {
    "q4_1": ("m", -7.5),
    "q5_1": ("m", -15.5),
    "q2_k": ("dmin", 1.5),
    "q4_k": ("dmin", 7.5),
    "q5_k": ("dmin", 15.5),
}
_SAMPLE = 1024


def random_blocks(
    rng: np.random.Generator, rows: int, columns: int, kind: GGMLQuantizationType, deviation: float
) -> np.ndarray:
    """uint8 [rows, row bytes] of random blocks whose weights have about that standard deviation and mean zero."""
    format = formats.gguf_type(kind)
    if format is None:
        raise ValueError(f"no random blocks of {kind.name}")
    fields = formats.layout(format)
    if fields is None:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(deviation)
        return formats.encode(values, format).parts["data"]
    count = rows * columns // format.block
    blocks = np.frombuffer(rng.bytes(count * format.block_bytes), fields).copy()
    sample = blocks[:_SAMPLE].copy()
    _scale(sample, format.name, np.ones(len(sample), np.float32))
    shape = (len(sample), format.block)
    unit = formats.decode(Encoded(format, shape, {"data": sample.view(np.uint8).reshape(len(sample), -1)})).std()
    spread = (0.9 + 0.2 * rng.random(count, np.float32)) * np.float32(deviation / unit)
    _scale(blocks, format.name, spread * np.where(rng.random(count, np.float32) < 0.5, -1, 1).astype(np.float32))
    return blocks.view(np.uint8).reshape(rows, -1)


def _scale(blocks: np.ndarray, name: str, scales: np.ndarray) -> None:
    """Gives blocks of a format scales float32 [n] (only powers of two, or their size, where it holds no others)."""
    if name == "mxfp4":
        blocks["e"] = np.rint(127 + np.log2(np.abs(scales)))
    elif name == "nvfp4":  # unsigned e4m3: below 2^-6 multiples of 2^-9
        blocks["d"] = np.where(scales == 1, 0x38, np.clip(np.rint(np.abs(scales) * 512), 1, 7))[:, None]
    elif name == "iq1_m":
        halves = scales.astype(np.float16).view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16)
        blocks["scales"] = (blocks["scales"] & 0x0FFF) | (halves << 12)
    else:
        blocks["d"] = scales
        if name in _CENTER:
            field, factor = _CENTER[name]
            blocks[field] = blocks["d"].astype(np.float32) * factor


def _vocabulary(size: int) -> tuple[list[str], list[float], list[TokenType]]:
    """Pieces, scores and types: control tokens, bytes, single characters, and words that no text contains."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"]
    types = [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [TokenType.BYTE] * 256
    tokens += list(LETTERS)
    tokens += [f"\u2581word{number}" for number in range(size - len(tokens))]
    types += [TokenType.NORMAL] * (size - len(types))
    return tokens, [-float(index) for index in range(size)], types


def _metadata(writer: GGUFWriter, shape: Shape, file_type: LlamaFileType) -> None:
    writer.add_name(f"{shape.name} with random weights")
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocabulary)
    tokens, scores, types = _vocabulary(shape.vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS_TOKEN)
    writer.add_eos_token_id(END_TOKEN)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def write(path: Path, shape: Shape, name: str, seed: int = 0) -> None:
    """Write that shape in that format (a key of ``FORMATS``); holds one tensor in memory at a time."""
    mix = FORMATS[name]
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, shape.arch)
    _metadata(writer, shape, mix.file_type)
    listed = list(tensors(shape, mix))
    for tensor, dims, kind in listed:
        block, size = GGML_QUANT_SIZES[kind]
        row = dims[-1] // block * size
        if len(dims) == 1:
            writer.add_tensor_info(tensor, dims, np.dtype(np.float32), 4 * dims[0])
        else:
            writer.add_tensor_info(tensor, (*dims[:-1], row), np.dtype(np.uint8), dims[0] * row, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, dims, kind in listed:
        if len(dims) == 1:
            writer.write_tensor_data(np.ones(dims, np.float32))
            continue
        data = random_blocks(rng, dims[0], dims[1], kind, dims[1] ** -0.5)
        if tensor == "token_embd.weight":
            data[END_TOKEN] = 0
        writer.write_tensor_data(data)
    writer.close()


def prompt(tokens: int, seed: int = 0) -> str:
    """A text that these files' tokenizer turns into that many ids, the begin-of-text token included."""
    rng = np.random.default_rng(seed)
    return "".join(rng.choice(list(LETTERS[:52]), tokens - 1))


def main() -> None:
    """Write the files that were asked for and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--model", nargs="+", choices=SHAPES, default=["gemma-2b", "llama-0.3b"])
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=["q4_0", "q4_k_m", "q8_0"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for model in arguments.model:
        for name in arguments.format:
            path = arguments.out / f"{model}-{name}.gguf"
            write(path, SHAPES[model], name)
            print(f"{path}  {path.stat().st_size / 1e9:.3f} GB (10^9 bytes)")


if __name__ == "__main__":
    main()
