"""The speeds that ``rung compare`` shows, with a clock that a fake model moves."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rung.cli import comparing
from rung.engine import load


class Answer:
    """No text, at so many tokens a second."""

    def __init__(self, rate: float) -> None:
        self.result = {"decode_tokens_per_second": rate}

    def __iter__(self) -> Iterator[str]:
        return iter(())


class Slow:
    """A model whose first call of each kind takes 100 seconds, as imports and compilers do, and the others one."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.calls = clock, {"read": 0, "write": 0}
        self.tokenizer = SimpleNamespace(encode=lambda text, special, bos: list(range(1, 21)))
        self.plan = SimpleNamespace(placements=())
        self.card, self.devices = object(), (None,)

    def _spend(self, kind: str) -> float:
        self.calls[kind] += 1
        seconds = 1.0 if self.calls[kind] > 1 else 100.0
        self.clock[0] += seconds
        return seconds

    def logits(self, ids: list[int]) -> torch.Tensor:
        self._spend("read")
        return torch.from_numpy(np.random.default_rng(0).normal(size=(len(ids), 32)).astype(np.float32))

    def generate(self, text: str, **options: Any) -> Any:
        return Answer(32 / self._spend("write"))


def test_no_row_counts_what_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(comparing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(comparing.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(load, "load", lambda *arguments, **options: Slow(clock))
    rows = comparing.language("model", ["q8_0"], "stored", None, 11, {}, None)
    assert [row["format"] for row in rows] == ["stored", "q8_0"]
    assert [row["tokens/s"] for row in rows] == [32.0, 32.0]
    assert [row["prompt/s"] for row in rows] == pytest.approx([10.5, 10.5])  # 21 tokens in two windows of a second
