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
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rung.bundle import start
from rung.bundle.model import BundledModel, copy_model
from rung.bundle.packages import (
    NEEDED,
    Member,
    Package,
    check_possible,
    compiled,
    interpreter_files,
    library_licenses,
    license_texts,
    licenses,
    members,
    needed,
    shell_lines,
    write_archive,
)
from rung.bundle.releases import extension_of, of_other_releases, release_name
from rung.core.errors import DiskFull, UsageError
from rung.core.files import writing, written_whole
from rung.core.settings import CACHE
from rung.core.text import size
from rung.core.version import PACKAGE, __version__
from rung.kernels.cpu.target import sources_hash
from rung.models.card import ModelCard
from rung.models.files.gguf import BUNDLE_ALIGNMENT, model_line

#: How a child finds rung: where this process does.
_CHILD = (
    "import json, runpy, sys; sys.path[:], sys.argv[1:] = json.loads(sys.argv[1]); "
    "runpy.run_module('rung', run_name='__main__')"
)
#: Seconds that a model has for its first token: kernels are compiled and proved.
_SECONDS = 600


@dataclass(frozen=True)
class WarmedUp:
    """The files that are ready, by their places; ``problem`` says why there are none."""

    members: tuple[Member, ...] = ()
    problem: str = ""

    @property
    def prefix_bytes(self) -> int:
        """Return the bytes of the keys and values of prompts."""
        return sum(path.stat().st_size for name, path in self.members if name.parts[0] == "prefixes")


def warm_up(
    model: Path, packages: Sequence[Package], options: Sequence[str], system: str | None, folder: Path
) -> WarmedUp:
    """Run a model for a token in a child process that has ``packages`` and no others, as a bundle; return the kernels
    that are compiled then, and, kept in ``folder``, the keys and values of ``system``. Raises ``OSError``."""
    arguments = ["run", str(model), "Hello", "--max-tokens", "1", "--quiet", *options]
    if system is not None:
        arguments += ["--system", system, "--prefix-cache", str(folder)]
    path = [str(_linked(packages, folder / "packages")), *start.standard_library(sys.path)]
    command = [sys.executable, "-P", "-c", _CHILD, json.dumps([path, arguments])]
    try:
        output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return WarmedUp(problem=f"it did not answer within {_SECONDS} s")
    if output.returncode:
        return WarmedUp(problem=next(iter(output.stderr.strip().splitlines()), f"it ended with {output.returncode}"))
    kernels = CACHE.read() / "kernels" / sources_hash()
    found = [(PurePosixPath("kernels", path.relative_to(kernels.parent).as_posix()), path) for path in _below(kernels)]
    found += [(PurePosixPath("prefixes", path.name), path) for path in sorted(folder.glob("*.kv"))]
    return WarmedUp(tuple(found))


def _linked(packages: Sequence[Package], folder: Path) -> Path:
    """Make a folder of links to rung and packages, so that nothing else is found; return it."""
    folders = {"rung": PACKAGE}
    for package in packages:
        for name in {path.parts[0] for path, _ in package.files()}:
            folders[name] = Path(str(package.distribution.locate_file(name)))
    folder.mkdir()
    for name, origin in folders.items():
        (folder / name).symlink_to(origin.absolute(), origin.is_dir())
    return folder


def _below(folder: Path) -> list[Path]:
    return sorted(
        Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name.endswith(("nbi", "nbc"))
    )


Progress = Callable[[str, int, int], None]
#: What the program takes in a bundle at most, and unpacked: a disk must have as much.
_PROGRAM_BYTES = 150 << 20
#: Python reads this line where the zip at the end is missing, and says it: no encoding has that name.
_CUT_OFF = "# coding: this-rung-bundle-was-cut-off--copy-the-file-again"


@dataclass(frozen=True)
class Options:
    """Settings of a bundle: ``context`` and ``system`` (prompt) are settings that it starts with; ``with_python``:
    this Python travels too; ``any_python``: packages for other releases of Python do; ``warm``: compiled kernels, and
    what the system prompt computes, travel."""

    context: int | None = None
    system: str | None = None
    with_python: bool = False
    any_python: bool = False
    warm: bool = True

    @property
    def loading(self) -> list[str]:
        """Return the options of a load."""
        return [] if self.context is None else ["--context", str(self.context)]

    def of_commands(self, name: str) -> dict[str, list[str]]:
        """Return the options of each command of the bundle of a model called ``name``."""
        both = self.loading + ([] if self.system is None else ["--system", self.system])
        return {"serve": ["--open", "--alias", name, *both], "run": both}


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


def check_system(card: ModelCard, system: str | None) -> None:
    """Raise ``UsageError`` for a system prompt of a model that holds no conversation."""
    if system is not None and card.chat_template is None:
        raise UsageError(
            f"{card.name} has no chat template, so no system prompt.",
            ["it continues text"],
            ["the same command without --system"],
            code="chat-template-missing",
        )


