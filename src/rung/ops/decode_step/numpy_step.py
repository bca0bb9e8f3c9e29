"""Whole tokens and prompts where torch is not installed and no compiled function takes the model: glue in NumPy."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np

from rung.formats.codec import Floats
from rung.ops.decode_step.parts import Adapter, Cache, Pool, SequenceRows, first_visible, read_each
from rung.ops.decode_step.rope import rotate_array
from rung.ops.decode_step.weights import AdapterRows, LayerWeights, Weights


class ArrayReader:
    """See ``rung.ops.decode_step``. Keeps no state: what has been read is in the cache."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._shape = weights, weights.shape

    @property
    def weights(self) -> Weights:
        """Return the bound parts."""
        return self._weights

    def read(self, ids: Sequence[int], cache: Cache, start: int, adapter: Adapter | None) -> Floats:
        """Return hidden states [T, hidden] after the last layer, of ids at ``start`` and on; write the cache there."""
        hidden = self._weights.look_up.rows(ids) * np.float32(self._shape.embedding_scale)
        turns = [frequencies.table(range(start, start + len(ids))) for frequencies in self._weights.frequencies]
        changes = _all_rows(ids, adapter)
        for layer in self._weights.layers:
            gathered = self._attention(layer, hidden, cache, start, turns[layer.rope], changes)
            hidden += self._post_normed(layer.output.multiply(gathered, changes), layer.attention_post_norm)
            gated = self._gated(layer, self._norm(hidden, layer.mlp_norm), changes)
            narrow = layer.narrow.multiply(gated, changes)
            hidden += self._post_normed(narrow, layer.mlp_post_norm)
        return hidden

    def normed(self, hidden: Floats) -> Floats:
        """Return hidden states [T, hidden] after the final norm."""
        return self._norm(hidden, self._weights.norm)

    def logits(self, hidden: Floats, adapter: Adapter | None) -> Floats:
        """Return logits [T, vocabulary] of hidden states [T, hidden]."""
        normed = self._norm(hidden, self._weights.norm)
        logits = self._weights.head.multiply(normed, _all_rows(hidden, adapter))
        softcap = self._shape.logit_softcap
        return logits if softcap is None else np.tanh(logits / np.float32(softcap)) * np.float32(softcap)

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        """Return x / sqrt(mean(x^2) + epsilon) * weight over the last dimension."""
        mean = np.square(x).mean(axis=-1, keepdims=True)
        normed: Floats = x / np.sqrt(mean + np.float32(self._shape.norm_epsilon)) * weight
        return normed

    def _post_normed(self, added: Floats, norm: Floats | None) -> Floats:
        return added if norm is None else self._norm(added, norm)

    def _attention(
        self,
        layer: LayerWeights,
        hidden: Floats,
        cache: Cache,
        start: int,
        turns: tuple[Floats, Floats],
        changes: Sequence[AdapterRows],
    ) -> Floats:
        """Return the output of attention, [T, heads * head_dim]; write keys and values into the cache."""
        shape, (cos, sin), end = self._shape, turns, start + len(hidden)
        x = self._norm(hidden, layer.attention_norm)
        whole = np.concatenate([linear.multiply(x, changes) for linear in layer.inputs], axis=1)
        heads: Floats = whole.reshape(len(x), -1, shape.head_dim)
        q, k, v = np.split(heads, [shape.heads, shape.heads + shape.kv_heads], axis=1)
        for part, norm in ((q, layer.q_norm), (k, layer.k_norm)):
            if norm is not None:
                part[...] = self._norm(part, norm)
            rotate_array(part, cos, sin, self._weights.frequencies[layer.rope].interleaved)
        cache.write_arrays(layer.index, start, k, v)
        first = first_visible(start, layer.window)
        keys, values = cache.arrays(layer.index, first, end)
        scale, softcap, window = shape.attention_scale, shape.attention_softcap, layer.window
        assert layer.attend is not None, "no cache in blocks comes here"
        out = layer.attend.attend(q, keys, values, start=start - first, scale=scale, window=window, softcap=softcap)
        return out.reshape(len(x), -1)

    def _gated(self, layer: LayerWeights, x: Floats, changes: Sequence[AdapterRows]) -> Floats:
        """Return activation(gate) * up, [T, feed_forward]."""
        whole: Floats = np.concatenate([linear.multiply(x, changes) for linear in layer.widen], axis=1)
        gate, up = whole[:, : self._shape.feed_forward], whole[:, self._shape.feed_forward :]
        if self._shape.activation == "gelu_tanh":
            inner = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate * gate * gate)
            activated: Floats = np.float32(0.5) * gate * (1 + np.tanh(inner))
        else:
            activated = gate / (1 + np.exp(-np.maximum(gate, np.float32(-80))))
        gated: Floats = activated * up
        return gated


def _all_rows(rows: Sized, adapter: Adapter | None) -> list[AdapterRows]:
    return [] if adapter is None else [AdapterRows(0, len(rows), adapter)]


class Step:
    """See ``rung.ops.decode_step``; a sequence is read after the other."""

    block = 0

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> ArrayReader:
        """The parts are bound already."""
        return ArrayReader(weights)

    def same_bytes(self, state: ArrayReader) -> bool:
        """Return False: libraries multiply."""
        return False

    def rows_without_torch(self, state: ArrayReader) -> int | None:
        """Return None: nothing here knows torch."""
        return None

    def look_ahead(self, state: ArrayReader) -> int:
        """Return 0: tokens are chosen from the logits."""
        return 0

    def apply(self, state: ArrayReader, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] f32."""
        return read_each(state, batch)


RUNG = Step()
