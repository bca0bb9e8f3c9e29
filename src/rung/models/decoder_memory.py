"""Bytes that a decoder needs beside its weights: the cache, and the activations of a chunk of tokens."""

from __future__ import annotations

from rung.core.types import FLOAT_BYTES
from rung.models.card import Decoder

#: Tokens that go through the layers together when a prompt is read.
CHUNK = 512


def cache_bytes(decoder: Decoder, context: int, dtype: str, layers: int | None = None) -> int:
    """Bytes of keys and values for ``context`` tokens in ``layers`` layers (default: all of them).

    A window does not make a layer's cache smaller: every layer holds the whole context.
    """
    count = len(decoder.layers) if layers is None else layers
    return 2 * count * decoder.kv_heads * decoder.head_dim * context * FLOAT_BYTES[dtype]


def activation_bytes(decoder: Decoder, context: int, chunk: int = CHUNK, converted: bool = True) -> int:
    """The most bytes of f32 activations alive at once while a chunk is read, logits of one position included.

    The peak lies in attention (queries, keys, values, the result; with ``converted`` the cache in f32, a mask and the
    scores of a soft cap, as torch's attention wants them and the compiled kernels do not) or in the feed-forward part
    (gate, up and their product in place), over the hidden states and their norm.
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
    return 4 * (hidden + max(attention, feed_forward) + 2 * decoder.vocabulary)
