"""A package index of tiny wheels, and virtual environments with this Python's pip, both made in no time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pip


def wheel(folder: Path, name: str, version: str, code: str = "", requires: tuple[str, ...] = ()) -> Path:
    """A wheel ``name-version-py3-none-any.whl`` with one module whose text is ``code``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    cuda = version.partition("+cu")[2]
    toolkit = f"'{cuda[:-1]}.{cuda[-1]}'" if cuda else "None"
    files = {
        f"{name}/__init__.py": code,
        f"{name}/version.py": f"__version__ = '{version}'\ncuda = {toolkit}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"]))
    return path


def index(folder: Path) -> str:
    """The folder of wheels as a simple index, for ``--index-url``."""
    simple = folder / "simple"
    for path in folder.glob("*.whl"):
        page = simple / path.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as file:
            file.write(f'<a href="{path.as_uri()}">{path.name}</a>\n')
    return simple.as_uri()


def unpack(path: Path, environment: Path) -> None:
    """Puts a wheel into an environment as pip would, without its second."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(packages(environment))


def packages(environment: Path) -> Path:
    """The ``site-packages`` of an environment of this Python."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def environment(folder: Path, with_pip: bool = True) -> Path:
    """A virtual environment with nothing but this Python's pip in it, as a link: ensurepip would take seconds."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    if with_pip:
        (packages(folder) / "pip").symlink_to(Path(pip.__file__).parent)
    return folder
