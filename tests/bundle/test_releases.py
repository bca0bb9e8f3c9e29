"""A bundle for several releases of Python: what pip brings for them, and what it lacks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from io import BytesIO
from pathlib import Path

import pytest

from rung.bundle import start as program
from rung.bundle.packages import needed
from rung.bundle.releases import RELEASES, extension_of, of_other_releases
from tests.bundle.conftest import PYTHON, start, write
from tests.index_server import wheel_of

OTHER = next(each for each in RELEASES if each != sys.version_info[:2])
TAG = "cp{}{}".format(*OTHER)
PROMPT = ("run", "the model", "--raw", "--max-tokens", "8", "--temperature", "0", "--json")


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """A folder that pip looks into, with wheels for one other release: a module, and a file that differs from ours."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for each in needed():
        if any(EXTENSION_SUFFIXES[0] in path.name for path, _ in each.files()):
            name = each.name.replace("-", "_")
            files = {f"{name}/planted{extension_of(OTHER)}": b"compiled", f"{name}/tests/left.py": b""}
            files |= {"numpy/__init__.py": b"raise ImportError"} if name == "numpy" else {}
            wheel = wheel_of(name, each.version, files)
            (folder / f"{name}-{each.version}-{TAG}-{TAG}-{_platform()}.whl").write_bytes(wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _platform() -> str:
    import sysconfig

    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def test_modules_of_another_release_lie_beside_those_of_this_one(wheels, tmp_path, monkeypatch, rung):
    """And a release without packages is named."""
    out = tmp_path / "demo.pyz"
    said = rung("bundle", "demo", str(out), "--any-python", "--no-warm-up")
    assert said.code == 0
    for release in RELEASES:
        lacks = release not in (OTHER, sys.version_info[:2])
        assert ("packages for Python {}.{}".format(*release) in said.err) == lacks
    with zipfile.ZipFile(out) as archive:
        settings = json.loads(archive.read("bundle.json"))
    assert settings["extensions"] == [extension_of(each) for each in sorted([sys.version_info[:2], OTHER])]
    part = settings["packages"]
    data = out.read_bytes()[part["begin"] :][: part["size"]]
    with tarfile.open(fileobj=BytesIO(data)) as packed:
        names = packed.getnames()
        assert len(names) == len(set(names))
        assert packed.extractfile("packages/numpy/__init__.py").read() != b"raise ImportError"
    for package in ("numpy", "numba", "msgspec"):
        assert f"packages/{package}/planted{extension_of(OTHER)}" in names
    assert not [each for each in names if each.endswith("left.py")]
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(program, "EXTENSION_SUFFIXES", [extension_of(OTHER)])
    program.set_path("/folder", settings)
    assert sys.path[:2] == [os.path.join("/folder", each) for each in ("program", "packages")]


def test_offline_fetches_nothing(tmp_path, rung):
    said = rung("bundle", "demo", str(tmp_path / "demo.pyz"), "--any-python", "--offline")
    assert said.code != 0
    assert "--offline forbids it" in said.err
    assert not (tmp_path / "demo.pyz").exists()


def test_without_pip_is_refused(tmp_path, monkeypatch):
    from rung.core.errors import SoftwareMissing

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SoftwareMissing, match="pip is not installed"):
        of_other_releases([], [], tmp_path, lambda label, done, total: None)


@pytest.mark.slow
def test_it_answers_with_each_python_that_is_here(bundle, tmp_path):
    """The answer is that of this Python."""
    here = {
        name: _python(name) for name in ("{}.{}".format(*each) for each in RELEASES if each != sys.version_info[:2])
    }
    if not any(here.values()):
        pytest.skip("no other Python is here")
    out = write(tmp_path / "demo.pyz", "--any-python", "--no-warm-up")
    with zipfile.ZipFile(out) as archive:
        extensions = json.loads(archive.read("bundle.json"))["extensions"]
    if len(extensions) < 2:
        pytest.skip("pip has packages for no other Python")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA", "RUNG"))}
    texts = []
    for name in (PYTHON, *filter(None, here.values())):
        cache = {"RUNG_CACHE": str(tmp_path / f"cache-{len(texts)}")}
        said = subprocess.run([name, str(out), *PROMPT], env=plain | cache, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        texts.append(json.loads(said.stdout)["text"])
    assert len(set(texts)) == 1
    assert json.loads(start(out, *PROMPT).stdout)["text"] == texts[0]


def _python(release: str) -> str | None:
    """Find a Python of a release, or None."""
    folders = os.environ["PATH"].split(os.pathsep)
    folders += map(str, Path.home().glob(f".pyenv/versions/{release}.*/bin"))
    for folder in folders:
        path = Path(folder, f"python{release}")
        if path.is_file() and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return str(path)
    return None
