"""Many rows without torch: bound linears, compiled functions between the products, everything else f32 in NumPy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu.decode import attention, rows
from rung.kernels.cpu.decode.attention import AttendWord
from rung.kernels.cpu.decode.cache_layout import score_floats
from rung.kernels.cpu.decode.rope_and_store import StoreWord, rope_and_store_kv
from rung.kernels.cpu.decode.step_program import HeadShape, cache_words
from rung.kernels.cpu.thread_pool import run
from rung.ops.decode_step.batch import BatchTables, logit_rows, positions
from rung.ops.decode_step.parts import Pool, Room, SequenceRows
from rung.ops.decode_step.weights import AdapterRows, LayerStack, LayerWeights, Weights


def reads(weights: LayerStack) -> bool:
    """Return whether every linear is bound to rungs that need no torch, so that ``PromptReader`` multiplies with it."""
    return all(biased.linear.without_torch for biased, _ in weights.linears)


class PromptReader:
    """Reads the rows of a batch an op at a time. Keeps no state but memory: what has been read is in the caches."""

    def __init__(self, weights: LayerStack, pool: Pool, threads: int) -> None:
        self._weights, self._pool, self._threads = weights, pool, threads
        self._rooms: defaultdict[str, Room] = defaultdict(Room)
        shape = self._shape = weights.shape
        self._heads_of = HeadShape(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.attention_scale,
            shape.attention_softcap or 0.0,
            shape.norm_epsilon,
        )
        self._floats = self._heads_of.floats
        self._caches = {}
        for layer in weights.layers:
            _, *offsets = pool.layer(layer.index)
            layout = (pool.block, *offsets)
            self._caches[layer.index] = cache_words(layout, pool.dtype, shape.head_dim, layer.window, self._floats)

    def read(self, batch: Sequence[SequenceRows]) -> Floats:
        """Return the requested logits [outputs, vocabulary] of a batch; write the caches."""
        return self.head(batch, self.through(batch, self.embed(batch)))

    def embed(self, batch: Sequence[SequenceRows]) -> Floats:
        """Return hidden states [rows, hidden] f32 before the first layer."""
        tokens = [token for each in batch for token in each.tokens]
        return self._whole.look_up.rows(tokens) * np.float32(self._shape.embedding_scale)

    def through(self, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return hidden states [rows, hidden] behind the layers, of those before them; write the caches. ``hidden`` is
        overwritten."""
        at = positions(batch)
        turns = [frequencies.table(at) for frequencies in self._weights.frequencies]
        tables = BatchTables(self._pool, len(hidden))
        tables.fill(batch)
        changes = _changes(batch, [len(each.tokens) for each in batch])
        for layer in self._weights.layers:
            self._layer(layer, hidden, tables, turns[layer.rope], changes)
        return hidden

    def head(self, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return the requested logits [outputs, vocabulary] of hidden states [rows, hidden] behind the last layer, and
        write the requested states."""
        self.write_states(batch, hidden)
        with_logits = logit_rows(batch)
        if not with_logits:
            return np.empty((0, self._shape.vocabulary), np.float32)
        return self._logits(hidden[with_logits], _changes(batch, [each.logits for each in batch]))

    @property
    def _whole(self) -> Weights:
        """Return the weights, which have an embedding and a head here."""
        assert isinstance(self._weights, Weights), "layers alone have no embedding and no head"
        return self._weights

    def write_states(self, batch: Sequence[SequenceRows], hidden: Floats) -> None:
        """Write the states that sequences want, after the final norm; ``hidden`` stays as it is."""
        if all(each.states is None for each in batch):
            return
        normed, end = self.add_and_norm(hidden, None, None, self._whole.norm), 0
        for each in batch:
            end += len(each.tokens)
            if each.states is not None:
                each.states[:] = normed[end - len(each.states) : end]

    def _logits(self, hidden: Floats, changes: Sequence[AdapterRows]) -> Floats:
        """Return logits [T, vocabulary] of hidden states [T, hidden], which are overwritten."""
        logits = self._whole.head.multiply(self.add_and_norm(hidden, None, None, self._whole.norm), changes)
        softcap = self._shape.logit_softcap
        if softcap is None:
            return logits
        columns = logits.shape[1]
        wide = np.zeros((len(logits), -(-columns // 16) * 16), np.float32)  # whole vectors are written
        wide[:, :columns] = logits
        cap = np.array([softcap], np.float32)
        self._run(rows.cap_rows.address, *wide.shape, wide.ctypes.data, wide.strides[0], cap.ctypes.data)
        return wide[:, :columns]

    def _layer(
        self,
        layer: LayerWeights,
        hidden: Floats,
        tables: BatchTables,
        turns: tuple[Floats, Floats],
        changes: Sequence[AdapterRows],
    ) -> None:
        q, k, v = self._heads(layer, self.add_and_norm(hidden, None, None, layer.attention_norm), changes)
        self._rope_and_store_kv(layer, (q, k, v), tables, turns)
        mixed = layer.output.multiply(self._attend(layer, q, tables, len(hidden)), changes, self._rooms["added"])
        x = self.add_and_norm(hidden, mixed, layer.attention_post_norm, layer.mlp_norm)
        narrow = layer.narrow.multiply(self._gated(layer, x, changes), changes, self._rooms["added"])
        self.add_and_norm(hidden, narrow, layer.mlp_post_norm, None)

    def add_and_norm(
        self, hidden: Floats, added: Floats | None, post_norm: Floats | None, norm: Floats | None
    ) -> Floats:
        """Add post_norm(added) to hidden in place; return norm(hidden), which the next call overwrites, or hidden
        without a norm."""
        out = hidden if norm is None else self._rooms["normed"].array(*hidden.shape)
        arrays = (hidden, added, post_norm, norm, out)
        self._run(rows.add_and_norm.address, *hidden.shape, *map(_address, arrays), self._floats.ctypes.data)
        return out

    def _heads(self, layer: LayerWeights, x: Floats, changes: Sequence[AdapterRows]) -> tuple[Floats, Floats, Floats]:
        """Return q, k and v of x [T, hidden], as one product where the weights are one."""
        whole = [each.multiply(x, changes, self._rooms[f"inputs {at}"]) for at, each in enumerate(layer.inputs)]
        if len(whole) == 3:
            q, k, v = whole
            return q, k, v
        wide, narrow = (heads * self._shape.head_dim for heads in (self._shape.heads, self._shape.kv_heads))
        q, k, v = np.split(whole[0], [wide, wide + narrow], axis=1)
        return q, k, v

    def _rope_and_store_kv(
        self,
        layer: LayerWeights,
        qkv: tuple[Floats, Floats, Floats],
        tables: BatchTables,
        turns: tuple[Floats, Floats],
    ) -> None:
        """Norm and rotate q and k in place; write k and v into the caches."""
        shape, (cosine, sine) = self._shape, turns
        words = [0] * len(StoreWord)
        words[StoreWord.TOKENS : StoreWord.Q] = len(qkv[0]), shape.kv_heads, shape.heads // shape.kv_heads
        words[StoreWord.Q : StoreWord.Q_APART] = map(_address, qkv)
        words[StoreWord.Q_APART : StoreWord.Q_NORM] = (part.strides[0] for part in qkv)
        words[StoreWord.Q_NORM : StoreWord.COSINE] = map(_address, (layer.q_norm, layer.k_norm))
        words[StoreWord.COSINE : StoreWord.HALF] = map(_address, (cosine, sine))
        words[StoreWord.HALF] = cosine.shape[1]
        words[StoreWord.INTERLEAVED] = int(self._weights.frequencies[layer.rope].interleaved)
        words[StoreWord.ROWS] = _address(tables.rows[self._pool.layer(layer.index).group])
        words[StoreWord.CACHE] = _address(self._caches[layer.index])
        run(rope_and_store_kv[self._pool.dtype].address, words, self._threads)

    def _attend(self, layer: LayerWeights, q: Floats, tables: BatchTables, count: int) -> Floats:
        """Return the output of attention, [T, heads * head_dim]."""
        shape, group = self._shape, self._shape.heads // self._shape.kv_heads
        out = self._rooms["attended"].array(count, shape.heads * shape.head_dim)
        positions = int(tables.rows[self._pool.layer(layer.index).group][:, 0].max()) + 1
        scores = self._rooms["scores"].array(self._threads, score_floats(positions, shape.head_dim))
        words = [0] * len(AttendWord)
        words[AttendWord.KV_HEADS], words[AttendWord.GROUP] = shape.kv_heads, group
        words[AttendWord.FEW] = attention.heads_at_once(shape.kv_heads, group, count, self._threads)
        words[AttendWord.QUERY : AttendWord.OUT] = _address(q), q.strides[0]
        words[AttendWord.OUT : AttendWord.RUNS] = _address(out), out.strides[0]
        words[AttendWord.RUNS] = _address(tables.runs[self._pool.layer(layer.index).group])
        words[AttendWord.COUNT], words[AttendWord.CACHE] = _address(tables.count), _address(self._caches[layer.index])
        words[AttendWord.SCORES :] = _address(scores), scores.strides[0]
        run(attention.attend.address, words, self._threads)
        return out

    def _gated(self, layer: LayerWeights, x: Floats, changes: Sequence[AdapterRows]) -> Floats:
        """Return activation(gate) * up, [T, feed_forward]."""
        whole = [each.multiply(x, changes, self._rooms[f"widen {at}"]) for at, each in enumerate(layer.widen)]
        columns = self._shape.feed_forward
        gate, up = (whole[0][:, :columns], whole[0][:, columns:]) if len(whole) == 1 else whole
        is_gelu = int(self._shape.activation == "gelu_tanh")
        self._run(rows.gate_rows.address, len(x), columns, _address(gate), _address(up), gate.strides[0], is_gelu)
        return gate

    def _run(self, function: int, *words: int) -> None:
        run(function, (0, *words), self._threads)


def _changes(batch: Sequence[SequenceRows], counts: Sequence[int]) -> list[AdapterRows]:
    """Return which of the rows have an adapter, where each sequence has so many; neighbors with the same as one."""
    found: list[AdapterRows] = []
    last = 0
    for each, count in zip(batch, counts, strict=True):
        first, last = last, last + count
        if each.adapter is None or not count:
            continue
        if found and found[-1].last == first and found[-1].adapter is each.adapter:
            first = found.pop().first
        found.append(AdapterRows(first, last, each.adapter))
    return found


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else int(array.ctypes.data)