def write_bundle(
    model: BundledModel,
    out: Path,
    options: Options,
    progress: Progress = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Written:
    """Write a bundle to ``out``, whole or not at all. ``on_note`` hears why nothing is ready in it, and which
    release of Python has no packages.

    Raises ``SoftwareMissing``, ``DiskFull``, ``UsageError`` where ``out`` cannot be written, ``BadFile``.
    """
    if options.with_python:
        check_possible()
    packages = needed()
    _check_room(out, model)
    with writing(out), written_whole(out) as temporary, open(temporary, "r+b") as file:
        file.seek(BUNDLE_ALIGNMENT)
        sha256 = copy_model(model, file, lambda done, total: progress("copying", done, total))
        line = model_line(model.size, sha256)
        files = members(packages)
        libraries = {name.name: path for name, path in files if name.parts[0] == "libraries"}
        settings = _settings(model, options, sorted(libraries))
        settings |= _append_packages(file, packages, files, options, progress, on_note)
        texts, shell_of = library_licenses(libraries.values()), None
        if options.with_python:
            python = interpreter_files(compiled(files))
            settings["python"] = _append(file, python, progress)
            texts = license_texts(python)
            shell_of = partial(shell_lines, settings["python"], cache=CACHE.variable)
        if options.warm:
            settings["ready"] = _append_ready(file, temporary, line, packages, options, progress, on_note)
        _align(file)
        _append_zip(file, settings, licenses(packages, model.license_text(), texts))
        total = file.tell()
        _write_head(file, line, shell_of(total) if shell_of else "")
    out.chmod(out.stat().st_mode | (out.stat().st_mode & 0o444) >> 2)  # who may read it may run it
    unpacked = sum(settings[name]["unpacked"] for name in ("packages", "python", "ready") if settings.get(name))
    return Written(out, total, model.size, unpacked, options.with_python)


def _append_packages(
    file: IO[bytes],
    packages: Sequence[Package],
    files: Sequence[Member],
    options: Options,
    progress: Progress,
    on_note: Callable[[str], None],
) -> dict[str, Any]:
    """Append rung and its packages, also those for other releases of Python where ``options`` want them; return the
    settings that say where they are and for which Pythons."""
    releases, more = [sys.version_info[:2]], list[Member]()
    with tempfile.TemporaryDirectory() as folder:
        if options.any_python:
            more, whole, problems = of_other_releases(packages, files, Path(folder), progress)
            releases = sorted(releases + whole)
            for problem in problems:
                on_note(problem)
        return {
            "packages": _append(file, [*files, *more], progress),
            "extensions": [extension_of(each) for each in releases],
            "made_for": f"Python {', '.join(map(release_name, releases))} on {sysconfig.get_platform()}",
        }


def _write_head(file: IO[bytes], line: str, shell: str = "") -> None:
    """Write the first lines: for Python, or a program of the shell."""
    file.seek(0)
    first = "#!/bin/sh" if shell else "#!/usr/bin/env python3"
    file.write("\n".join([first, _CUT_OFF, line, shell]).encode())


def _append_ready(
    file: IO[bytes],
    temporary: Path,
    line: str,
    packages: Sequence[Package],
    options: Options,
    progress: Progress,
    on_note: Callable[[str], None],
) -> dict[str, Any] | None:
    """Run the model that was written, and append what it leaves: its kernels, and what the system prompt computed."""
    end = file.tell()
    _write_head(file, line)
    file.flush()
    file.seek(end)
    with tempfile.TemporaryDirectory() as folder:
        progress("running the model", 0, 1)
        ready = warm_up(temporary, packages, options.loading, options.system, Path(folder))
        if ready.problem:
            on_note(f"The bundle has no compiled kernels, and compiles them where it starts: {ready.problem}")
            return None
        return {**_append(file, ready.members, progress), "prefix_bytes": ready.prefix_bytes}


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
    return file.seek(-(-file.tell() // BUNDLE_ALIGNMENT) * BUNDLE_ALIGNMENT)


def _append(file: IO[bytes], found: Sequence[Member], progress: Progress) -> dict[str, Any]:
    """Append a part of packed files; return where it begins, and what was written."""
    begin, total = _align(file), sum(path.stat().st_size for _, path in found)
    return {"begin": begin, **asdict(write_archive(file, found, lambda done: progress("packing", done, total)))}


def _settings(model: BundledModel, options: Options, libraries: Sequence[str]) -> dict[str, Any]:
    """Return the settings that the program of the bundle reads; what its parts are is added later."""
    return {
        "name": model.name,
        "version": __version__,
        "cache": CACHE.variable,
        "libraries": libraries,
        "interpreter": f"python{sys.version_info[0]}.{sys.version_info[1]}",
        "modules": NEEDED,
        "options": options.of_commands(model.name),
        "ready": None,
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
