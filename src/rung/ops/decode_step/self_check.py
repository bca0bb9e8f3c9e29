"""Check a rung of decode_step: every token of a tiny decoder with seeded weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rung import formats
from rung.core.types import Case, Rung
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.webgpu import device_blocks, is_webgpu, tensor_device
from rung.kernels.webgpu.int8.units import rounded
from rung.models.adapters.adapter import LowRank
from rung.models.card import Decoder, Layer, Rope
from rung.models.decoder_memory import code_bytes, row_bytes
from rung.ops import LADDERS
from rung.ops.decode_step import GRAPH
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.decode_step.parts import LayerLayout, Room, SequenceRows
from rung.ops.decode_step.rope import SPREAD, spread_evenly
from rung.ops.decode_step.weights import Weights
from rung.ops.proof import columns_of, compare, compare_scale, on
from rung.ops.proof import weights as weights_of
from rung.ops.token_choice import Row

if TYPE_CHECKING:
    from torch import Tensor

#: Norms behind products: of some only, so that each is followed by what has one and by what has none.
_POST_NORMS = ("layers.0.mlp_post_norm", "layers.1.attn_post_norm", "layers.1.mlp_post_norm")
#: Weights behind these, whose activations each workgroup of ``webgpu.int8`` makes units of, of one row.
_BEHIND_NORMS = ("head", *(f"layers.1.{kind}" for kind in ("q", "k", "v", "gate", "up")))
#: Formats whose layouts have, together, all kinds of codes and of scales.
LAYOUTS = ("q4_0", "q4_1", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q6_k", "int8", "iq4_nl")
#: Rows that a rung of linear for few rows takes.
FEW = 8
_NUMPY = {"f32": np.float32, "f16": np.float16}
VOCABULARY, HIDDEN, WIDE, HEADS, KV_HEADS, CONTEXT = 83, 64, 96, 4, 2, 24


class _Linear:
    """A weight on one rung of linear for few rows; a stored one on ``numpy.decode`` for many. ``rounds``: activations
    are first rounded to signed bytes, those of one row as a workgroup does for itself where it is ``behind_norm``."""

    def __init__(
        self, encoded: Encoded, rung: str, device: str, rounds: bool = False, behind_norm: bool = False
    ) -> None:
        few = LADDERS["linear"].rung(rung)
        self._few, self.without_torch = few.load(), few.without_torch
        self._many = LADDERS["linear"].rung("numpy.decode").load() if rung == "numba.stored" else self._few
        self.state = self._few.prepare(encoded, dtype="f32", threads=2, **on(few, device))
        self._encoded, self._device, self._rounds, self._behind_norm = encoded, device, rounds, behind_norm

    def encoded(self) -> Encoded:
        return self._encoded

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        alone = not self.without_torch or len(x) <= FEW
        y: Tensor = self._few.apply(self.state, x) if alone else torch.from_numpy(self.multiply(x.numpy()))
        return y

    def multiply(self, x: Floats, room: Room | None = None) -> Floats:
        if not self.without_torch:
            import torch

            return np.asarray(self(torch.from_numpy(x).to(tensor_device(self._device))).cpu())
        x = rounded(x, self._behind_norm and len(x) == 1) if self._rounds else x
        rung = self._few if len(x) <= FEW else self._many
        if room is not None and hasattr(rung, "multiply_into"):
            y = room.array(len(x), self._encoded.shape[0])
            rung.multiply_into(self.state, x, y)
            return y
        found: Floats = rung.multiply(self.state, x)
        return found


class _Embedding:
    """Rows of a matrix; ``state`` is the one that a GPU has of it."""

    def __init__(self, rows: Floats, state: object) -> None:
        self._rows, self.state = rows, state

    def __call__(self, ids: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self._rows)[ids.cpu()]

    def rows(self, ids: Sequence[int]) -> Floats:
        return self._rows[list(ids)]


class _Attention:
    """Attention in NumPy, for arrays and for tensors on a CPU."""

    def __init__(self) -> None:
        self._rung = LADDERS["attention"].rung("numpy.sdpa").load()

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        import torch

        arrays = (each.cpu().numpy() for each in (q, keys, values))
        return torch.from_numpy(self.attend(*arrays, **options)).to(q.device)

    def attend(self, q: Floats, keys: Floats, values: Floats, **options: Any) -> Floats:
        attended: Floats = self._rung.attend(q, keys, values, **options)
        return attended


class _Parts:
    """Seeded weights by role; see ``rung.ops.decode_step.parts.Parts``."""

    def __init__(self, head_dim: int, rungs: Sequence[str], device: str, rounds: bool) -> None:
        self._rounds, self._whole = rounds, head_dim % 32 == 0
        wide, narrow = HEADS * head_dim, KV_HEADS * head_dim
        self._rungs, self._device, self._bound = rungs, device, 0
        self._shapes = {
            "embed": (VOCABULARY, HIDDEN),
            "head": (VOCABULARY, HIDDEN),
            "q": (wide, HIDDEN),
            "k": (narrow, HIDDEN),
            "v": (narrow, HIDDEN),
            "o": (HIDDEN, wide),
            "gate": (WIDE, HIDDEN),
            "up": (WIDE, HIDDEN),
            "down": (HIDDEN, WIDE),
        }

    def _values(self, role: str, shape: tuple[int, ...]) -> Floats:
        return np.random.default_rng([ord(letter) for letter in role]).standard_normal(shape, dtype=np.float32)

    def _encoded(self, role: str, format: str = "q8_0") -> Encoded:
        shape = self._shapes[role.rpartition(".")[2]]
        return formats.encode(self._values(role, shape) / np.sqrt(shape[1]), formats.get(format), role)

    def holds(self, role: str) -> bool:
        kind = role.rpartition(".")[2]
        return kind in (*self._shapes, "attn_norm", "mlp_norm") or role in _POST_NORMS

    def linear(self, role: str) -> _Linear:
        rung = self._rungs[self._bound % len(self._rungs)]
        self._bound += 1
        columns = self._shapes[role.rpartition(".")[2]][1]
        format = {"numba.stored": "bf16", "cuda.stored": "int8" if columns % 64 else "nf4"}.get(rung, "q8_0")
        if not formats.get(format).divides(columns):  # heads of an odd size
            format, rung = "f32", "numpy.decode"
        rounds = self._rounds and (self._whole or not role.endswith(".o"))
        return _Linear(self._encoded(role, format), rung, self._device, rounds, role in _BEHIND_NORMS)

    def look_up(self) -> _Embedding:
        encoded = self._encoded("embed")
        rung = "webgpu.rows" if is_webgpu(self._device) else "cuda.rows" if self._rungs[0] in GRAPH else ""
        return _Embedding(formats.decode(encoded), _Linear(encoded, rung, self._device).state if rung else None)

    def vector(self, role: str) -> Floats:
        return 1 + self._values(role, (HIDDEN,)) / np.float32(4)

    def attention(self, layer: int) -> object:
        return _Attention()

    def device(self, layer: int) -> str:
        return self._device


#: How much of a row's deviation single logits may differ by, and all of them, with caches in blocks.
_BLOCKS = {"q8_0": (0.3, 0.02), "q5_1": (0.5, 0.04), "q4_0": (0.8, 0.05)}
#: Caches that one check has.
_CACHES = 7


class TinyCache:
    """Keys and values of two layers, blocks of 16 positions that lie in turned order: a pool and a cache in one; see
    ``rung.ops.decode_step.parts``.

    In blocks arrays are written and read as float32 of the same values. On a GPU that WebGPU reaches both lie twice: in
    its buffers, which ``pool`` shares with others, and as arrays for the rung that others are compared with.
    """

    block = 16
    groups = 1

    def __init__(self, head_dim: int, dtype: str, device: str, pool: TinyCache | None = None) -> None:
        self.context, self.dtype = CONTEXT, dtype
        self._row = code_bytes(head_dim, dtype)
        shape = -(-CONTEXT // self.block), 2, 2, KV_HEADS, self.block
        self._memory = np.zeros((*shape[:-1], self.block * row_bytes(head_dim, dtype)), np.uint8)
        self._next = 0
        self._table = np.array([block.ctypes.data for block in self._memory[::-1]], np.int64)
        self._device = device
        self._there: Any = None
        if device != "cpu":
            first = 0 if pool is None else pool.take()
            if pool is None:
                self._blocks = self._on_device(_CACHES * shape[0], shape[1])
            self._there = self._blocks if pool is None else pool._blocks
            self._table = np.arange(first + shape[0], first, -1, dtype=np.int64) - 1
        self._values = np.zeros((*shape, head_dim), np.float32)
        if dtype in _NUMPY:
            self._values = self._memory.view(_NUMPY[dtype]).reshape(*shape, head_dim)

    def _on_device(self, blocks: int, layers: int) -> Any:
        """Return the memory of all caches on a GPU."""
        if is_webgpu(self._device):
            return device_blocks(self._device, blocks, layers, self._memory[0, 0].nbytes)
        import torch

        return torch.zeros((blocks, self._memory[0].nbytes), dtype=torch.uint8, device=self._device)

    @property
    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """See there."""
        return [(both[:, 0], both[:, 1]) for both in self._parts()[0].unbind(1)]

    def take(self) -> int:
        """Return the number of the first of two blocks that nobody has."""
        self._next += 2
        return self._next

    def layer(self, index: int) -> LayerLayout:
        """See there."""
        _, layer, values, head, _ = self._memory.strides
        return LayerLayout(0, index * layer, values, head, self._row)

    def table(self, group: int) -> int:
        """See there."""
        return int(self._table.ctypes.data)

    def buffer(self, index: int) -> Any:
        """See there."""
        return self._blocks.buffers[index]

    def write_arrays(self, layer: int, start: int, keys: Floats, values: Floats) -> None:
        """See there."""
        for which, new in enumerate((keys, values)):
            for row, heads in enumerate(new, start):
                if self.dtype == "q8_0":
                    heads = self._rounded(np.ascontiguousarray(heads))
                elif self.dtype in SPREAD:
                    heads = spread_evenly(SPREAD[self.dtype](spread_evenly(np.ascontiguousarray(heads))))
                self._values[::-1][row // self.block, layer, which, :, row % self.block] = heads

    def _rounded(self, heads: Floats) -> Floats:
        """Return keys or values as the device's cache in q8_0 has them."""
        if self._device != "cpu":
            from rung.kernels.webgpu.attention import quantized

            return quantized(heads)
        return formats.decode(formats.encode(heads, formats.get("q8_0"), ""))

    def arrays(self, layer: int, first: int, end: int) -> tuple[Floats, Floats]:
        """See there."""
        both = self._values[::-1, layer].transpose(1, 0, 3, 2, 4).reshape(2, -1, KV_HEADS, self._values.shape[-1])
        return both[0, first:end], both[1, first:end]

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """See there."""
        self.write_arrays(layer, start, keys.cpu().numpy(), values.cpu().numpy())
        if self._there is None:
            return
        for there, both in zip(self._parts(), self._stored(keys, values), strict=True):
            for which, new in enumerate(both):
                for at, heads in enumerate(new, start):
                    there[int(self._table[at // self.block]), layer, which, :, at % self.block] = heads

    def read(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """See there."""
        import torch

        if self._there is None:
            keys, values = map(torch.from_numpy, self.arrays(layer, first, end))
            return keys, values
        found = []
        for part in self._parts():
            blocks = [part[int(number), layer] for number in self._table]
            found.append(torch.cat(blocks, dim=2).swapaxes(1, 2)[:, first:end])
        if self.dtype == "q8_0":
            from rung.kernels.gpu.decoders import dequantized

            found = [dequantized(*found)]
        keys, values = found[0]
        return keys, values

    def _stored(self, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values as each of ``_parts`` has them."""
        if self.dtype != "q8_0":
            return [(keys, values)]
        from rung.kernels.gpu.decoders import quantized_parts

        (keys, first), (values, second) = quantized_parts(keys), quantized_parts(values)
        return [(keys, values), (first, second)]

    def _parts(self) -> list[Tensor]:
        """Return the memory of a device of torch as [blocks, layers, 2, heads, positions, head_dim], and in q8_0 the
        scales."""
        from rung.kernels.gpu.decoders import cache_parts
        from rung.kernels.gpu.dtypes import TORCH_DTYPE

        tensor, shape = self._there, self._values.shape
        if self.dtype == "q8_0":
            heads = tensor.view(-1, *shape[1:4], tensor.shape[-1] // math.prod(shape[1:4]))
            return [*cache_parts(heads, *shape[4:])]
        return [tensor.view(TORCH_DTYPE[self.dtype]).view(-1, *shape[1:])]


def weights(case: Case, device: str, rounds: bool = False) -> Weights:
    """Two layers, one with a window, with the head size of the case, on its rungs of linear, in turn; ``rounds``:
    activations are first rounded as ``webgpu.int8`` does."""
    head_dim = int(case.options["head_dim"])
    rope = Rope(head_dim, False, tuple(1e4 ** (-2 * i / head_dim) for i in range(head_dim // 2)))
    shape = Decoder(
        "tiny", (Layer(None, 0), Layer(8, 0)), HIDDEN, HEADS, KV_HEADS, head_dim, WIDE, VOCABULARY, CONTEXT,
        1e-6, 0.0, "silu", head_dim**-0.5, (rope,), attention_softcap=20.0, logit_softcap=30.0,
    )  # fmt: skip
    return Weights.bind(shape, _Parts(head_dim, case.options["linears"], device, rounds), CONTEXT)  # type: ignore[arg-type]


def adapters(bound: Weights) -> tuple[BoundAdapter, BoundAdapter]:
    """Return a LoRA of rank 3 and one of rank 19, in float32 in the first layer and a DoRA of float16 in the second;
    the first changes no k, the second nothing but k and the head."""
    first, second = {}, {}
    for each, _ in bound.linears:
        rows, columns = each.linear.encoded().shape
        if not each.role.endswith(".k"):
            first[each.role] = [_change(each.role, 3, rows, columns)]
        if each.role.endswith((".k", "head")):
            second[each.role] = [_change(each.role, 19, rows, columns)]
    return BoundAdapter(bound, first, 2), BoundAdapter(bound, second, 2)


def _change(role: str, rank: int, rows: int, columns: int) -> LowRank:
    random = np.random.default_rng([rank, *map(ord, role)])
    down = random.standard_normal((rank, columns), dtype=np.float32)
    up = random.standard_normal((rows, rank), dtype=np.float32)
    if not role.startswith("layers.1"):
        return LowRank(down, up, 1 / np.sqrt(rank * columns))
    down, up = (part.astype(np.float16).astype(np.float32) for part in (down, up))
    magnitude = 1 + np.abs(random.standard_normal(rows, dtype=np.float32))
    return LowRank(down, up, 1 / 32, magnitude)


def steps(rung: Any, case: Case, device: str = "cpu", rounds: bool = False) -> Floats:
    """Logits [46, vocabulary] of twelve tokens on a rung of decode_step, with an adapter: one after the other, all at
    once, and of the last six rows of two sequences in one batch; then of six rows of three sequences, without an
    adapter, with one and with another; and of ten more tokens without one, one after the other."""
    head_dim = int(case.options["head_dim"])
    ids = np.random.default_rng(7).integers(0, VOCABULARY, 12).tolist()
    one = TinyCache(head_dim, case.format, device)
    whole, first, second, *others = (TinyCache(head_dim, case.format, device, one) for _ in range(_CACHES - 1))
    bound = weights(case, device, rounds)
    adapter, other = adapters(bound)
    state = rung.prepare(bound, one, threads=2)
    found = [rung.apply(state, [SequenceRows([token], at, one, 1, adapter)]).copy() for at, token in enumerate(ids)]
    found.append(rung.apply(state, [SequenceRows(ids, 0, whole, 12, adapter)]).copy())
    rung.apply(state, [SequenceRows(ids[:3], 0, first, 0, adapter), SequenceRows(ids[:8], 0, second, 0, adapter)])
    batch = [SequenceRows(ids[3:5], 3, first, 2, adapter), SequenceRows(ids[8:], 8, second, 4, adapter)]
    found.append(rung.apply(state, batch).copy())
    three = list(zip((None, adapter, other), others, strict=True))
    rung.apply(state, [SequenceRows(ids[:7], 0, cache, 0, each) for each, cache in three])
    found.append(rung.apply(state, [SequenceRows(ids[7:10], 7, cache, 2, each) for each, cache in three]).copy())
    found += [rung.apply(state, [SequenceRows([t], at, others[0], 1)]).copy() for at, t in enumerate(ids[:10], 10)]
    return np.concatenate(found)


def states(rung: Any, case: Case, device: str = "cpu", rounds: bool = False) -> Floats:
    """Hidden states [10, hidden]: of a token alone, and in one batch of all of a sequence and the last two of another,
    beside logits."""
    head_dim = int(case.options["head_dim"])
    ids = np.random.default_rng(8).integers(0, VOCABULARY, 12).tolist()
    alone = TinyCache(head_dim, case.format, device)
    first, second = (TinyCache(head_dim, case.format, device, alone) for _ in range(2))
    state = rung.prepare(weights(case, device, rounds), alone, threads=2)
    found = np.zeros((10, HIDDEN), np.float32)
    rung.apply(state, [SequenceRows(ids[:1], 0, alone, 0, states=found[:1])])
    batch = [SequenceRows(ids[:7], 0, first, 0, states=found[1:8]), SequenceRows(ids, 0, second, 1, states=found[8:])]
    rung.apply(state, batch)
    return found


def _in_parts(rung: Any, case: Case, device: str, exact: bool) -> str:
    """Return why the layers in two parts do not give what they give together: tokens of two sequences at once, then of
    each one more, one of them with an adapter."""
    ids, head_dim = np.random.default_rng(9).integers(0, VOCABULARY, 12).tolist(), int(case.options["head_dim"])
    bound = weights(case, device)
    bound = replace(bound, look_up=_Embedding(bound.look_up.rows(range(VOCABULARY)), None))
    adapter, _ = adapters(bound)
    one = TinyCache(head_dim, case.format, device)
    caches = [TinyCache(head_dim, case.format, device, one) for _ in range(4)]
    whole = rung.prepare(bound, one, threads=2)
    first, last = (rung.prepare(bound.part(at, at + 1), one, threads=2) for at in range(2))
    got, want = [], []
    for start, end in ((0, 9), (9, 10)):
        tokens, each = ids[start:end], (None, adapter)
        apart, together = (
            [SequenceRows(tokens, start, cache, 1, a) for cache, a in zip(some, each, strict=True)]
            for some in (caches[:2], caches[2:])
        )
        hidden = rung.through(first, apart, bound.look_up.rows(tokens * 2)).copy()
        got.append(rung.finish(last, apart, hidden).copy())
        want.append(rung.apply(whole, together).copy())
    reason = _differ(np.concatenate(got), np.concatenate(want), case.format, exact)
    return f"layers in two parts: {reason}" if reason else ""


#: Settings by which a rung chooses tokens by itself.
_CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
)


def _chosen(rung: Any, case: Case, device: str) -> str:
    """Return why tokens that a rung chooses by itself are not those that its logits choose."""
    one = TinyCache(int(case.options["head_dim"]), case.format, device)
    whole = TinyCache(int(case.options["head_dim"]), case.format, device, one)
    state = rung.prepare(weights(case, device), one, threads=2)
    count = min(rung.look_ahead(state), 12)
    sample = LADDERS["sample"].rung("numpy.sample").load()
    for options in _CHOICES if count else ():
        rows = [Row(**options, random=(2 * number + 1 << 64) // (2 * count)) for number in range(count)]
        tokens = [5, *rung.choose(state, SequenceRows([5], 0, one), rows)]
        if len(tokens) <= count // 2 or min(tokens) < 0 or max(tokens) >= VOCABULARY:
            return f"of {count} tokens {tokens[1:]} were chosen"
        alone = [
            rung.apply(state, [SequenceRows([token], at, whole, 1)]).copy() for at, token in enumerate(tokens[:-1])
        ]
        logits = np.concatenate(alone)  # a prompt's activations may be rounded otherwise
        if options:
            drawn = [each.token for each in sample.apply(None, logits, rows[: len(logits)])]
            wrong = sum(map(int.__ne__, drawn, tokens[1:]))
            # the order of sums may have moved one over the end of a token, and keys to other codes of a cache in q8_0
            if wrong > (len(drawn) // 4 if case.format == "q8_0" else 1):
                return f"{wrong} of {len(drawn)} tokens were drawn that its logits do not draw"
            continue
        missed = (logits.max(axis=1) - logits[np.arange(len(logits)), tokens[1:]]) / logits.std(axis=1)
        if missed.max() >= 0.02:
            return f"a token was chosen {missed.max():.2g} deviations below the likeliest"
    return ""


def check(rung: Rung, case: Case, device: str) -> str:
    """Every token of a tiny decoder; both compute with the same int8 products, so only the order of sums differs.
    Products of ``webgpu.int8`` in layouts of all kinds are compared by themselves, and layers in parts where the case
    is a part of a model.

    ``numpy.step`` is what others are compared with, where torch computes on a GPU ``ref``; it is compared with itself,
    a prompt with one token at a time.
    """
    rounds = rung.name == "webgpu.int8"
    if rounds and (reason := wrong_products(device)):
        return reason
    right = LADDERS["decode_step"].rung("numpy.step" if tensor_device(device) == "cpu" else "ref").load()
    got = steps(rung.load(), case, device)
    want = steps(right, case, device, rounds)
    if rung.name == "numpy.step":
        want = np.concatenate([want[12:24], want[:12], want[3:5], want[8:12], want[30:]])
    exact = is_webgpu(device) and not rounds
    if reason := _differ(got, want, case.format, exact):
        return reason
    got, want = states(rung.load(), case, device), states(right, case, device, rounds)
    reason = _differ(got, want, case.format, exact)
    if reason:
        return f"hidden states: {reason}"
    if case.options.get("part", False) and (reason := _in_parts(rung.load(), case, device, exact)):
        return reason
    return _chosen(rung.load(), case, device)


def wrong_products(device: str) -> str:
    """Compare products of ``kernels.webgpu.int8`` in layouts of all kinds, and the units that they make, with those of
    NumPy on the same codes; say what is wrong, empty where nothing is."""
    from rung.kernels.webgpu.int8.checking import wrong, wrong_near

    for format in LAYOUTS:
        for rows in (1, 4, 16, 64) if format == LAYOUTS[0] else (1,):
            if reason := wrong(device, weights_of(format, 96, columns_of(format)), rows):
                return f"products of {rows} rows in {format}: {reason}"
    return wrong_near(device)


def _differ(got: Floats, want: Floats, cache: str, exact: bool) -> str:
    """Return how rows differ. A value that is rounded to another int8 moves single values by some hundredths of a row's
    deviation, and all of them by less than a thousandth. Of a cache in blocks queries are quantized, too, and a key
    that differs in its last digit gets another code. With ``exact`` activations only sums are rounded, and what an f16
    cache has."""
    single, all_of_them = _BLOCKS.get(cache, (0.1, 0.005))
    if exact:
        single, all_of_them = {"f32": (1e-4, 1e-5), "f16": (0.01, 0.001), "q8_0": (0.05, 0.005)}[cache]
    reason = compare(got, want, want.std(axis=1, keepdims=True), single)
    return reason or compare_scale(got, want, all_of_them)
