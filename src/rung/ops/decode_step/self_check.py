"""Check a rung of decode_step: every token of a tiny decoder with seeded weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rung import formats
from rung.core.types import Case, Rung
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.models.adapters.adapter import LowRank
from rung.models.card import Decoder, Layer, Rope
from rung.ops import LADDERS
from rung.ops.decode_step import numpy_step
from rung.ops.decode_step.low_rank import Adapted
from rung.ops.decode_step.parts import Rows
from rung.ops.decode_step.weights import Weights
from rung.ops.proof import compare

if TYPE_CHECKING:
    from torch import Tensor

#: Rows that a rung of linear for few rows takes.
FEW = 8
_NUMPY = {"f32": np.float32, "f16": np.float16}
VOCABULARY, HIDDEN, WIDE, HEADS, KV_HEADS, CONTEXT = 83, 64, 96, 4, 2, 24


class _Linear:
    """A weight on one rung of linear for few rows; a stored one on ``numpy.decode`` for many."""

    def __init__(self, encoded: Encoded, rung: str) -> None:
        few = LADDERS["linear"].rung(rung)
        self._few, self.without_torch = few.load(), few.without_torch
        self._many = LADDERS["linear"].rung("numpy.decode").load() if rung == "numba.stored" else self._few
        self.state = self._few.prepare(encoded, dtype="f32", threads=2)
        self._encoded = encoded

    def encoded(self) -> Encoded:
        return self._encoded

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        alone = not self.without_torch or len(x) <= FEW
        y: Tensor = self._few.apply(self.state, x) if alone else torch.from_numpy(self.multiply(x.numpy()))
        return y

    def multiply(self, x: Floats) -> Floats:
        if not self.without_torch:
            import torch

            return np.asarray(self(torch.from_numpy(x)))
        y: Floats = (self._few if len(x) <= FEW else self._many).multiply(self.state, x)
        return y


class _Embedding:
    """Rows of a matrix."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows

    def __call__(self, ids: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self._rows)[ids]

    def rows(self, ids: Sequence[int]) -> Floats:
        return self._rows[list(ids)]


class _Attention:
    """Attention in NumPy, for arrays and for tensors on a CPU."""

    def __init__(self) -> None:
        self._rung = LADDERS["attention"].rung("numpy.sdpa").load()

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        import torch

        return torch.from_numpy(self.attend(q.numpy(), keys.numpy(), values.numpy(), **options))

    def attend(self, q: Floats, keys: Floats, values: Floats, **options: Any) -> Floats:
        made: Floats = self._rung.attend(q, keys, values, **options)
        return made


class _Parts:
    """Seeded weights by role; see ``rung.ops.decode_step.parts.Parts``."""

    def __init__(self, head_dim: int, rungs: Sequence[str], adapters: bool) -> None:
        self._adapters = adapters
        wide, narrow = HEADS * head_dim, KV_HEADS * head_dim
        self._rungs, self._bound = rungs, 0
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
        return role in self._shapes or role.rpartition(".")[2] in (*self._shapes, "attn_norm", "mlp_norm")

    def linear(self, role: str) -> _Linear | Adapted:
        rung = self._rungs[self._bound % len(self._rungs)]
        self._bound += 1
        format = "bf16" if rung == "numba.stored" else "q8_0"
        if not formats.get(format).divides(self._shapes[role.rpartition(".")[2]][1]):  # heads of an odd size
            format, rung = "f32", "numpy.decode"
        linear = _Linear(self._encoded(role, format), rung)
        return Adapted(linear, [self._change(role)], "cpu", 2) if self._adapters else linear

    def _change(self, role: str) -> LowRank:
        """A LoRA in float32, of rank 3, in the first layer, and a DoRA of float16 in the second; none for k."""
        rows, columns = self._shapes[role.rpartition(".")[2]]
        down, up = self._values(f"{role}.down", (3, columns)), self._values(f"{role}.up", (rows, 3))
        scale = 0.0 if role.endswith(".k") else 1.0 / np.sqrt(columns)
        if not role.startswith("layers.1"):
            return LowRank(down, up, scale)
        down, up = (part.astype(np.float16).astype(np.float32) for part in (down, up))
        return LowRank(down, up, float(scale > 0) / 32, 1 + np.abs(self._values(f"{role}.magnitude", (rows,))))

    def look_up(self) -> _Embedding:
        return _Embedding(formats.decode(self._encoded("embed")))

    def vector(self, role: str) -> Floats:
        return 1 + self._values(role, (HIDDEN,)) / np.float32(4)

    def attention(self, layer: int) -> object:
        return _Attention()

    def device(self, layer: int) -> str:
        return "cpu"


