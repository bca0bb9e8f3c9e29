"""The package as people get it: a wheel, installed where no source tree is near, with everything it ships inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = """
import json, numpy, rung
from rung import formats
from rung.diagnosis.match import signatures
from rung.formats.codec import Encoded
from rung.hardware import catalog

iq = formats.get("iq2_xxs")
block = numpy.full((1, iq.bytes((1, 256))), 17, numpy.uint8)
print(json.dumps({
    "package": rung.__file__,
    "embedded": rung.card("demo").path,
    "parameters": rung.card("demo").parameters,
    "signatures": len(signatures()),
    "magnitudes": len(numpy.unique(numpy.abs(formats.decode(Encoded(iq, (1, 256), {"data": block}))))),
    "p2200": "Quadro P2200" in PRODUCTS,
}))
""".replace("PRODUCTS", "[product.name for product in catalog.products()]")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network from the source tree, in which nothing is written."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel; torch and the rest come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    options = ["--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    done = subprocess.run([*pip, *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_has_less_than_12_mb(wheel: Path) -> None:
    assert wheel.stat().st_size < 12e6


def run(installed: Path, *command: str) -> str:
    """Return the output of a command that finds the installed package first, far away from the source tree."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=installed.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    source = ROOT / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(source).as_posix() for path in files if path.suffix != ".pyc"}
    expected = {name for name in expected if name.startswith("rung/")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        notes = {name.partition(".dist-info/")[2] for name in archive.namelist() if ".dist-info/" in name}
    assert names == expected
    assert {"rung/py.typed", "rung/models/demo/demo.gguf", "rung/formats/families/iq_grids.npz"} <= names
    assert {"licenses/LICENSE", "entry_points.txt"} <= notes


def test_what_the_package_ships_is_found_where_it_is_installed(installed: Path) -> None:
    found = json.loads(run(installed, sys.executable, "-c", SHIPPED))
    assert Path(found["package"]) == installed / "rung" / "__init__.py"
    assert Path(found["embedded"]) == installed / "rung" / "models" / "demo" / "demo.gguf"
    assert found["parameters"] > 1e6
    assert found["signatures"] > 5
    assert found["magnitudes"] > 1
    assert found["p2200"]


def test_the_commands_work_without_the_source_tree(installed: Path) -> None:
    rung = str(installed / "bin" / "rung")
    assert run(installed, rung, "--version").startswith("rung 0.")
    assert json.loads(run(installed, rung, "devices", "--json"))
    assert json.loads(run(installed, rung, "formats", "--json"))
    plan = json.loads(run(installed, rung, "plan", "demo", "--json"))
    assert plan["model"] == "demo.gguf"
    assert plan["placements"]


@pytest.mark.slow  # another place on the disk: the kernels are compiled once more
def test_the_embedded_model_answers_from_an_installed_wheel(installed: Path) -> None:
    result = json.loads(run(installed, str(installed / "bin" / "rung"), "run", "--json"))
    assert result["text"].strip().endswith(".")
    assert 8 <= len(result["tokens"]) <= 32
