"""Plug-ins: little distributions on the path, found through their entry points; bad ones are named and left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD_FORMAT = """
from rung.core.types import Format
from rung.formats.table import AddedFormat
GOOD = AddedFormat(Format("toy8", "toy", 8.5, 32, 34, "rows", 40.0, True, title="a toy"), "toy_codec:GOOD")
"""
CODEC = """
import numpy as np
from rung.core.types import Format
from rung.formats.codec import Codec

class Toy(Codec):
    # a scale in float16 and 32 signed bytes
    def __init__(self, name, steps=127, scale="<f2"):
        self.name, self.steps, self.scale = name, steps, scale

    def encode(self, source):
        flat = source.read(0, source.size).reshape(-1, 32)
        scales = (np.abs(flat).max(1, keepdims=True) / self.steps).astype(self.scale)
        codes = np.round(flat / np.maximum(scales.astype(np.float32), 1e-20)).clip(-127, 127).astype(np.int8)
        data = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1)
        return {"data": data.reshape(source.shape[0], -1)}

    def decode(self, encoded, first, out):
        blocks = encoded.parts["data"].reshape(-1, 32 + np.dtype(self.scale).itemsize)
        scales = blocks[:, :-32].copy().view(self.scale).astype(np.float32)
        values = (blocks[:, -32:].copy().view(np.int8) * scales).reshape(-1)
        out[:] = values[first : first + len(out)]

GOOD = Toy("toy8")
COARSE = Toy("coarse", steps=3)
WIDE = Toy("wide", scale="<f4")
"""


def install(folder: Path, name: str, entries: str, **modules: str) -> None:
    """Write a distribution as pip leaves it: modules, and a folder with metadata and entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the folder on its path."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "RUNG_CACHE": str(folder / "cache")}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_a_format_of_a_plugin_is_listed_encodes_and_decodes(tmp_path: Path) -> None:
    install(tmp_path, "toy-format", "[rung.formats]\ntoy8 = toy:GOOD\n", toy=GOOD_FORMAT, toy_codec=CODEC)
    listed = run(tmp_path, "-m", "rung", "formats", "--json")
    assert listed.stderr == ""
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["toy8"]["bits"] == 8.5
    assert "q8_0" in rows
    script = """
import numpy as np
from rung import formats
weights = np.random.default_rng(1).standard_normal((6, 96), dtype=np.float32)
stored = formats.encode(weights, formats.get("TOY8"))
assert stored.nbytes == formats.get("toy8").bytes((6, 96)) == 6 * 3 * 34
blocks = weights.reshape(-1, 32)
scales = (np.abs(blocks).max(1) / 127).astype(np.float16).astype(np.float32)[:, None]
want = (np.round(blocks / scales) * scales).reshape(6, 96)
assert np.abs(formats.decode(stored) - want).max() < 1e-6
assert formats.decode(formats.convert(stored, formats.get("q8_0"))).shape == (6, 96)
print(formats.get("toy8").title)
"""
    done = run(tmp_path, "-c", script)
    assert (done.stdout, done.stderr) == ("a toy\n", "")


BAD_FORMATS = {
    "raises": ("raise RuntimeError('no such library')", "loading it raised RuntimeError: no such library"),
    "exits": ("raise SystemExit(3)", "loading it raised SystemExit: 3"),
    "number": ("F = 7", "it names a int"),
    "taken": (
        "F = AddedFormat(Format('q4_k', 'x', 4.5, 256, 144, 'rows', 1, True), 'c:C')",
        "q4_k is registered already",
    ),
    "size": ("F = AddedFormat(Format('tiny', 'x', 1.0, 32, 34, 'rows', 1, True), 'c:C')", "tiny says 1.0 bits"),
    "family": ("F = AddedFormat(Format('mine', 'floats', 8.5, 32, 34, 'rows', 1, True), 'c:C')", "the family 'floats'"),
    "layout": ("F = AddedFormat(Format('flat', 'x', 8.5, 32, 34, 'flat', 1, True), 'c:C')", "the layout 'flat'"),
    "codec": ("F = AddedFormat(Format('none', 'x', 8.5, 32, 34, 'rows', 1, True), 'c')", "'c' does not name a codec"),
}