class TinyCache:
    """Keys and values of two layers; see ``rung.ops.decode_step.parts.Cache``."""

    def __init__(self, head_dim: int, dtype: str) -> None:
        self.context, self._dtype = CONTEXT, dtype
        size = (KV_HEADS, CONTEXT, head_dim)
        self.keys, self.values = ([np.zeros(size, _NUMPY[dtype]) for _ in range(2)] for _ in range(2))

    def rows(self, layer: int) -> Rows:
        """See there."""
        keys, values = self.keys[layer], self.values[layer]
        return Rows(keys.ctypes.data, values.ctypes.data, keys.strides[0], keys.strides[1], self._dtype)

    def arrays(self, layer: int, count: int) -> tuple[Floats, Floats]:
        """See there."""
        return self.keys[layer][:, :count].transpose(1, 0, 2), self.values[layer][:, :count].transpose(1, 0, 2)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """See there."""
        end = start + keys.shape[0]
        for held, new in zip(self.arrays(layer, end), (keys, values), strict=True):
            held[start:] = new.numpy()

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """See there."""
        import torch

        keys, values = map(torch.from_numpy, self.arrays(layer, count))
        return keys, values


def weights(case: Case) -> Weights:
    """Two layers, one with a window, with the head size of the case, on its rungs of linear, in turn."""
    head_dim = int(case.options["head_dim"])
    rope = Rope(head_dim, False, tuple(1e4 ** (-2 * i / head_dim) for i in range(head_dim // 2)))
    shape = Decoder(
        "tiny", (Layer(None, 0), Layer(8, 0)), HIDDEN, HEADS, KV_HEADS, head_dim, WIDE, VOCABULARY, CONTEXT,
        1e-6, 0.0, "silu", head_dim**-0.5, (rope,), attention_softcap=20.0, logit_softcap=30.0,
    )  # fmt: skip
    parts = _Parts(head_dim, case.options["linears"], bool(case.options.get("adapters", False)))
    return Weights.bind(shape, parts, CONTEXT)  # type: ignore[arg-type]


def steps(rung: Any, case: Case) -> Floats:
    """Logits [24, vocabulary] of twelve tokens on a rung of decode_step: one after the other, then all at once."""
    head_dim = int(case.options["head_dim"])
    cache, ids = TinyCache(head_dim, case.format), np.random.default_rng(7).integers(0, VOCABULARY, 12)
    state = rung.prepare(weights(case), cache, threads=2)
    singles = [rung.apply(state, int(token), position).copy() for position, token in enumerate(ids)]
    reader = rung.reader(state)
    whole = reader.logits(reader.read(ids.tolist(), TinyCache(head_dim, case.format), 0))
    return np.concatenate([singles, whole])


def check(rung: Rung, case: Case, place: str) -> str:
    """Every token of a tiny decoder; both compute with the same int8 products, so only the order of sums differs.

    ``numpy.step`` is what others are compared with; it is compared with itself, a prompt with one token at a time.
    """
    got = steps(rung.load(), case)
    want = steps(numpy_step.RUNG, case)
    if rung.name == "numpy.step":
        want = np.roll(want, len(want) // 2, axis=0)
    return compare(got, want, want.std(axis=1, keepdims=True), 0.1)
