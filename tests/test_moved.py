"""Old import paths still import, with a warning, the module that is elsewhere now."""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rung.moved import MOVED, new_name
from tests.support.rows import each_row


@each_row("old", MOVED)
def test_moved_modules_exist_and_old_files_do_not(old):
    parts = new_name(old).split(".")
    base = Path(importlib.import_module("rung").__file__).parent.joinpath(*parts[1:])
    assert base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()
    there = Path(importlib.import_module("rung").__file__).parent.joinpath(*old.split(".")[1:])
    assert not there.with_suffix(".py").exists()
    assert not (there / "__init__.py").exists()


def test_every_module_of_0_1_0_is_there_or_has_a_new_name():
    """But ``rung.engine.turns``, whose work the scheduler does. A module that moved with its package may move again."""
    root = Path(importlib.import_module("rung").__file__).parent.parent
    names = (Path(__file__).parent / "data" / "modules_of_0.1.0.txt").read_text(encoding="utf-8").split()
    assert len(names) > 600

    def is_there(name):
        path = root.joinpath(*name.split("."))
        return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()

    assert [name for name in names if not is_there(name) and not is_there(new_name(name) or "nowhere")] == []


def test_old_paths_import_the_same_module():
    with pytest.warns(DeprecationWarning, match=r"rung\.planning\.time is rung\.planning\.speed now"):
        old = importlib.import_module("rung.planning.time")
    assert old is importlib.import_module("rung.planning.speed")
    assert old.__name__ == old.__spec__.name == "rung.planning.speed"


def test_modules_of_a_moved_package_are_not_loaded_twice():
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import rung.models.outlines.values as old, rung.models.networks.values as new\n"
        "from rung.models.outlines import bert\n"
        "import rung.models.networks.encoders.bert as same\n"
        "assert old is new and bert is same\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_stay_unknown():
    assert find_spec("rung.planning.nothing") is None
