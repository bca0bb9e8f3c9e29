"""``rung tune`` on the command line."""

import json
from pathlib import Path

import pytest

from rung.training.tune import Options
from rung.training.tune import tune as train
from tests.training.rows import chat_folder, question, write

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"


@pytest.mark.slow
def test_a_run_and_what_it_says(rung, tmp_path):
    chat_folder(tmp_path / "base")
    data = write(tmp_path / "data.jsonl", *map(question, range(4)))
    words = ("tune", str(tmp_path / "base"), str(data), "--out", str(tmp_path / "out"))
    said = rung(*words, "--format", "f32", "--epochs", "1", "--batch", "2", "--max-length", "64", "--device", "cpu")
    assert said.code == 0, said.err
    assert said.out == ""
    assert "loss on the answers of the assistant alone" in said.err
    assert "step 2 of 2 · loss" in said.err
    assert f"rung run {tmp_path / 'base'} --adapter {tmp_path / 'out'}" in said.err
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["r"] == Options().rank
    again = rung(*words, "--format", "f32")
    assert again.code == 2
    assert "another run" in again.err


def test_every_option_is_passed_on(rung, monkeypatch, tmp_path):
    calls = {}

    def recorded(model, data, out, options, **more):
        calls.update(model=model, options=options, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr("rung.training.tune.tune", recorded)
    assert train is not recorded
    expected = Options("q8_0", 2.5, 1e-3, 8, 64, 0.1, "q_proj,v_proj", 99, 3, 4, True, 0.2, 7)
    names = [name for name in vars(expected) if name != "packing"]
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(expected, name)))]
    chat_folder(tmp_path / "base")
    said = rung(
        "tune",
        str(tmp_path / "base"),
        "data",
        "--out",
        str(tmp_path / "out"),
        *words,
        "--packing",
        "--memory",
        "4GB",
        "--device",
        "cpu",
    )
    assert said.code == 130
    assert calls["options"] == expected
    assert calls["memory"] == "4GB"
    assert calls["device"] == "cpu"


def test_another_gguf_file_gets_another_base(rung, monkeypatch, tmp_path):
    bases = []

    def recorded(model, data, out, options, **more):
        bases.append((model, out))
        raise KeyboardInterrupt

    monkeypatch.setattr("rung.training.tune.tune", recorded)
    monkeypatch.setattr("rung.conversion.writing.write", lambda job, folder, threads: folder.mkdir())
    monkeypatch.setenv("HOME", str(tmp_path))
    data = write(tmp_path / "data.jsonl", *map(question, range(4)))
    for model in (GGUF / "llama-f32.gguf", GGUF / "llama-q8_0.gguf", GGUF / "llama-f32.gguf"):
        assert rung("tune", str(model), str(data), "--out", "~/out").code == 130
    (first, out), (second, _), (third, _) = bases
    assert first == third != second
    assert first.startswith(str(tmp_path / "out-base-"))
    assert out == tmp_path / "out"


def test_data_that_is_not_there_is_said_before_a_base_is_decoded(rung, tmp_path):
    said = rung("tune", "demo", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out"))
    assert said.code == 2
    assert "There is no file" in said.err
    assert list(tmp_path.iterdir()) == []
