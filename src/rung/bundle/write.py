"""Write a bundle: a few lines of text, the model, the packages, and a zip that Python runs.

::

    0          #!/usr/bin/env python3, and where the model is; with a Python inside, a program of the shell
    65536      the GGUF model as it is: mapped from here
    ...        the packages, a tar file compressed by gzip, and another one of Python
    ...        a zip of __main__.py, bundle.json and LICENSES.txt

Python finds the zip from the end of a file, and places in it count from its own beginning: nothing limits the size of
the model. Parts begin at multiples of ``ALIGNMENT``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import IO, Any

from rung.bundle import interpreter, start
from rung.bundle.archive import Archive, Member, compiled, licenses, members, write_archive
from rung.bundle.libraries import library_licenses
from rung.bundle.model import BundledModel, copy_model
from rung.bundle.packages import NEEDED, needed
from rung.core.errors import DiskFull, UsageError
from rung.core.files import writing, written_whole
from rung.core.settings import CACHE
from rung.core.text import size
from rung.core.version import __version__
from rung.models.files.bundled import ALIGNMENT, model_line

Progress = Callable[[str, int, int], None]
#: What the program takes in a bundle at most, and unpacked: a disk must have as much.
_PROGRAM_BYTES = 120 << 20
#: Python reads this line where the zip at the end is missing, and says it: no encoding has that name.
_CUT_OFF = "# coding: this-rung-bundle-was-cut-off--copy-the-file-again"


@dataclass(frozen=True)
class Written:
    """A bundle that was written: its bytes, those of the model in it, what it takes unpacked, and whether it has a
    Python."""

    path: Path
    bytes: int
    model_bytes: int
    unpacked_bytes: int
    with_python: bool


def check_terms(model: BundledModel, accepted: bool) -> None:
    """Raise ``UsageError`` for a model with terms that nobody accepted."""
    if model.terms is not None and not accepted:
        raise UsageError(
            f"{model.name} has terms, and who gets the bundle gets them too.",
            [model.terms.notice, *model.terms.links],
            ["the same command with --accept-terms   # when you have read them"],
            code="terms-not-accepted",
        )


def write_bundle(
    model: BundledModel,
    out: Path,
    options: Mapping[str, Sequence[str]],
    with_python: bool = False,
    progress: Progress = lambda label, done, total: None,
) -> Written:
    """Write a bundle to ``out``, whole or not at all. ``options`` are those of ``serve`` and ``run`` that it starts
    with; ``with_python``: this Python travels too.

    Raises ``SoftwareMissing``, ``DiskFull``, ``UsageError`` where ``out`` cannot be written, ``BadFile``.
    """
    if with_python:
        interpreter.check_possible()
    packages = needed()
    _check_room(out, model)
    with writing(out), written_whole(out) as temporary, open(temporary, "r+b") as file:
        file.seek(ALIGNMENT)
        sha256 = copy_model(model, file, lambda done, total: progress("copying", done, total))
        files = members(packages)
        begin, archive = _append(file, files, progress)
        libraries = {name.name: path for name, path in files if name.parts[0] == "libraries"}
        texts, unpacked, shell_of = library_licenses(libraries.values()), archive.unpacked, None
        if with_python:
            python = interpreter.interpreter_files(compiled(files))
            place, packed = _append(file, python, progress)
            texts, unpacked = interpreter.license_texts(python), unpacked + packed.unpacked
            shell_of = partial(interpreter.shell_lines, packed, place, cache=CACHE.variable)
        _align(file)
        settings = _settings(model, options, begin, archive) | {"libraries": sorted(libraries)}
        _append_zip(file, settings, licenses(packages, model.license_text(), texts))
        total = file.tell()
        file.seek(0)
        file.write(_head(model_line(model.size, sha256), shell_of(total) if shell_of else "").encode())
    out.chmod(out.stat().st_mode | (out.stat().st_mode & 0o444) >> 2)  # who may read it may run it
    return Written(out, total, model.size, unpacked, with_python)


def _head(line: str, shell: str) -> str:
    """The first lines: for Python, or a program of the shell."""
    return "\n".join(["#!/bin/sh" if shell else "#!/usr/bin/env python3", _CUT_OFF, line, shell])


def _check_room(out: Path, model: BundledModel) -> None:
    needs = model.stored_bytes() + _PROGRAM_BYTES
    with writing(out):
        free = shutil.disk_usage(out.absolute().parent).free
    if free < needs:
        raise DiskFull(
            f"No room for {out}.",
            [f"it takes up to {size(needs)}, and {size(free)} are free"],
            ["name a place on another disk"],
        )


def _align(file: IO[bytes]) -> int:
    """Go to where the next part begins; return the place."""
    return file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)


def _append(file: IO[bytes], found: Sequence[Member], progress: Progress) -> tuple[int, Archive]:
    """Append a part of packed files; return where it begins, and what was written."""
    begin, total = _align(file), sum(path.stat().st_size for _, path in found)
    return begin, write_archive(file, found, lambda done: progress("packing", done, total))


def _settings(
    model: BundledModel, options: Mapping[str, Sequence[str]], begin: int, archive: Archive
) -> dict[str, Any]:
    """Return what the program of the bundle reads."""
    return {
        "name": model.name,
        "version": __version__,
        "cache": CACHE.variable,
        "packages": {"begin": begin, **asdict(archive)},
        "extension": EXTENSION_SUFFIXES[0],
        "made_by": f"Python {sys.version_info[0]}.{sys.version_info[1]} for {EXTENSION_SUFFIXES[0].strip('.')}",
        "interpreter": f"python{sys.version_info[0]}.{sys.version_info[1]}",
        "modules": NEEDED,
        "options": {name: list(given) for name, given in options.items()},
    }


def _append_zip(file: IO[bytes], settings: Mapping[str, Any], licenses: str) -> None:
    """Append the zip. It is written by itself: its places count from its own beginning."""
    with tempfile.TemporaryFile() as alone:
        with zipfile.ZipFile(alone, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("__main__.py", Path(start.__file__).read_text("utf-8"))
            archive.writestr("bundle.json", json.dumps(settings, indent=1))
            archive.writestr("LICENSES.txt", licenses)
        alone.seek(0)
        shutil.copyfileobj(alone, file)
