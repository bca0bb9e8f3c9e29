"""GGUF files written by hand, so that every field can be wrong, and configurations to be changed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes) -> bytes:
    """A string of the file."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    """A value of the file without its type; that of an array is (type of elements, list)."""
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(f"<{CODES[kind]}", content)


def pair(key: str | bytes, kind: int, content: Any) -> bytes:
    """A key with its value."""
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def info(name: str | bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """The description of a tensor; ``shape`` is row major, the file's is the other way round."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf(
    pairs: list[bytes],
    infos: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    tensors: int | None = None,
    keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; ``tensors`` and ``keys`` are the counts it claims."""
    counts = (len(infos) if tensors is None else tensors, len(pairs) if keys is None else keys)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    body = head + b"".join(pairs) + b"".join(infos)
    return body + bytes(-len(body) % alignment) + data


def llama_pairs(**more: Any) -> dict[str, bytes]:
    """The keys of a model with one layer, hidden 4, two heads, and a vocabulary of 3; by key, to be changed."""
    found = {
        "general.architecture": (STRING, "llama"),
        "llama.context_length": (U32, 64),
        "llama.embedding_length": (U32, 4),
        "llama.block_count": (U32, 1),
        "llama.feed_forward_length": (U32, 4),
        "llama.attention.head_count": (U32, 2),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "a", "</s>"])),
        **more,
    }
    return {key: pair(key, *content) for key, content in found.items() if content is not None}


LLAMA_TENSORS = {
    "token_embd.weight": (3, 4),
    "output_norm.weight": (4,),
    "blk.0.attn_norm.weight": (4,),
    "blk.0.attn_q.weight": (4, 4),
    "blk.0.attn_k.weight": (4, 4),
    "blk.0.attn_v.weight": (4, 4),
    "blk.0.attn_output.weight": (4, 4),
    "blk.0.ffn_norm.weight": (4,),
    "blk.0.ffn_gate.weight": (4, 4),
    "blk.0.ffn_up.weight": (4, 4),
    "blk.0.ffn_down.weight": (4, 4),
}


def llama(
    path: Path, keys: dict[str, Any] | None = None, tensors: dict[str, tuple[int, ...] | None] | None = None
) -> Path:
    """Writes a tiny Llama in f32 with other ``keys`` (type, value) and ``tensors`` (None: left out) to ``path``."""
    shapes = {name: shape for name, shape in {**LLAMA_TENSORS, **(tensors or {})}.items() if shape is not None}
    infos, data = [], b""
    for name, shape in shapes.items():
        count = 1
        for length in shape:
            count *= length
        infos.append(info(name, shape, 0, len(data)))
        data += struct.pack(f"<{count}f", *(1.0 + n / 7 for n in range(count)))
        data += bytes(-len(data) % 32)
    path.write_bytes(gguf(list(llama_pairs(**(keys or {})).values()), infos, data))
    return path


def edit(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; those that are ``"absent"`` go."""
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: item for key, item in {**values, **changes}.items() if item != "absent"}))
