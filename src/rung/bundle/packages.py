"""The packages that travel in a bundle: rung, and what it needs to serve and run on a CPU, as installed here."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path, PurePosixPath

from rung.core.errors import SoftwareMissing
from rung.core.version import PACKAGE

#: The packages that rung imports to serve and to run language models on a CPU, and a module of each.
NEEDED = {
    "numpy": "numpy",
    "numba": "numba",
    "typer": "typer",
    "rich": "rich",
    "psutil": "psutil",
    "jinja2": "jinja2",
    "tokenizers": "tokenizers",
    "sentencepiece": "sentencepiece",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "msgspec": "msgspec",
    "llguidance": "llguidance",
}
#: What one of them names and does without: nothing is fetched from the hub.
_WITHOUT = {"huggingface-hub"}
#: Files that no program imports.
_LEFT_OUT = {".pyi", ".pyc", ".a", ".lib", ".h", ".hpp", ".c", ".cpp", ".pxd", ".pyx"}
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LICENSE = re.compile(r"licen[sc]e|copying|notice|authors", re.IGNORECASE)


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    distribution: Distribution

    @property
    def version(self) -> str:
        """Return its release."""
        return self.distribution.version

    def files(self) -> Iterator[tuple[PurePosixPath, Path]]:
        """Yield the files that travel: their paths below a folder of packages, and where they are."""
        for file in self.distribution.files or ():
            kept = file.suffix not in _LEFT_OUT and not {"..", "tests", "__pycache__"} & set(file.parts)
            path = Path(str(self.distribution.locate_file(file)))
            if kept and path.is_file():
                yield PurePosixPath(file), path

    @cached_property
    def license(self) -> str:
        """Return the name of its license, as its metadata has it."""
        about = self.distribution.metadata
        names = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or () if "License ::" in text]
        stated = [about[field] for field in ("License-Expression", "License") if field in about]
        return " ".join((stated or [" and ".join(names)])[0].split())[:80] or "unknown"

    def license_texts(self) -> list[str]:
        """Return the texts of its licenses. Some wheels of Apache's license have none: it is rung's own."""
        found = [file for path, file in self.files() if _LICENSE.search(path.name) and path.suffix != ".py"]
        texts = [file.read_text("utf-8", "replace") for file in sorted(found)]
        return texts or ([own_license()] if "apache" in self.license.lower() else [])


def own_license() -> str:
    """Return rung's license: the Apache License, Version 2.0."""
    source = PACKAGE.parents[1] / "LICENSE"
    if source.is_file():
        return source.read_text("utf-8")
    (found,) = Package("rung", importlib.metadata.distribution("rung")).license_texts()
    return found


def own_files() -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the files of rung that travel: their paths below a folder of packages, and where they are."""
    for file in sorted(PACKAGE.rglob("*")):
        path = file.relative_to(PACKAGE.parent)
        if file.is_file() and file.suffix not in (".pyc", ".gguf") and "__pycache__" not in path.parts:
            yield PurePosixPath(path.as_posix()), file


def needed() -> list[Package]:
    """Return the packages that travel, by name. Raises ``SoftwareMissing`` where one of them is not installed."""
    found: dict[str, Package] = {}
    names = list(NEEDED)
    while names:
        name = _normal(names.pop())
        if name in found or name in _WITHOUT:
            continue
        try:
            found[name] = Package(name, importlib.metadata.distribution(name))
        except PackageNotFoundError:
            raise SoftwareMissing(
                f"{name} is not installed; a bundle carries it.", (), ["pip install 'rung[lean,serve]'"]
            ) from None
        names += _requirements(found[name].distribution)
    return sorted(found.values(), key=lambda each: each.name)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(distribution: Distribution) -> list[str]:
    """Return the names that a package requires here: those of an extra are not, those of another system only if they
    are installed."""
    names = []
    for line in distribution.requires or ():
        text, _, marker = line.partition(";")
        found = _REQUIREMENT.match(text)
        if found and "extra" not in marker and (not marker or _is_installed(found[0])):
            names.append(found[0])
    return names


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except PackageNotFoundError:
        return False
    return True
