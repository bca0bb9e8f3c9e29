"""A bundle with its own Python, in a system that has none; and a plain one in a system that has nothing but Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rung.bundle.packages import interpreter_files, shared_libraries
from tests.bundle import small_system
from tests.bundle.conftest import PYTHON, SYSTEM, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Python travels on Linux alone")
needs_chroot = pytest.mark.skipif(not small_system.possible(), reason="chroot is for root alone")
PROMPT = ("run", "the model", "--raw", "--max-tokens", "8", "--temperature", "0", "--json")


@pytest.fixture(scope="module")
def whole(_cache, tmp_path_factory) -> Path:
    """A bundle of the demo that has a Python."""
    return write(tmp_path_factory.mktemp("whole") / "demo", "--with-python", "--no-warm-up")


@pytest.fixture
def system(tmp_path) -> Path:
    """A system without Python."""
    small_system.make(tmp_path)
    return tmp_path


@pytest.mark.slow
@needs_chroot
def test_its_python_starts_where_there_is_none(whole, system):
    shutil.copy(whole, system / "demo")
    said = small_system.run_there(system, "/demo", "--help")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("demo, with rung")
    assert "Unpacking Python, once" in said.stderr
    again = small_system.run_there(system, "/demo", "licenses")
    assert again.stderr == ""
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in again.stdout


@needs_chroot
def test_a_cache_that_cannot_be_written_is_said(whole, system):
    shutil.copy(whole, system / "demo")
    (system / "file").write_text("")
    said = small_system.run_there(system, "/demo", "--help", RUNG_CACHE="/file")
    assert said.returncode == 1
    assert "/file/bundles" in said.stderr


@needs_chroot
@pytest.mark.slow
def test_it_answers_where_there_is_no_python(whole, system, rung):
    shutil.copy(whole, system / "demo")
    said = small_system.run_there(system, "/demo", *PROMPT)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["text"] == json.loads(rung("run", "demo", *PROMPT[1:]).out)["text"]


@needs_chroot
@pytest.mark.slow
def test_a_plain_one_answers_where_there_is_nothing_but_python(bundle, tmp_path, rung):
    program = Path(os.path.realpath(PYTHON))
    small_system.make(tmp_path, program)
    shutil.copy(bundle, tmp_path / "demo.pyz")
    said = small_system.run_there(tmp_path, str(program), "/demo.pyz", *PROMPT)
    assert said.returncode == 0, said.stderr
    plain = json.loads(rung("run", "demo", *PROMPT[1:], "--context", "256", "--system", SYSTEM).out)
    assert json.loads(said.stdout)["text"] == plain["text"]


def test_one_that_is_cut_off_says_so(whole, tmp_path):
    cut = tmp_path / "demo"
    cut.write_bytes(whole.read_bytes()[:-1])
    cut.chmod(0o755)
    said = subprocess.run([str(cut)], capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr == f"{cut} was cut off: copy the file again.\n"


def test_any_python_runs_it_too(whole):
    assert zipfile.is_zipfile(whole)
    said = subprocess.run([PYTHON, str(whole), "--help"], capture_output=True, text=True)
    assert said.stdout.startswith("demo, with rung")


def test_it_stays_below_its_bar(whole):
    from rung.models.lookup import demo_path

    assert whole.stat().st_size - demo_path().stat().st_size < 120 << 20


def test_each_library_that_python_needs_travels():
    """By what the loader says of each compiled file that travels."""
    found = {str(name): path for name, path in interpreter_files([])}
    compiled = [path for path in found.values() if ".so" in path.name]
    needed = shared_libraries(compiled)
    assert {name for name in needed if f"lib/{name}" not in found} == set()
    assert not any(name.startswith("lib/libc.so") for name in found)


def test_elsewhere_than_on_linux_it_is_refused(rung, monkeypatch, tmp_path):
    monkeypatch.setattr("rung.bundle.packages.sys.platform", "darwin")
    said = rung("bundle", "demo", str(tmp_path / "x"), "--with-python")
    assert said.code == 2
    assert "--with-python is for Linux" in said.err
    assert list(tmp_path.iterdir()) == []
