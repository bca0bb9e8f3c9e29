"""Which packages are installed, without importing them."""

import importlib.metadata
import sys

import pytest

from rung.hardware import software


@pytest.fixture(autouse=True)
def fresh():
    software.installed.cache_clear()
    yield
    software.installed.cache_clear()


def package(folder, name, version, files=None):
    (folder / name).mkdir(parents=True)
    (folder / f"{name}-{version}.dist-info").mkdir()
    for file, text in ({"__init__.py": ""} | (files or {})).items():
        (folder / name / file).write_text(text)


def forget_all(monkeypatch):
    """Forget the modules that other tests have imported: they would be found without looking."""
    for name in software._PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", ["numba", "llvmlite"])
def test_versions_are_those_of_the_metadata(name):
    assert software.installed()[name] == importlib.metadata.version(name)


def test_torch_says_itself_what_it_is():
    import torch

    found = software.installed()
    assert found["torch"] == torch.__version__
    assert found.get("torch_cuda") == torch.version.cuda
    assert found.get("torch_hip") == torch.version.hip


VERSION_FILE = """\
from typing import Optional
__version__ = '2.12.1+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = 'abc'
hip: Optional[str] = None
xpu = '20250302'
"""


def test_a_build_for_cuda(tmp_path, monkeypatch):
    # The wheel's metadata leave out what it was built for; torch/version.py does not.
    package(tmp_path, "torch", "2.12.1", {"version.py": VERSION_FILE})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    forget_all(monkeypatch)
    found = software.installed()
    assert dict(found) == {"torch": "2.12.1+cu128", "torch_cuda": "12.8", "torch_xpu": "20250302"}


def test_an_empty_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    forget_all(monkeypatch)
    assert not software.installed()


def test_a_package_without_metadata_has_an_unknown_version(tmp_path, monkeypatch):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    forget_all(monkeypatch)
    assert dict(software.installed()) == {"numba": "unknown"}
