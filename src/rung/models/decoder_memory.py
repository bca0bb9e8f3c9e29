"""Bytes that a decoder needs beside its weights: the cache, and the activations of a chunk of tokens."""

from __future__ import annotations

from rung.core.types import FLOAT_BYTES
from rung.models.card import Decoder

#: What keys and values are stored in.
CACHE_TYPES = ("f32", "f16", "q8_0", "q5_1", "q4_0")
#: Those in blocks of 32 values, which compiled functions of whole steps alone read, with the bits of a value.
IN_BLOCKS = {"q8_0": 8, "q5_1": 5, "q4_0": 4}
#: Bytes of the scale of a block, and of q5_1's minimum: float16 each.
_SCALE_BYTES = {"q8_0": 2, "q5_1": 4, "q4_0": 2}
#: Tokens that go through the layers together when a prompt is read.
CHUNK = 512


def row_bytes(size: int, dtype: str) -> int:
    """Return the bytes of ``size`` values of a cache; 32 values in a block have codes and one or two float16."""
    return code_bytes(size, dtype) + _SCALE_BYTES.get(dtype, 0) * (size // 32)


def code_bytes(size: int, dtype: str) -> int:
    """Bytes of ``size`` values of a cache without their scales."""
    return size * IN_BLOCKS[dtype] // 8 if dtype in IN_BLOCKS else size * FLOAT_BYTES[dtype]


def window_blocks(window: int, block: int) -> int:
    """Blocks of ``block`` positions that a layer with a window keeps of a sequence before the one that it writes to.

    They hold what the next token sees, and what a sequence sees that goes on from the end of the last whole block.
    """
    return -(-window // block)


def pool_blocks(context: int, block: int, window: int | None, sequences: int = 1) -> int:
    """Blocks of ``block`` positions that a layer has for ``sequences`` sequences of ``context`` tokens.

    A layer with a window has those that each sequence keeps and writes to, and as many for one sequence more: what is
    kept of earlier ones. A chunk of prompts takes its blocks before the first ones of the window are given back.
    """
    whole = sequences * -(-context // block)
    if window is None:
        return whole
    windows = sequences + 1
    chunk = (CHUNK + windows * (block - 2)) // block  # where a chunk is cut among sequences, the most blocks it touches
    return min(whole, windows * (window_blocks(window, block) + 1) + chunk)


def cache_bytes(
    decoder: Decoder, context: int, dtype: str, layers: int | None = None, block: int = 0, sequences: int = 1
) -> int:
    """Bytes of keys and values for ``sequences`` sequences of ``context`` tokens in ``layers`` layers (default: all).

    In blocks of ``block`` positions layers with a window keep no more than that, and ``layers`` are all of them; where
    a block holds a whole sequence (0) every layer has the whole context.
    """
    count = len(decoder.layers) if layers is None else layers
    if block:
        positions = sum(block * pool_blocks(context, block, layer.window, sequences) for layer in decoder.layers)
    else:
        positions = count * sequences * context
    return 2 * decoder.kv_heads * positions * row_bytes(decoder.head_dim, dtype)


def activation_bytes(decoder: Decoder, context: int, chunk: int = CHUNK, converted: bool = True) -> int:
    """The most bytes of f32 activations alive at once while a chunk is read, logits of one position included.

    The peak lies in attention (queries, keys, values, the result; with ``converted`` the cache in f32, a mask and the
    scores of a soft cap, as torch's attention wants them and the compiled kernels do not) or in the feed-forward part
    (gate, up and their product in place), over the hidden states and their norm. Without ``converted`` both parts may
    stay alive, as ``numba.step`` keeps all results for the next chunk (``ops.decode_step.numba_prompt``): two of hidden
    size, beside the states of that chunk and the embeddings that they are scaled from.
    """
    rows = min(chunk, context)
    hidden = 2 * rows * decoder.hidden
    q, kv = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    attention = rows * (3 * q + 4 * kv)
    if converted:
        attention += 2 * context * kv + rows * context
        if decoder.attention_softcap is not None:
            attention += 2 * (decoder.heads // decoder.kv_heads) * rows * context
    feed_forward = rows * (3 * decoder.feed_forward + decoder.hidden)
    kept = 0 if converted else rows * (2 * decoder.hidden + 2 * q + 2 * kv + 2 * decoder.feed_forward)
    return 4 * (hidden + max(attention, feed_forward, kept) + 2 * decoder.vocabulary)