def test_bad_formats_are_named_once_and_the_others_stay(tmp_path: Path) -> None:
    head = "from rung.core.types import Format\nfrom rung.formats.table import AddedFormat\n"
    for name, (source, _) in BAD_FORMATS.items():
        install(tmp_path, f"bad-{name}", f"[rung.formats]\n{name} = bad_{name}:F\n", **{f"bad_{name}": head + source})
    install(tmp_path, "a-toy", "[rung.formats]\ntoy8 = toy:GOOD\n", toy=GOOD_FORMAT, toy_codec=CODEC)
    install(tmp_path, "b-toy", "[rung.formats]\ntoy8 = toy:GOOD\n")
    script = "from rung.formats import FORMATS; print(len(list(FORMATS)), 'toy8' in FORMATS, FORMATS['q4_k'].family)"
    bare = run(tmp_path / "none", "-c", script).stdout.split()
    done = run(tmp_path, "-c", script)
    assert done.stdout.split() == [str(int(bare[0]) + 1), "True", "kquants"]
    lines = done.stderr.splitlines()
    assert len(lines) == len(BAD_FORMATS) + 1, done.stderr
    for name, (_, reason) in BAD_FORMATS.items():
        (line,) = [line for line in lines if f"bad-{name} 1.0: " in line]
        assert line.startswith(f"rung leaves out {name} (rung.formats) of ")
        assert reason in line
    assert [line for line in lines if "b-toy 1.0: toy8 is registered already" in line]


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        ("COARSE", "coarse promises 40 dB, and reaches "),
        ("WIDE", "and its codec stores"),
        ("GONE", "its codec raised AttributeError"),
        ("np", "its codec is a module"),
    ],
)
def test_a_codec_that_is_not_what_its_format_says_is_left_out(tmp_path: Path, codec: str, reason: str) -> None:
    source = GOOD_FORMAT.replace("toy8", "coarse").replace("toy_codec:GOOD", f"toy_codec:{codec}")
    install(tmp_path, "toy-format", "[rung.formats]\ntoy8 = toy:GOOD\n", toy=source, toy_codec=CODEC)
    script = """
import numpy as np
from rung import formats
for _ in range(2):
    try:
        formats.encode(np.ones((2, 64)), formats.get("coarse"))
    except formats.table.UnknownFormat as error:
        print(error.code, len(error.facts))
print("coarse" in formats.FORMATS, formats.encode(np.ones((2, 64)), formats.get("q8_0")).nbytes)
"""
    done = run(tmp_path, "-c", script)
    assert done.stdout.splitlines() == ["format-unknown 1", "format-unknown 0", "False 136"]
    (line,) = done.stderr.splitlines()
    assert reason in line


def test_nobody_looks_for_plugins_before_a_registry_is_asked(tmp_path: Path) -> None:
    entries = "[rung.formats]\na = loud:A\n[rung.rungs]\nb = loud:A\n[rung.architectures]\nc = loud:A\n"
    install(tmp_path, "loud", entries, loud="import sys\nprint('LOADED', file=sys.stderr)\nA = 1\n")
    assert run(tmp_path, "-m", "rung", "--help").stderr == ""
    assert run(tmp_path, "-c", "import rung, rung.formats; rung.formats.get('q4_k')").stderr == ""
    assert "LOADED" in run(tmp_path, "-m", "rung", "formats").stderr


LLAMA = """
from dataclasses import replace
from rung.models.architectures import llama
def broken(config): raise KeyError("hidden")
GOOD = replace(llama.ARCHITECTURE, model_type="toyllama", gguf="toyllama")
TAKEN = replace(llama.ARCHITECTURE, gguf="")
FILE = replace(llama.ARCHITECTURE, model_type="other")
RAISES = replace(llama.ARCHITECTURE, model_type="raises", gguf="", from_config=broken)
LIES = replace(llama.ARCHITECTURE, model_type="lies", gguf="", from_config=lambda config: 7)
"""
CONFIG = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}


