"""``--prefix-cache`` and ``rung cache``: later runs begin with what earlier ones computed; folders are cleared."""

from __future__ import annotations

import json
import os
import time

import pytest

QUESTION = "the quick brown fox jumps over the lazy dog and over the model " * 6


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """A list of folders of its own."""
    from rung.engine.scheduling import prefix_files

    folder = tmp_path_factory.mktemp("list")

    class Here:
        @staticmethod
        def read():
            return folder

    monkeypatch.setattr(prefix_files, "CACHE", Here)


def wait_for_files(folder):
    """Runs of this process write while it goes on; a process of its own waits at its end."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        names = sorted(os.listdir(folder))
        time.sleep(0.3)
        if sum(name.endswith(".kv") for name in names) and names == sorted(os.listdir(folder)):
            return


def test_a_later_run_begins_where_an_earlier_one_ended(rung, tmp_path):
    folder = tmp_path / "prefixes"

    def run(*options: str):
        return json.loads(rung("run", "demo", QUESTION, "--max-tokens", "4", "--json", *options).out)

    plain = run()
    first, second = (run("--prefix-cache", f"{folder}:1GB") for _ in range(2))
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] == second["prompt_tokens"] - 1 > 64
    assert plain["tokens"] == first["tokens"] == second["tokens"]
    assert run("--prefix-cache", str(folder), "--format", "q4_0")["cached_tokens"] == 0, "another format"
    said = rung("cache", "list")
    assert str(folder) in said.out
    (folder / "mine.txt").write_text("mine")
    wait_for_files(folder)
    assert "removed" in rung("cache", "clear").out
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert run("--prefix-cache", str(folder))["cached_tokens"] == 0
    wait_for_files(folder)
    assert not rung("cache", "clear", str(folder)).out.startswith("0 files")


def test_a_batch_keeps_prefixes_too(rung, tmp_path):
    lines = tmp_path / "in.txt"
    lines.write_text(f"{QUESTION}one\n{QUESTION}two\n")
    said = rung("batch", str(lines), str(tmp_path / "out"), "--model", "demo", "--prefix-cache", str(tmp_path / "p"))
    assert said.code == 0
    cached = json.loads(rung("run", "demo", QUESTION, "--json", "--prefix-cache", str(tmp_path / "p")).out)
    assert cached["cached_tokens"] >= 64


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("{file}", "cannot hold the files of --prefix-cache"),
        ("{file}/inside:1GB", "cannot hold the files of --prefix-cache"),
        ("{folder}:4XB", "'4XB' is not a size"),
        ("{folder}:0", "not above zero"),
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(rung, tmp_path, folder, says):
    (tmp_path / "file").write_text("")
    said = rung("run", "demo", "hi", "--prefix-cache", folder.format(file=tmp_path / "file", folder=tmp_path / "p"))
    assert said.code == 2
    assert says in said.err


def test_clear_without_a_folder_and_with_none(rung, tmp_path):
    assert rung("cache", "list").out.startswith("There is none")
    assert rung("cache", "clear").out.startswith("0 files")
    said = rung("cache", "clear", str(tmp_path / "nowhere"))
    assert said.code == 2
    assert "is no folder" in said.err
