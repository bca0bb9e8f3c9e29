"""``rung video``, ``rung image`` and ``rung compare`` as commands."""

import json

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("PIL")

from rung.cli.app import main
from rung.measure import pictures
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
    status, said, told = rung(capsys, "video", latte, "a cat", "--out", out, "--seed", 3, *WISH)
    assert status == 0, told
    assert said.startswith(f"{out} · 4 frames of 16x16 · ")
    assert [line.split()[0] for line in told.splitlines() if line.startswith("  ")] == ["encode", "denoise", "decode"]
    assert pictures.settings_of(out) == {
        "model": "latte", "prompt": "a cat", "frames": 4, "size": [16, 16], "steps": 2, "seed": 3,
    }  # fmt: skip


def test_a_batch_goes_on_where_it_was_stopped(latte, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('a cat\n\n{"prompt": "a dog", "seed": 5}\n')
    command = ("video", latte, "--batch", prompts, "--out", tmp_path / "x.gif", *WISH, "--json")
    status, said, told = rung(capsys, *command)
    assert status == 0, told
    assert [one["settings"]["seed"] for one in json.loads(said)] == [0, 5]
    first, second = tmp_path / "x-001.gif", tmp_path / "x-003.gif"
    before = first.stat().st_mtime_ns
    second.unlink()
    with open(tmp_path / "x.jsonl", "a") as file:
        file.write('{"file": "x-00')  # the power went
    assert [one["file"] for one in json.loads(rung(capsys, *command)[1])] == [str(second)]
    assert first.stat().st_mtime_ns == before
    assert json.loads(rung(capsys, *command)[1]) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("video", "{}"), "Give a prompt"),
        (("video", "{}", "a cat", "--size", "1x"), "no size"),
        (("video", "{}", "a cat", "--out", "x.avi"), "ends in .avi"),
        (("video", "{}/vae", "a cat"), "no pipeline of diffusers"),
        (("image", "{}", "a cat", "--scheduler", "nothing"), "no scheduler"),
        (("compare", "{}", "--format", "int8", "--text", "x.txt"), "for language models"),
    ],
)
def test_wrong_questions(latte, capsys, arguments, said):
    status, _, told = rung(capsys, *(argument.format(latte) for argument in arguments))
    assert status in (1, 2)
    assert said in told


def test_formats_of_a_pipeline_side_by_side(latte, tmp_path, capsys):
    wish = ("--frames", 4, "--size", "16x16", "--steps", 2, "--device", "cpu")
    picture = tmp_path / "x.png"
    formats = ("--format", "int8", "--format", "nf4")
    status, said, told = rung(capsys, "compare", latte, *formats, "--picture", picture, *wish, "--json")
    assert status == 0, told
    rows = {row["format"]: row for row in json.loads(said)}
    assert list(rows) == ["f32", "int8", "nf4"]
    assert rows["f32"]["SSIM"] == pytest.approx(1)
    assert 20 < rows["nf4"]["PSNR dB"] < rows["int8"]["PSNR dB"] < 70
    assert picture.exists()


def test_formats_of_a_language_model_side_by_side(tmp_path, capsys):
    picture = tmp_path / "x.svg"
    formats = ("--format", "q5_0", "--format", "q4_0")
    status, said, told = rung(capsys, "compare", "demo", *formats, "--picture", picture, "--device", "cpu", "--json")
    assert status == 0, told
    stored, fine, coarse = json.loads(said)
    assert (stored["KL"], stored["agreement"], stored["worst layer dB"]) == (0, 1, None)
    assert 0 <= fine["KL"] < coarse["KL"]
    assert fine["worst layer dB"] > coarse["worst layer dB"] > 10
    assert coarse["agreement"] < 1
    assert coarse["weights"] < fine["weights"] * 1.01
    assert "<polyline" in picture.read_text()
