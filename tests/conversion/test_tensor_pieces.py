"""Tensors that are encoded in pieces, in any order, become the file that one process writes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rung.conversion import tensor_pieces
from rung.conversion.quantize import quantizing
from rung.conversion.writing import write
from rung.models import open_card

_SOURCE = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-f16.gguf"


def _files(path):
    return {each.name: each.read_bytes() for each in path.iterdir()} if path.is_dir() else path.read_bytes()


@pytest.mark.parametrize(("kind", "fmt"), [("gguf", "q4_0"), ("gguf", "q8_0"), ("rung", "nf4"), ("rung", "int8")])
def test_pieces_in_any_order_give_the_bytes_of_the_whole(tmp_path, monkeypatch, kind, fmt):
    monkeypatch.setattr(tensor_pieces, "PIECE", 5000)
    job = quantizing(open_card(_SOURCE), kind, fmt, {})
    chance, most = random.Random(1), []

    def elsewhere(source):
        waiting = []
        for piece in source:
            waiting.append(piece)
            if len(waiting) > 9:
                found = waiting.pop(chance.randrange(len(waiting)))
                yield found, tensor_pieces.encode(found, frozenset(), 1)
        most.append(len(waiting))
        for piece in reversed(waiting):
            yield piece, tensor_pieces.encode(piece, frozenset(), 1)

    whole, apart = tmp_path / "whole", tmp_path / "apart"
    one = write(job, whole, 1)
    several = write(job, apart, 1, elsewhere=elsewhere)
    assert most == [9]
    assert _files(apart) == _files(whole)
    for a, b in zip(one, several, strict=True):
        assert (a.cost is None) == (b.cost is None)
        if a.cost is not None and b.cost is not None:
            assert b.cost.db == pytest.approx(a.cost.db)
            assert (b.cost.worst_row, b.cost.worst_db) == (a.cost.worst_row, pytest.approx(a.cost.worst_db))
