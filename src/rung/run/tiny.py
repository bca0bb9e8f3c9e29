"""A tiny decoder with seeded weights, for the self-check of rungs that compute whole tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.core.types import Case
from rung.formats import Encoded
from rung.models.card import Decoder, Layer, Rope
from rung.ops import LADDERS
from rung.ops.decode_step.network import Network

VOCABULARY, HIDDEN, WIDE, HEADS, KV_HEADS, CONTEXT = 83, 64, 96, 4, 2, 24
_CACHE = {"f32": torch.float32, "f16": torch.float16}


class _Linear:
    """A weight on one rung of linear."""

    def __init__(self, encoded: Encoded, rung: str) -> None:
        self._rung = LADDERS["linear"].rung(rung).load()
        self.state = self._rung.prepare(encoded, dtype="f32", threads=2)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._rung.apply(self.state, x)
        return y


class _Parts:
    """Seeded weights by role; see ``rung.ops.decode_step.parts.Parts``."""

    def __init__(self, head_dim: int, rung: str) -> None:
        wide, narrow = HEADS * head_dim, KV_HEADS * head_dim
        self._rung = rung
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

    def _values(self, role: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([ord(letter) for letter in role]).standard_normal(shape, dtype=np.float32)

    def _encoded(self, role: str) -> Encoded:
        shape = self._shapes[role.rpartition(".")[2]]
        return formats.encode(self._values(role, shape) / np.sqrt(shape[1]), formats.get("q8_0"), role)

    def holds(self, role: str) -> bool:
        return role in self._shapes or role.rpartition(".")[2] in (*self._shapes, "attn_norm", "mlp_norm")

    def linear(self, role: str) -> _Linear:
        return _Linear(self._encoded(role), self._rung)

    def look_up(self) -> Callable[[Tensor], Tensor]:
        rows = torch.from_numpy(formats.decode(self._encoded("embed")))
        return lambda ids: rows[ids]

    def vector(self, role: str) -> Tensor:
        return torch.from_numpy(1 + self._values(role, (HIDDEN,)) / 4)

    def attention(self, layer: int) -> object:
        return LADDERS["attention"].rung("ref").load().apply

    def device(self, layer: int) -> torch.device:
        return torch.device("cpu")


class TinyCache:
    """Keys and values of two layers; see ``rung.ops.decode_step.parts.Cache``."""

    def __init__(self, head_dim: int, dtype: str) -> None:
        size = (KV_HEADS, CONTEXT, head_dim)
        self.keys = [torch.zeros(size, dtype=_CACHE[dtype]) for _ in range(2)]
        self.values = [torch.zeros(size, dtype=_CACHE[dtype]) for _ in range(2)]

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """See there."""
        end = start + keys.shape[0]
        self.keys[layer][:, start:end].copy_(keys.transpose(0, 1))
        self.values[layer][:, start:end].copy_(values.transpose(0, 1))

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """See there."""
        return self.keys[layer][:, :count].transpose(0, 1), self.values[layer][:, :count].transpose(0, 1)


def network(case: Case, rung: str) -> Network:
    """Two layers, one with a window, with the head size of the case, on one rung of linear."""
    head_dim = int(case.options["head_dim"])
    rope = Rope(head_dim, False, tuple(1e4 ** (-2 * i / head_dim) for i in range(head_dim // 2)))
    shape = Decoder(
        "tiny", (Layer(None, 0), Layer(8, 0)), HIDDEN, HEADS, KV_HEADS, head_dim, WIDE, VOCABULARY, CONTEXT,
        1e-6, 0.0, "silu", head_dim**-0.5, (rope,), attention_softcap=20.0, logit_softcap=30.0,
    )  # fmt: skip
    return Network(shape, _Parts(head_dim, rung), CONTEXT)  # type: ignore[arg-type]


def steps(rung: object, case: Case) -> Tensor:
    """Logits [24, vocabulary] of twelve tokens on a rung of decode_step: one after the other, then all at once."""
    head_dim = int(case.options["head_dim"])
    cache, ids = TinyCache(head_dim, case.format), np.random.default_rng(7).integers(0, VOCABULARY, 12)
    made = network(case, "numba.row")
    state = rung.prepare(made, cache, threads=2)  # type: ignore[attr-defined]
    singles = [rung.apply(state, int(token), position) for position, token in enumerate(ids)]  # type: ignore[attr-defined]
    whole = made.logits(made.layers(torch.from_numpy(ids), TinyCache(head_dim, case.format), 0))
    return torch.cat([torch.stack(singles), whole])
