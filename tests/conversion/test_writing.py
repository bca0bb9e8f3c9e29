"""Results that are written: after kill -9 at any moment, on a full disk, and what they say that was lost."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from rung import formats
from rung.cli.app import main
from rung.conversion import resumable_writer, writing
from rung.conversion.quantize import kind_of, parse_keep, quantizing
from rung.conversion.writing import order_of_heads, write
from rung.core.errors import CannotEncode, DiskFull, UnknownFormat, UsageError
from rung.models import open_card
from rung.models.reader import Reader
from rung.run.self_check import encoders
from tests.tiny import tiny_checkpoint

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "model"
    tiny_checkpoint(folder, "llama", "bfloat16", head_dim=16)
    return folder


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name if path.is_dir() else "": file.read_bytes() for file in files}


def killed(job, target: Path, moment: int) -> int:
    """Does the job in a child that is killed at its ``moment``-th write, in the middle of it; its exit status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    writes = iter(range(10**6))

    def dying(whole):
        def written(handle, data, *position):
            if next(writes) == moment:
                whole(handle, bytes(data)[: len(data) // 2], *position)
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(handle, data, *position)

        return written

    resumable_writer.os.pwrite, resumable_writer.os.write = dying(os.pwrite), dying(os.write)
    write(job, target, 1)
    os._exit(0)


@pytest.mark.parametrize("kind", ["gguf", "rung"])
def test_a_killed_run_goes_on_and_the_bytes_are_the_same(kind, source, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_writer, "_BYTES_UNSAFE", 8192)
    job = quantizing(open_card(source), kind, "q8_0", {})
    write(job, tmp_path / "whole", 1)
    target, notes = tmp_path / "target", []
    for moment in (0, 3, 5, 6, 4):  # one after the other, each going on where the last was killed
        assert killed(job, target, moment) == signal.SIGKILL
        assert not target.exists()
    write(job, target, 1, on_note=notes.append)
    assert contents(target) == contents(tmp_path / "whole")
    assert notes
    assert notes[0].startswith("going on where an earlier run stopped")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", "whole"]


@pytest.mark.parametrize("moment", random.Random(3).sample(range(1, 30), 4))
def test_any_moment(moment, source, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_writer, "_BYTES_UNSAFE", 8192)
    job = quantizing(open_card(source), "rung", "nf4", {})
    write(job, tmp_path / "whole", 1)
    assert killed(job, tmp_path / "target", moment) == signal.SIGKILL
    write(job, tmp_path / "target", 1)
    assert contents(tmp_path / "target") == contents(tmp_path / "whole")


def test_an_unfinished_result_of_other_work_is_thrown_away(source, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_writer, "_BYTES_UNSAFE", 1)
    card, target = open_card(source), tmp_path / "target"
    assert killed(quantizing(card, "rung", "q4_0", {}), target, 12) == signal.SIGKILL
    notes: list[str] = []
    write(quantizing(card, "rung", "q8_0", {}), target, 1, on_note=notes.append)
    write(quantizing(card, "rung", "q8_0", {}), tmp_path / "whole", 1)
    assert contents(target) == contents(tmp_path / "whole")
    assert not notes


def test_a_disk_that_fills_up_keeps_what_is_written(source, tmp_path, monkeypatch):
    job, target = quantizing(open_card(source), "gguf", "q8_0", {}), tmp_path / "x.gguf"
    monkeypatch.setattr(resumable_writer, "_BYTES_UNSAFE", 1)
    real, calls = os.pwrite, iter(range(100))

    def full(handle, data, position):
        if next(calls) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data, position)

    monkeypatch.setattr(resumable_writer.os, "pwrite", full)
    with pytest.raises(DiskFull, match="The disk is full") as caught:
        write(job, target, 1)
    assert "goes on where it stopped" in str(caught.value)
    monkeypatch.setattr(resumable_writer.os, "pwrite", real)
    notes: list[str] = []
    write(job, target, 1, on_note=notes.append)
    assert "9 of" in notes[0]


@pytest.mark.parametrize("name", ["file/x.gguf", "file/deep/x.gguf", "x" * 300])
def test_a_place_that_cannot_be_written_is_said(source, tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written: "):
        write(quantizing(open_card(source), "gguf", "q8_0", {}), tmp_path / name, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_room_is_looked_for_first(source, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_writer.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DiskFull, match=r"1000 bytes free, and x\.gguf needs"):
        write(quantizing(open_card(source), "gguf", "q8_0", {}), tmp_path / "x.gguf", 1)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_what_is_whole(source, tmp_path):
    job, notes = quantizing(open_card(source), "gguf", "q8_0", {}), []

    def pressed(label, done, total):
        if label == "blk.1.attn_q.weight":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(job, tmp_path / "x.gguf", 1, progress=pressed)
    write(job, tmp_path / "x.gguf", 1, on_note=notes.append)
    assert "going on where" in notes[0]


def test_two_runs_do_not_write_one_result(source, tmp_path):
    files, _ = quantizing(open_card(source), "gguf", "q8_0", {}).layout()
    with (
        resumable_writer.Partial(tmp_path / "x", files, "work"),
        pytest.raises(UsageError, match="Another process is writing"),
    ):
        resumable_writer.Partial(tmp_path / "x", files, "work").__enter__()


def test_costs_are_those_of_the_encoding(source, tmp_path):
    card = open_card(source)
    written = {each.step.name: each for each in write(quantizing(card, "rung", "q4_0", {}), tmp_path / "x", 1)}
    name = "model.layers.1.mlp.up_proj.weight"
    with safe_open(source / "model.safetensors", "pt") as file:
        weight = file.get_tensor(name).float().numpy()
    after = formats.decode(formats.encode(weight, formats.get("q4_0")))
    cost = written[name].cost
    rows = [formats.sqnr(a, b) for a, b in zip(weight, after, strict=True)]
    assert cost.db == pytest.approx(formats.sqnr(weight, after), abs=1e-6)
    assert (cost.worst_row, cost.worst_db) == (int(np.argmin(rows)), pytest.approx(min(rows), abs=1e-6))
    assert written["model.norm.weight"].cost is None


@pytest.mark.parametrize(("kind", "format"), [("gguf", "q8_0"), ("rung", "int8"), ("bitsandbytes", "nf4:64:nested")])
def test_compiled_encoders_write_the_same_files(kind, format, source, tmp_path, monkeypatch):
    job = quantizing(open_card(source), kind, format, {})
    monkeypatch.setattr(encoders, "prove", None)  # not asked for so little
    plain = write(job, tmp_path / "plain", 1)
    monkeypatch.setattr(writing, "_COMPILED", 0)
    monkeypatch.setattr(encoders, "prove", lambda names, say: frozenset(names))
    compiled = write(job, tmp_path / "compiled", 2)
    assert contents(tmp_path / "plain") == contents(tmp_path / "compiled")
    for one, other in zip(plain, compiled, strict=True):
        assert (one.cost is None) == (other.cost is None)
        if one.cost:
            assert one.cost.to_json() == pytest.approx(other.cost.to_json(), rel=1e-9)


def test_the_next_tensor_is_read_ahead(source, tmp_path, monkeypatch):
    read_ahead, job = [], quantizing(open_card(source), "gguf", "q8_0", {})
    began = threading.Event()

    def ahead(reader, tensor):
        read_ahead.append(tensor.name)
        began.set()

    monkeypatch.setattr(Reader, "ahead", ahead)

    def progress(label, done, total):
        assert done == 0 or began.wait(60)

    write(job, tmp_path / "x.gguf", 1, progress=progress)
    names = [step.tensor.name for step in job.steps[1:]]
    assert read_ahead
    assert read_ahead == names[: len(read_ahead)]  # the last ones are dropped where the work ended before them


def test_orders_of_heads_undo_each_other():
    there, back = order_of_heads(32, 2, True), order_of_heads(32, 2, False)
    assert list(there[:4]) == [0, 8, 1, 9]
    assert list(there[back]) == list(range(32))


@pytest.mark.parametrize("kind", ["gguf", "rung", "bitsandbytes"])
def test_nan_is_refused_by_the_tensors_name(kind, source, tmp_path):
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    name = "model.layers.1.mlp.down_proj.weight"
    with safe_open(source / "model.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key).float().numpy() for key in file.keys()}  # noqa: SIM118
    tensors[name][3, 5] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CannotEncode, match=f"Row 3 of {name} holds NaN"):
        write(quantizing(open_card(tmp_path), kind, "nf4" if kind == "bitsandbytes" else "q8_0", {}), tmp_path / "x", 1)


def refused(source, kind, format, *keep):
    with pytest.raises(UsageError) as caught:
        quantizing(open_card(source), kind, format, parse_keep(keep))
    return str(caught.value)


@pytest.mark.parametrize("kind", ["gguf", "rung"])
def test_rows_that_a_format_does_not_divide_are_said(source, kind):
    (note,) = quantizing(open_card(source), kind, "q4_k", {}).notes[:1]
    assert note == "14 matrices in q5_0, the next better format: blocks of 256 do not divide their rows"
    assert not any("divide" in note for note in quantizing(open_card(source), kind, "q8_0", {}).notes)


def test_refusals_say_why(source):
    with pytest.raises(UnknownFormat, match="Did you mean q4_k"):
        quantizing(open_card(source), "gguf", "q4_kk", {})
    assert "GGUF files hold no nf4:64" in refused(source, "gguf", "nf4")
    assert "bitsandbytes has no q8_0" in refused(source, "bitsandbytes", "q8_0")
    assert "rung reads nvfp4 and does not write it" in refused(source, "gguf", "nvfp4")
    assert "rung reads q2_k and does not write it" in refused(source, "rung", "q2_k")  # whose blocks divide no row here
    assert "--keep head_lm matches no matrix" in refused(source, "gguf", "q8_0", "head_lm=q6_k")
    assert "write PATTERN=FORMAT" in refused(source, "gguf", "q8_0", "lm_head")
    said = refused(source, "rung", "q4_0", "o_proj=q4_k")
    assert "blocks of 256 do not divide rows of 64" in said
    assert "--keep model.layers.0.self_attn.o_proj=q5_0" in said or "=q4_1" in said or "=iq4_nl" in said


def test_kinds_go_by_the_name_of_the_target():
    assert [kind_of(Path(name), None) for name in ("x.gguf", "X.GGUF", "x")] == ["gguf", "gguf", "rung"]
    assert kind_of(Path("x"), "bitsandbytes") == "bitsandbytes"
    with pytest.raises(UsageError, match="Did you mean bitsandbytes"):
        kind_of(Path("x"), "bitsandbites")
    with pytest.raises(UsageError, match="makes a folder"):
        kind_of(Path("x.gguf"), "rung")


def test_a_target_that_is_there_is_left_alone(source, tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        write(quantizing(open_card(source), "rung", "q8_0", {}), tmp_path / "x", 1)


@pytest.mark.parametrize("command", [("quantize", "--format", "q8_0"), ("convert",)], ids=lambda command: command[0])
def test_a_source_is_not_its_own_target(source, command, tmp_path, capsys):
    """By whatever name: of a folder, of a file, of a link to it."""
    file = Path(shutil.copy(GGUF / "llama-f32.gguf", tmp_path / "x.gguf"))
    (tmp_path / "link.gguf").symlink_to(file)
    for one, other in (
        (source, source),
        (source, source / ".." / source.name),
        (file, file),
        (tmp_path / "link.gguf", file),
    ):
        before = contents(source), contents(file)
        with pytest.raises(SystemExit) as ended:
            main([command[0], str(one), str(other), *command[1:]])
        assert ended.value.code == 2
        assert "is the source itself" in capsys.readouterr().err
        assert (contents(source), contents(file)) == before


def test_what_is_kept_has_its_format(source, tmp_path):
    write(
        quantizing(open_card(source), "rung", "q4_0", parse_keep(["lm_head=q8_0", "layers.0=f16"])), tmp_path / "x", 1
    )
    with safe_open(tmp_path / "x" / "model.safetensors", "pt") as file:
        found = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert "lm_head.stored.q8_0" in found
    assert found["model.layers.0.mlp.up_proj.weight"] == "F16"
    assert found["model.layers.0.input_layernorm.weight"] == "BF16"
    assert "model.layers.1.mlp.up_proj.stored.q4_0" in found


def test_quantizing_what_is_quantized_is_said(source, tmp_path):
    write(quantizing(open_card(source), "gguf", "q8_0", {}), tmp_path / "x.gguf", 1)
    job = quantizing(open_card(tmp_path / "x.gguf"), "gguf", "q4_0", {})
    assert "is quantized already (q8_0)" in job.notes[0]


def test_a_large_model_is_divided(source, tmp_path, monkeypatch):
    monkeypatch.setattr("rung.conversion.job.SHARD", 60_000)
    write(quantizing(open_card(source), "rung", "q8_0", {}), tmp_path / "x", 1)
    write(quantizing(open_card(source), "rung", "q8_0", {}), tmp_path / "y", 1)
    assert (tmp_path / "x" / "model-00001-of-00004.safetensors").is_file()
    assert contents(tmp_path / "x") == contents(tmp_path / "y")
