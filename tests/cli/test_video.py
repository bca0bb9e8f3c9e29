"""``rung video``, ``rung image`` and ``rung compare`` as commands."""

import errno
import json
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("PIL")

from rung.cli.app import main
from rung.core.errors import DiskFull, UsageError
from rung.measure import pictures
from rung.models.hub import Listing
from rung.pipelines import folders
from rung.pipelines.batch import Done, Job, jobs
from rung.pipelines.generate import Settings
from tests.tiny_pipelines import saved

WISH = ("--frames", "4", "--size", "16x16", "--steps", "2", "--device", "cpu")


@pytest.fixture(scope="module")
def latte(tmp_path_factory):
    return saved("latte", tmp_path_factory.mktemp("pipelines") / "latte")


def rung(capsys, *arguments):
    """The exit status and what was printed on both streams."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return (ended.value.code or 0), *capsys.readouterr()


def test_a_video_and_its_account(latte, tmp_path, capsys):
    out = tmp_path / "x.webp"
    status, said, notes = rung(capsys, "video", latte, "a cat", "--out", out, "--seed", 3, *WISH)
    assert status == 0, notes
    assert said.startswith(f"{out} · 4 frames of 16x16 · ")
    assert [line.split()[0] for line in notes.splitlines() if line.startswith("  ")] == ["encode", "denoise", "decode"]
    assert pictures.settings_of(out) == {
        "model": "latte", "prompt": "a cat", "frames": 4, "size": [16, 16], "steps": 2, "seed": 3,
    }  # fmt: skip


def test_a_batch_goes_on_where_it_was_stopped(latte, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('a cat\n\n{"prompt": "a dog", "seed": 5}\n')
    command = ("video", latte, "--batch", prompts, "--out", tmp_path / "x.gif", *WISH, "--json")
    status, said, notes = rung(capsys, *command)
    assert status == 0, notes
    assert [one["settings"]["seed"] for one in json.loads(said)] == [0, 5]
    first, second = tmp_path / "x-001.gif", tmp_path / "x-003.gif"
    before = first.stat().st_mtime_ns
    second.unlink()
    with open(tmp_path / "x.jsonl", "a") as file:
        file.write('{"file": "x-00')  # the power went
    assert [one["file"] for one in json.loads(rung(capsys, *command)[1])] == [str(second)]
    assert first.stat().st_mtime_ns == before
    assert json.loads(rung(capsys, *command)[1]) == []
    prompts.write_text("a cat\n")
    for more in (("--format", "int8"), ("--format", "int8", "--fps", 3)):
        assert [one["file"] for one in json.loads(rung(capsys, *command, *more)[1])] == [str(first)]
    assert json.loads(rung(capsys, *command, *more)[1]) == []


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ('"frames": "16"', 'frames is "16"; it is a whole number, 1 or more'),
        ('"steps": 0', "steps is 0; it is a whole number, 1 or more"),
        ('"steps": true', "steps is true"),
        ('"guidance": NaN', "guidance is NaN; it is a number, 0 or more"),
        ('"seed": null', "seed is null; it is a whole number, 0 or more"),
        ('"seed": 1e3', "seed is 1000.0"),
        ('"negative": 3', "negative is 3; it is a text"),
    ],
)
def test_values_of_a_batch_are_of_their_types(tmp_path, field, says):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f'a cat\n{{"prompt": "a dog", {field}}}\n')
    with pytest.raises(UsageError, match=f"prompts.txt, line 2: {re.escape(says)}"):
        jobs(prompts, Settings(prompt=""), tmp_path / "x.gif")


def test_a_journal_that_the_disk_does_not_hold(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    done = Done(tmp_path / "x.gif", {})
    monkeypatch.setattr("rung.pipelines.batch.os.fsync", full)
    with pytest.raises(DiskFull, match=r"journal[\s\S]*x-001.gif is whole[\s\S]*give the same command again"):
        done.add(Job(Settings(prompt="a cat"), tmp_path / "x-001.gif"))


def test_values_that_a_batch_may_have(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('{"prompt": "a dog", "frames": null, "guidance": 7, "seed": 3, "negative": ""}\n')
    (job,) = jobs(prompts, Settings(prompt="", frames=8), tmp_path / "x.gif")
    assert job.settings == Settings(prompt="a dog", guidance=7, seed=3, negative="")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("video", "{}"), "Give a prompt"),
        (("video", "{}", "a cat", "--size", "1x"), "no size"),
        (("video", "{}", "a cat", "--out", "x.avi"), "ends in .avi"),
        (("video", "{}", "a cat", "--out", "x.avi"), "--out x.mp4"),
        (("video", "{}", "a cat", "--out", "x.webp", "--frames", "3", "--size", "16x16"), "--frames 4 --size 16x16\n"),
        (("video", "{}", "a cat", "--out", "x.webp", "--frames", "4", "--size", "20x16"), "--frames 4 --size 16x16\n"),
        (("video", "{}/vae", "a cat"), "no pipeline of diffusers"),
        (("image", "{}", "a cat", "--scheduler", "nothing"), "no scheduler"),
        (("image", "{}"), 'rung image {} "a cat"'),
        (
            ("compare", "{}", "--format", "int8", "--text", "x.txt", "--threads", "2"),
            "--text, --threads are for language",
        ),
        (("compare", "demo", "--format", "q8_0", "--prompt", "a cat"), "--prompt is for pipelines"),
        (("compare", "demo", "--format", "q8_0", "--size", "8x8", "--seed", "0"), "--size, --seed are for pipelines"),
        (("compare", "demo", "--format", "q8_0", "--picture", "x.png"), "is no SVG"),
        (("compare", "demo", "--format", "q8_0", "--picture", "no/x.svg"), "There is no folder no"),
    ],
)
def test_wrong_questions(latte, capsys, arguments, said):
    status, _, notes = rung(capsys, *(argument.format(latte) for argument in arguments))
    assert status in (1, 2)
    assert said.format(latte) in notes


@pytest.mark.slow
def test_a_wrong_name_is_answered_by_rung_alone():
    """Libraries that are imported on the way tell to install packages."""
    command = [sys.executable, "-m", "rung", "video", "NOSUCH", "a cat"]
    lines = subprocess.run(command, capture_output=True, text=True).stderr.splitlines()
    assert lines[0] == "There is no pipeline 'NOSUCH'."


def test_a_gguf_file_is_no_pipeline_and_the_command_that_runs_it_is_said(tmp_path, capsys):
    path = tmp_path / "a model.gguf"
    path.write_bytes(b"GGUF")
    status, _, notes = rung(capsys, "video", str(path), "a cat")
    assert status == 1
    assert "is a file, and a pipeline of diffusers is a folder" in notes
    assert f"rung run '{path}'" in notes


def test_weights_are_fetched_when_they_are_needed(latte, tmp_path, capsys, monkeypatch):
    """Neither a plan nor a refusal needs them."""
    names = {str(path.relative_to(latte)): path.stat().st_size for path in latte.rglob("*") if path.is_file()}
    fetched = []

    def fetch(listed, files, progress):
        found = [tmp_path / "cache" / name for name in files]
        for name, path in zip(files, found, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(latte / name, path)
            fetched.append(path.suffix)
        return found

    monkeypatch.setattr(folders, "listing", lambda *arguments, **named: (Listing("org/latte", None, names), []))
    monkeypatch.setattr(folders, "fetch", fetch)
    command = ("video", "org/latte", "a cat", "--out", tmp_path / "x.webp", "--size", "16x16", "--steps", "2")
    status, _, notes = rung(capsys, *command, "--frames", "3", "--device", "cpu")
    assert (status, "--frames 4" in notes) == (2, True)
    assert rung(capsys, *command, "--frames", "4", "--device", "cpu", "--plan")[0] == 0
    assert fetched
    assert ".safetensors" not in fetched
    status, _, notes = rung(capsys, *command, "--frames", "4", "--device", "cpu")
    assert status == 0, notes
    assert fetched.count(".safetensors") == 3
    assert (tmp_path / "x.webp").exists()


def test_offline_the_hub_is_not_asked_what_is_compared(capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    status, _, notes = rung(capsys, "compare", "some/model", "--format", "q8_0", "--offline")
    assert status == 1
    assert "127.0.0.1" not in notes
    assert "offline" in notes


@pytest.mark.slow
def test_formats_of_a_pipeline_side_by_side(latte, tmp_path, capsys):
    wish = ("--frames", 4, "--size", "16x16", "--steps", 2, "--device", "cpu")
    picture = tmp_path / "x.png"
    formats = ("--format", "int8", "--format", "nf4")
    status, said, notes = rung(capsys, "compare", latte, *formats, "--picture", picture, *wish, "--json")
    assert status == 0, notes
    rows = {row["format"]: row for row in json.loads(said)}
    assert list(rows) == ["f32", "int8", "nf4"]
    assert rows["f32"]["SSIM"] == pytest.approx(1)
    assert 20 < rows["nf4"]["PSNR dB"] < rows["int8"]["PSNR dB"] < 70
    assert picture.exists()


def test_formats_of_a_language_model_side_by_side(tmp_path, capsys):
    picture = tmp_path / "x.svg"
    formats = ("--format", "q5_0", "--format", "q4_0")
    status, said, notes = rung(capsys, "compare", "demo", *formats, "--picture", picture, "--device", "cpu", "--json")
    assert status == 0, notes
    stored, fine, coarse = json.loads(said)
    assert (stored["KL"], stored["agreement"], stored["worst layer dB"]) == (0, 1, None)
    assert 0 <= fine["KL"] < coarse["KL"]
    assert fine["worst layer dB"] > coarse["worst layer dB"] > 10
    assert coarse["agreement"] < 1
    assert coarse["weights"] < fine["weights"] * 1.01
    assert "<polyline" in picture.read_text()


def test_language_models_and_pipelines_are_told_the_right_command(latte, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    status, _, notes = rung(capsys, "video", "demo", "a cat")
    assert status == 2
    assert '  1  rung run demo "' in notes
    assert '  1  rung run gemma-2b "' in rung(capsys, "image", "gemma-2b", "a cat")[2]
    assert "There is no pipeline 'nothing-here'" in rung(capsys, "video", "nothing-here", "a cat")[2]
    status, _, notes = rung(capsys, "run", latte, "hi")
    assert status == 1
    assert f'  1  rung video {latte} "a cat"' in notes