def _check(tmp_path: Path, kind: str) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / f"model-{kind}"
    folder.mkdir()
    config = CONFIG | {"model_type": kind, "vocab_size": 1000, "num_key_value_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return run(tmp_path, "-m", "rung", "check", str(folder), "--device", "p2200", "--json")


def test_an_architecture_of_a_plugin_is_read_like_the_one_it_copies(tmp_path: Path) -> None:
    install(tmp_path, "toy-models", "[rung.architectures]\ntoyllama = models:GOOD\n", models=LLAMA)
    answers = [json.loads(_check(tmp_path, kind).stdout) for kind in ("toyllama", "llama")]
    memories = [[choice["memory"] for choice in answer["choices"]] for answer in answers]
    assert memories[0]
    assert memories[0] == memories[1]


def test_architectures_that_raise_lie_or_are_there_already_are_named(tmp_path: Path) -> None:
    entries = "[rung.architectures]\n" + "".join(
        f"{n.lower()} = models:{n}\n" for n in ("TAKEN", "FILE", "RAISES", "LIES")
    )
    install(tmp_path, "toy-models", entries, models=LLAMA)
    for kind, reason in (
        ("raises", "its from_config raised KeyError: 'hidden'"),
        ("lies", "its from_config returned a int, not a Decoder"),
    ):
        done = _check(tmp_path, kind)
        assert json.loads(done.stdout)["code"] == "architecture-unknown"
        assert f"rung leaves out {kind} (rung.architectures) of toy-models 1.0: {reason}." in done.stderr
        assert (
            "rung leaves out taken (rung.architectures) of toy-models 1.0: llama is registered already." in done.stderr
        )
    script = (
        "from rung.models.architectures import GGUF; print({'other', 'raises'} & {*GGUF}, GGUF['llama'].model_type)"
    )
    done = run(tmp_path, "-c", script)
    assert done.stdout.strip() == "set() llama"
    assert done.stderr.count("rung leaves out file") == 1


RUNGS = """
from rung.core.types import Rung
def mine(case, device): raise OSError("no driver")
GOOD = Rung("linear", "toy.product", "toy_kernels:GOOD")
LIES = Rung("linear", "toy.wrong", "toy_kernels:WRONG")
LATE = Rung("linear", "toy.late", "toy_kernels:LATE")
CHECK = [Rung("linear", "toy.check", "toy_kernels:GOOD", check="toy_rungs:mine")]
OP = Rung("conjuring", "toy.op", "toy_kernels:GOOD")
TAKEN = Rung("linear", "ref", "toy_kernels:GOOD")
PACKING = Rung("linear", "toy.packed", "toy_kernels:GOOD", packing="r16")
"""
KERNELS = """
import numpy as np, torch
from rung import formats
from rung.kernels.gpu.stored import prepare
class Product:
    factor = 1.0
    def prepare(self, encoded, *, dtype, threads): return prepare(encoded, dtype, threads)
    def apply(self, state, x): return self.factor * (x @ torch.from_numpy(formats.decode(state.encoded)).T)
    def restore(self, state): return state.encoded
class Late(Product):
    def apply(self, state, x):
        if state.shape[0] == 40: raise ValueError("40 rows")
        return super().apply(state, x)
GOOD, WRONG, LATE = Product(), Product(), Late()
WRONG.factor = 1.1
"""
BIND = """
import sys, numpy as np, torch
from rung import formats
import rung
from rung.run.binding import Binder
from rung.run.journal import Journal
(device,) = [d for d in rung.devices() if d.kind == "cpu"]
weights = np.random.default_rng(1).standard_normal((40, 256), dtype=np.float32)
bound = Binder(device, Journal(), packed=False).linear(formats.encode(weights, formats.get("q8_0")))
first = bound.rungs[0].name
x = torch.ones(1, 256)
want = x @ torch.from_numpy(formats.decode(bound.encoded())).T
print(float((bound(x) - want).abs().max()) < 1e-3, first, bound.rungs[0].name)
"""


def test_rungs_of_the_wrong_kind_are_named_and_the_good_one_is_on_its_ladder(tmp_path: Path) -> None:
    names = ("GOOD", "CHECK", "OP", "TAKEN", "PACKING")
    entries = "[rung.rungs]\n" + "".join(f"{name.lower()} = toy_rungs:{name}\n" for name in names)
    install(tmp_path, "toy-rungs", entries, toy_rungs=RUNGS, toy_kernels=KERNELS)
    done = run(tmp_path, "-m", "rung", "ladder", "linear", "q4_k")
    assert done.stdout.count("toy.product") == done.stdout.count("toy.check") == 2
    for reason in (
        "op (rung.rungs) of toy-rungs 1.0: 'conjuring' is no op",
        "taken (rung.rungs) of toy-rungs 1.0: linear/ref is registered already",
        "packing (rung.rungs) of toy-rungs 1.0: toy.packed wants the packing 'r16'",
        "linear toy.check (rung.rungs) of toy-rungs 1.0: its check raised OSError: no driver",
    ):
        assert done.stderr.count(f"rung leaves out {reason}") == 1, done.stderr
    assert len(done.stderr.splitlines()) == 4


@pytest.mark.parametrize(
    ("entry", "first", "then", "reason"),
    [
        ("GOOD", "toy.product", "toy.product", ""),
        ("LIES", "torch.decode", "torch.decode", "self-check"),
        pytest.param("LATE", "toy.late", "torch.decode", "it raised ValueError: 40 rows", marks=pytest.mark.slow),
    ],
)
def test_a_rung_of_a_plugin_computes_or_is_stepped_down_from(
    tmp_path: Path, entry: str, first: str, then: str, reason: str
) -> None:
    install(tmp_path, "toy-rungs", f"[rung.rungs]\ntoy = toy_rungs:{entry}\n", toy_rungs=RUNGS, toy_kernels=KERNELS)
    done = run(tmp_path, "-c", BIND)
    assert done.stdout.split() == ["True", first, then], done.stderr
    named = [line for line in done.stderr.splitlines() if line.startswith("rung leaves out")]
    assert len(named) == bool(reason), done.stderr
    assert reason in "".join(named)
