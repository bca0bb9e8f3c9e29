"""A model on a GPU through WebGPU: its weights, the buffers between kernels, and programs of kernels.

What a model is made of lies in buffers that are made once. A program, the kernels of so many rows with their buffers,
is made when it is first needed: for 1, 4, 16 and 64 rows, and for each adapter.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rung.core.errors import OutOfMemory
from rung.formats.codec import Floats
from rung.kernels.webgpu import draw
from rung.kernels.webgpu.attention import (
    Heads,
    Sight,
    Turn,
    attend,
    join_parts,
    rope_and_store,
)
from rung.kernels.webgpu.choose import FOUND_BYTES, GROUPS, feed_back, likeliest
from rung.kernels.webgpu.draw import SETTINGS_BYTES
from rung.kernels.webgpu.glue import add_normed, embed, embed_groups, norm
from rung.kernels.webgpu.gpu import Dispatch, Gpu, gpu
from rung.kernels.webgpu.info import (
    INFO,
    MOST_AHEAD,
    MOST_LOGITS,
    MOST_PARTS,
    MOST_ROWS,
    ONE_PART,
    SHARED_ROWS,
    part_bytes,
)
from rung.kernels.webgpu.int8.tiles import Tile
from rung.kernels.webgpu.int8.units import units_bytes
from rung.kernels.webgpu.layouts import UNIT
from rung.kernels.webgpu.linear import Product, Segment
from rung.kernels.webgpu.matrix import Matrix, Piece, join
from rung.ops.decode_step.parts import Adapter, Pool
from rung.ops.decode_step.weights import Biased, LayerStack, LayerWeights, Weights

#: Rows that there are programs for: each has shaders of its own, which a driver compiles.
SIZES = (1, 4, SHARED_ROWS, MOST_ROWS)


class Vectors:
    """Gains and biases of one buffer, each at a multiple of four float32."""

    def __init__(self, device: Gpu, parts: Sequence[Floats | None]) -> None:
        """Bring them there; ``places`` are where they begin, -1 for those that are not there."""
        self.places, at, padded = [], 0, []
        for part in parts:
            self.places.append(-1 if part is None else at)
            if part is not None:
                padded.append(np.concatenate([part, np.zeros(-len(part) % 4, np.float32)]).astype(np.float32))
                at += len(padded[-1])
        self.size = at
        self.buffer = device.upload(padded) if padded else device.buffer(16)


class Change(NamedTuple):
    """The change by an adapter of weights that are computed together: the words of each segment, ``changes`` in a
    buffer of so many float32, and what multiplies the activations first (None where nothing is changed)."""

    segments: list[dict[str, int]]
    buffer: Any
    size: int
    down: Matrix | None


class Linears:
    """Weights that have their input in common."""

    def __init__(self, device: Gpu, linears: Sequence[Biased], gated: bool = False) -> None:
        self.linears = linears
        self.matrices: list[Matrix] = [_matrix(each) for each in linears]
        join(self.matrices)
        if gated and len(linears) == 1 and (len(self.matrices[0].pieces) > 1 or self.matrices[0].shape[0] % 32):
            raise OutOfMemory(
                f"Gate and up of a layer are one weight of {self.matrices[0].shape[0]:,} rows, which cannot be halved.",
                [f"its driver binds {device.limits.binding:,} bytes of a buffer at once"],
            )

    def change(self, device: Gpu, adapter: Adapter | None) -> Change:
        """Return the change that an adapter makes here."""
        found = [None if adapter is None else adapter.arrays(each.role) for each in self.linears]
        segments: list[dict[str, int]] = []
        parts, downs, at, low = [], [], 0, 0
        for arrays in found:
            if arrays is None:
                segments.append({})
                continue
            down, up, factor = arrays
            words = {"rank": up.shape[1], "up": at, "low": low, "factor": -1}
            parts.append(up.reshape(-1))
            at, low = at + up.size, low + up.shape[1]
            if factor is not None:
                words["factor"] = at
                parts.append(factor)
                at += factor.size
            downs.append(down)
            segments.append(words)
        if not downs:
            return Change(segments, None, 0, None)
        whole = np.concatenate([np.asarray(part, np.float32) for part in parts])
        filled = np.concatenate([whole, np.zeros(-len(whole) % 4, np.float32)])
        return Change(segments, device.upload([filled]), at, Matrix.of_floats(device, np.concatenate(downs)))


def _matrix(linear: Biased) -> Matrix:
    state = linear.linear.state  # type: ignore[attr-defined]  # of a rung whose packing is webgpu
    assert isinstance(state, Matrix), "check_webgpu lets no other linear come here"
    return state


class Layer:
    """One layer's weights and vectors.

    ``before`` is the gain of the norm behind the layer before, which is computed here. ``sums`` is how often what a
    norm behind a product gives was added to the hidden states before: each time they move to the other of two buffers.
    ``behind`` is the gain of the norm before the layer behind, or of the final one, which units of hidden states have;
    None where the layer behind is elsewhere. ``looked_up``: hidden states before it come from the processor.
    """

    def __init__(
        self,
        device: Gpu,
        weights: LayerWeights,
        before: Floats | None,
        sums: int,
        behind: Floats | None,
        looked_up: bool,
    ) -> None:
        self.weights, self.sums, self.looked_up = weights, sums, looked_up
        self.inputs, self.output = Linears(device, weights.inputs), Linears(device, [weights.output])
        self.widen, self.narrow = Linears(device, weights.widen, gated=True), Linears(device, [weights.narrow])
        groups = (self.inputs, self.output, self.widen, self.narrow)
        norms = [weights.attention_norm, weights.q_norm, weights.k_norm]
        norms += [weights.attention_post_norm, weights.mlp_norm, before, behind]
        self.vectors = Vectors(device, [*norms, *(each.bias for group in groups for each in group.linears)])
        self.attention, self.q, self.k, self.attention_post, self.mlp, self.before, self.behind, *biases = (
            self.vectors.places
        )
        taken = iter(biases)
        self.biases = [[next(taken) for _ in group.linears] for group in groups]


class State:
    """A model on a GPU, or some layers of it: weights, the buffers between kernels, and programs.

    ``integers``: activations are quantized by the kernels that make them, for weights whose codes are integers.
    """

    def __init__(self, weights: LayerStack, pool: Pool, integers: bool = False) -> None:
        self.weights, self.pool, self.shape, self.integers = weights, pool, weights.shape, integers
        self.gpu = gpu(weights.layers[0].device)
        whole = weights if isinstance(weights, Weights) else None
        rows = None if whole is None else getattr(whole.look_up, "state", None)
        #: The norm behind the last product, which ``norm`` or who reads hidden states has to add.
        self.last_norm: Floats | None = None
        self.layers, self.sums = list[Layer](), 0
        following = [*(each.attention_norm for each in weights.layers[1:]), None if whole is None else whole.norm]
        for each, behind in zip(weights.layers, following, strict=True):
            self._add_layer(each, behind, looked_up=not self.layers and not isinstance(rows, Matrix))
        self.head = None if whole is None else Linears(self.gpu, [whole.head])
        self.norm = Vectors(self.gpu, [None if whole is None else whole.norm, self.last_norm])
        self.per_sequence = -(-pool.context // pool.block)
        shape, buffer = self.shape, lambda numbers: self.gpu.buffer(4 * MOST_ROWS * numbers)
        self.wide = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        #: Hidden states, which lie in turns in one of them where norms are behind products.
        self.hidden = buffer(shape.hidden), buffer(shape.hidden)
        self.qkv, self.added, self.normed = buffer(self.wide), buffer(shape.hidden), buffer(shape.hidden)
        self.mixed, self.inner = buffer(shape.heads * shape.head_dim), buffer(shape.feed_forward)
        self.logits = self.gpu.buffer(4 * MOST_LOGITS * (shape.vocabulary if whole else 0))
        #: Units (``kernels.webgpu.int8.units``) of the hidden states, of what attention gives, and of the inner ones.
        self.units: list[Any] = [
            self.gpu.buffer(units_bytes(MOST_ROWS, numbers)) if integers else None
            for numbers in (shape.hidden, shape.heads * shape.head_dim, shape.feed_forward)
        ]
        #: What parts of attention leave (``kernels.webgpu.attention``), from the first position that needs them on.
        self.left: Any = None
        self.info, self.other_info = self.gpu.buffer(4 * INFO), self.gpu.buffer(4 * INFO)
        self.tables = {n: buffer(self.per_sequence) for n in {pool.layer(each.index).group for each in weights.layers}}
        self.turns = [buffer(each.dims) for each in weights.frequencies]
        #: Kernels of the embedding, one for each piece of it; none where the processor looks rows up.
        self.embed = [*self._embed(rows)] if isinstance(rows, Matrix) else []
        #: Tokens that the GPU has chosen.
        self.chosen = self.gpu.buffer(4 * MOST_AHEAD)
        #: How they are drawn (``rung.kernels.webgpu.draw``).
        self.settings = self.gpu.buffer(SETTINGS_BYTES)
        self._choices: dict[tuple[bool, bool], list[Dispatch]] = {}
        self.plain = Program(self, None)
        self.adapted: weakref.WeakKeyDictionary[Adapter, Program] = weakref.WeakKeyDictionary()

    def _add_layer(self, weights: LayerWeights, behind: Floats | None, looked_up: bool) -> None:
        """Bring the layer behind those that are there; see ``Layer``."""
        self.layers.append(Layer(self.gpu, weights, self.last_norm, self.sums, behind, looked_up))
        self.sums += (self.last_norm is not None) + (weights.attention_post_norm is not None)
        self.last_norm = weights.mlp_post_norm

    def _embed(self, weight: Matrix) -> Iterator[Dispatch]:
        layer, columns, first = self.layers[0], weight.shape[1], 0
        gains = layer.vectors.size if self.integers else 0
        assert layer.attention == 0, "the gain of a layer's first norm is the first of its vectors"
        for piece in weight.pieces:
            buffers = [piece.buffer, piece.buffer, self.info, self.hidden[0]]
            buffers += [layer.vectors.buffer, self.units[0]] if self.integers else []
            scale = self.shape.embedding_scale
            kernel = embed(weight.layout, piece.rows, columns, piece.base, scale, gains, first)
            yield self.gpu.bind(kernel, buffers, embed_groups(columns), 0)
            first += piece.rows

    def choices(self, draws: bool, filtered: bool) -> list[Dispatch]:
        """Return the kernels that choose a token of the first row of logits and read it next: the likeliest, or one
        that is drawn, of those that filters leave."""
        if (draws, filtered) not in self._choices:
            dispatches = self._draw(filtered) if draws else self._likeliest()
            self._choices[draws, filtered] = dispatches
        return self._choices[draws, filtered]

    def _likeliest(self) -> list[Dispatch]:
        found = self.gpu.buffer(FOUND_BYTES)
        first = self.gpu.bind(likeliest(self.shape.vocabulary), [self.logits, found], GROUPS)
        return [first, self.gpu.bind(feed_back(), [found, self.info, self.chosen], 1)]

    def _draw(self, filtered: bool) -> list[Dispatch]:
        count, found = self.shape.vocabulary, self.gpu.buffer(draw.FOUND_BYTES)
        read = [self.logits, self.settings, found]
        first = self.gpu.bind(draw.part(count, filtered), read, draw.PARTS)
        return [first, self.gpu.bind(draw.draw(count, filtered), [*read, self.info, self.chosen], 1)]

    def program(self, adapter: Adapter | None) -> Program:
        """Return the kernels of rows with an adapter, or with none."""
        if adapter is None:
            return self.plain
        if adapter not in self.adapted:
            self.adapted[adapter] = Program(self, adapter)
        return self.adapted[adapter]

    def norm_kernel(self, rows: int) -> Dispatch:
        """Return the kernel of the final norm of the rows that ``other_info`` selects."""
        gain, post = self.norm.places
        kernel = norm(self.shape.hidden, self.norm.size, self.shape.norm_epsilon, gain, post)
        hidden = self.hidden[self.sums % 2]
        buffers = [self.norm.buffer, self.other_info, hidden, self.added, self.normed]
        return self.gpu.bind(kernel, buffers, rows)

    def heads(self, layer: int) -> Heads:
        """Return where the keys and values of a layer lie."""
        shape, lies = self.shape, self.pool.layer(layer)
        return Heads(
            shape.heads, shape.kv_heads, shape.head_dim, self.pool.block, self.pool.dtype == "f16",
            lies.values // 2, lies.values // 4, lies.head // 4, lies.row // 4,
            self.pool.buffer(layer).size // 4, MOST_ROWS * self.per_sequence, self.pool.dtype == "q8_0",
        )  # fmt: skip


class Program:
    """The kernels of rows that have one adapter, or none."""

    def __init__(self, state: State, adapter: Adapter | None) -> None:
        self._state = weakref.proxy(state)
        groups = [g for each in state.layers for g in (each.inputs, each.output, each.widen, each.narrow)]
        groups += [state.head] if state.head else []
        self._changes = {id(group): group.change(state.gpu, adapter) for group in groups}
        most = max((each.down.shape[0] for each in self._changes.values() if each.down is not None), default=0)
        self._low = state.gpu.buffer(4 * MOST_ROWS * max(most, 4))
        self._layers: dict[tuple[int, bool, bool], list[Dispatch]] = {}
        self._heads: dict[int, list[Dispatch]] = {}

    def layers(self, rows: int, apart: bool, last: int) -> list[Dispatch]:
        """Return the kernels from hidden states before the first layer to those after the last; ``apart``: each row is
        of another sequence. ``last`` is the last position of any."""
        parted = last > ONE_PART
        if (rows, apart, parted) not in self._layers:
            found = [kernel for layer in self._state.layers for kernel in self._layer(layer, rows, apart, parted)]
            self._layers[rows, apart, parted] = found
        return self._layers[rows, apart, parted]

    def head(self, rows: int) -> list[Dispatch]:
        """Return the kernels of the logits of so many selected rows."""
        if rows not in self._heads:
            s = self._state
            assert s.head, "layers alone have no head"
            gain, post = s.norm.places
            x, sums = s.hidden[s.sums % 2], s.hidden[(s.sums + 1) % 2]
            before = self._sums(s.norm, x, sums, rows, post, gain)
            x, post = (sums, -1) if before else (x, post)
            options = {"gain": gain, "post": post, "softcap": s.shape.logit_softcap, "selected": True}
            options["units"] = s.units[0]
            self._heads[rows] = [*before, *self._products(s.head, [-1], s.norm, x, s.logits, rows, **options)]
        return self._heads[rows]

    def _layer(self, layer: Layer, rows: int, apart: bool, parted: bool) -> Iterator[Dispatch]:
        s, shape = self._state, self._state.shape
        inputs, output, widen, narrow = layer.biases
        sums, post = layer.sums + (layer.before >= 0), layer.attention_post
        hidden, after = s.hidden[sums % 2], s.hidden[(sums + (post >= 0)) % 2]
        x, former = s.hidden[layer.sums % 2], layer.before
        if summed := self._sums(layer.vectors, x, hidden, rows, former, layer.attention):
            yield from summed
            x, former = hidden, -1
        options: dict[str, Any] = {"gain": layer.attention, "post": former, "kept": hidden}
        options["units"] = None if layer.looked_up else s.units[0]
        yield from self._products(layer.inputs, inputs, layer.vectors, x, s.qkv, rows, **options)
        yield from self._attention(layer, apart, parted)
        mixed = s.units[1] if self._whole_heads else None
        options = {"units": mixed, "normed": post >= 0, "behind": layer.mlp}
        yield from self._sum(layer.output, output, layer.vectors, s.mixed, hidden, rows, **options)
        x = hidden
        if summed := self._sums(layer.vectors, x, after, rows, post, layer.mlp):
            yield from summed
            x, post = after, -1
        options = {"gain": layer.mlp, "post": post, "kept": after, "activation": shape.activation}
        # with an adapter and a norm behind the product before it there is no binding left
        quantized = None if post >= 0 and self._changes[id(layer.widen)].down is not None else s.units[2]
        options |= {"units": s.units[0], "quantized": quantized}
        yield from self._products(layer.widen, widen, layer.vectors, x, s.inner, rows, **options)
        options = {"units": quantized, "normed": layer.weights.mlp_post_norm is not None, "behind": layer.behind}
        yield from self._sum(layer.narrow, narrow, layer.vectors, s.inner, after, rows, **options)

    def _sums(self, vectors: Vectors, x: Any, y: Any, rows: int, post: int, gain: int) -> list[Dispatch]:
        """Return the kernel that makes y of x and of what a norm behind a product gives, with its units, for several
        rows that are multiplied as integers: a workgroup would make them of all rows anew. None for others."""
        s = self._state
        if post < 0 or rows == 1 or not s.integers:
            return []
        kernel = add_normed(s.shape.hidden, vectors.size, s.shape.norm_epsilon, post, gain)
        return [s.gpu.bind(kernel, [vectors.buffer, x, s.added, y, s.units[0]], 0)]

    @property
    def _whole_heads(self) -> bool:
        state: State = self._state
        return state.integers and state.shape.head_dim % UNIT == 0

    def _attention(self, layer: Layer, apart: bool, parted: bool) -> Iterator[Dispatch]:
        s, shape, index, vectors = self._state, self._state.shape, layer.weights.index, layer.vectors
        rope, heads, cache = s.weights.frequencies[layer.weights.rope], s.heads(index), s.pool.buffer(index)
        tables, turns = s.tables[s.pool.layer(index).group], s.turns[layer.weights.rope]
        turn = Turn(rope.dims, rope.interleaved, vectors.size, layer.q, layer.k, shape.norm_epsilon)
        buffers = [vectors.buffer, s.info, tables, turns, s.qkv, cache]
        if not apart:
            yield s.gpu.bind(rope_and_store(heads, turn), buffers, heads.all, 0)
        sight = Sight(shape.attention_scale, layer.weights.window, shape.attention_softcap)
        makes = self._whole_heads
        kernel, results = attend(heads, sight, turn if apart else None, makes, parted), [s.mixed, *s.units[1:2][:makes]]
        if not parted:
            yield s.gpu.bind(kernel, [*buffers, *results], shape.heads, 0)
            return
        if s.left is None:
            s.left = s.gpu.bindable(part_bytes(shape.heads, shape.head_dim))
        yield s.gpu.bind(kernel, [*buffers, s.left], shape.heads * MOST_PARTS, 0)
        yield s.gpu.bind(join_parts(heads, sight, apart, makes), [s.left, s.info, *results], shape.heads, 0)

    def _sum(
        self, group: Linears, biases: list[int], vectors: Vectors, x: Any, hidden: Any, rows: int, **options: Any
    ) -> Iterator[Dispatch]:
        """Yield the kernels that add a product to the hidden states, or, ``normed``, write what the next one adds."""
        normed, behind = options.pop("normed"), options.pop("behind")
        y = self._state.added if normed else hidden
        if not normed:
            options |= {"quantized": self._state.units[0], "after": behind}
        yield from self._products(group, biases, vectors, x, y, rows, residual=not normed, **options)

    def _products(
        self, group: Linears, biases: list[int], vectors: Vectors, x: Any, y: Any, rows: int, **options: Any
    ) -> Iterator[Dispatch]:
        """Yield the kernels of weights that have their input in common; ``units`` and ``quantized`` are
        buffers of units of x and of y, or None."""
        s, change = self._state, self._changes[id(group)]
        columns, gain, kept = group.matrices[0].shape[1], options.pop("gain", -1), options.pop("kept", None)
        units, quantized, after = options.pop("units", None), options.pop("quantized", None), options.pop("after", -1)
        options |= {"gains": vectors.size, "epsilon": s.shape.norm_epsilon, "columns": columns}
        options["rows"], options["blocks"] = _blocks(rows)
        buffers = [vectors.buffer, s.info, x, y]
        if change.down is not None:
            options |= {"changes": change.size, "low": change.down.shape[0]}
            buffers += [change.buffer, self._low]
            yield self._down(change.down, vectors, x, rows, columns, gain, options)
        if options.get("post", -1) >= 0:
            options["keeps"] = kept is not None
            buffers += [s.added] if kept is None else [s.added, kept]
            units = None  # what a norm is added to has none yet
        kind: type[Product] = Product
        if s.integers:
            kind = Tile
            options |= {"units": units is not None, "makes": quantized is not None, "after": after}
            buffers += [each for each in (units, quantized) if each is not None]
        for start, segments, stride, buffer in _segments(group, biases, change, bool(options.get("activation"))):
            product = kind(segments, gain=gain, start=start, stride=stride, **options)
            yield s.gpu.bind(product.kernel(), [buffer, buffer, *buffers], *product.grid)

    def _down(
        self, down: Matrix, vectors: Vectors, x: Any, rows: int, columns: int, gain: int, options: dict[str, Any]
    ) -> Dispatch:
        s, piece = self._state, down.pieces[0]
        selected, post = options.get("selected", False), options.get("post", -1)
        segments = (Segment(down.layout, piece.rows),)
        epsilon = s.shape.norm_epsilon
        own, blocks = _blocks(rows)
        product = Product(
            segments, columns, own, vectors.size, gain, epsilon, selected=selected, post=post, blocks=blocks
        )
        buffers = [piece.buffer, piece.buffer, vectors.buffer, s.info, x, self._low]
        device: Gpu = s.gpu
        return device.bind(product.kernel(), [*buffers, *([s.added] if post >= 0 else [])], *product.grid)


def _blocks(rows: int) -> tuple[int, int]:
    """Return the rows of activations of a workgroup, and how many times these are all."""
    return min(rows, SHARED_ROWS), -(-rows // SHARED_ROWS)


def _segments(
    group: Linears, biases: list[int], change: Change, activated: bool
) -> Iterator[tuple[int, tuple[Segment, ...], int, Any]]:
    """Yield what each kernel multiplies with: the first row of its result, segments, the numbers of a row of the whole
    result, and the buffer of the weights."""
    for start, pieces in _together(group.matrices, activated):
        parts = [
            Segment(group.matrices[n].layout, piece.rows, piece.base, bias=biases[n], **change.segments[n])
            for n, piece in pieces
        ]
        stride = group.matrices[0].shape[0] if activated else sum(m.shape[0] for m in group.matrices)
        if activated and len(parts) == 1:
            parts = _halves(parts[0])
            stride //= 2
        yield start, tuple(parts), stride, pieces[0][1].buffer


def _halves(both: Segment) -> list[Segment]:
    """Return gate and up of one weight that has both."""
    rows = both.rows // 2
    gate = replace(both, rows=rows, whole=both.rows)
    bias, factor = (row + rows if row >= 0 else -1 for row in (both.bias, both.factor))
    return [gate, replace(gate, first=rows, bias=bias, up=both.up + rows * both.rank, factor=factor)]


def _together(matrices: Sequence[Matrix], pairs: bool) -> Iterator[tuple[int, list[tuple[int, Piece]]]]:
    """Yield pieces that one kernel computes, with the number of their matrix, and the first row of their result."""
    whole = [piece for matrix in matrices for piece in matrix.pieces]
    if pairs:
        start = 0
        for both in zip(*(matrix.pieces for matrix in matrices), strict=True):
            yield start, list(enumerate(both))
            start += both[0].rows
    elif len({id(piece.buffer) for piece in whole}) == 1:
        yield 0, [(number, matrix.pieces[0]) for number, matrix in enumerate(matrices)]
    else:
        start = 0
        for number, matrix in enumerate(matrices):
            for piece in matrix.pieces:
                yield start, [(number, piece)]
                start += piece.rows
