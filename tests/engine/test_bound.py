"""Parts of a decoder are read and packed beside the import of torch, by a thread that ends with them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rung.core.errors import BadFile
from rung.engine.load import load
from rung.models.reader import Reader

MODEL = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf"
WITHOUT_TORCH = """
import sys
from rung.engine.bound import BoundParts
from rung.models.lookup import find_card
from rung.engine.planning import make_plan
from rung.models.reader import Reader
from rung.run.journal import Journal
card = find_card(sys.argv[1])
plan, devices = make_plan(card)
seen = []
with Reader(card) as reader, BoundParts(card, plan, devices, reader, Journal(), lambda *at: seen.append(at)) as parts:
    packings = {held.result().rungs[0].packing for held in parts._held.values()}
assert packings != {"r16"} or "torch" not in sys.modules
assert seen[-1][0] == seen[-1][1] > 0
print(*packings)
"""


def test_weights_are_packed_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(MODEL)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() != "r16":
        pytest.skip(f"this processor holds weights as {done.stdout.strip()}, which needs torch")


def test_what_fails_while_reading_is_raised_and_the_thread_ends(monkeypatch):
    plain = Reader.read

    def read(self, tensor):
        if tensor.role.endswith(".up"):
            raise BadFile("the file has become shorter")
        return plain(self, tensor)

    monkeypatch.setattr(Reader, "read", read)
    with pytest.raises(BadFile, match="has become shorter"):
        load(str(MODEL))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rung-reader")]
