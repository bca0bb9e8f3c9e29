"""Wheels of the package index: through pip, else uv, else the index itself.

pip and uv know how this machine reaches its index: mirrors, certificates, passwords. They throw away what they have
when they are stopped, so they work in a folder of ours: what is there of a wheel is kept, and the next call goes on
from it with a range request. How much has come is seen by the size of what they write, in any version of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rung.core import locks
from rung.core.errors import DownloadError
from rung.core.files import files_below
from rung.models.store import index, ranges
from rung.models.store.starters import Package

Progress = Callable[[int], None]
#: Seconds between two looks at what has come.
_EVERY = 0.1
_LAST_LINES = 3


def fetch(package: Package, folder: Path, progress: Progress) -> Path:
    """Return where a wheel is: its file, or a folder that it is unpacked in; ``folder`` is ours alone.

    ``progress`` is called with the bytes that have come. Raises ``DownloadError`` with what each way said, and
    ``OSError`` where ``folder`` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "wheel.part"
    _stop_left_over(folder)
    _rescue(folder, part)
    reasons: list[str] = []
    ways = (_continue, _by_pip, _by_uv, _by_index)
    for way in ways:
        try:
            found = way(package, folder, part, progress)
        except DownloadError as error:
            reasons.extend([error.cause, *error.facts])
            continue
        except BaseException:
            _rescue(folder, part)
            raise
        if found is not None:
            return found
    raise DownloadError(f"{package.name} {package.version} could not be fetched.", list(dict.fromkeys(reasons)))


def _continue(package: Package, folder: Path, part: Path, progress: Progress) -> Path | None:
    """Go on with a part that an earlier call left."""
    if not part.exists() or part.stat().st_size == 0:
        return None
    return _by_index(package, folder, part, progress)


def _by_index(package: Package, folder: Path, part: Path, progress: Progress) -> Path:
    address, headers = index.find_wheel(package.name, package.version)
    ranges.download(address, part, headers, progress)
    whole = folder / "whole.whl"
    os.replace(part, whole)
    return whole


def _by_pip(package: Package, folder: Path, part: Path, progress: Progress) -> Path | None:
    if importlib.util.find_spec("pip") is None:
        return None
    out = folder / "pip-out"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(out)]
    _run([*command, f"{package.name}=={package.version}"], "pip", folder, {}, progress)
    found = next(iter(out.glob("*.whl")), None)
    if found is None:
        raise DownloadError(f"pip has not brought {package.name} {package.version}.")
    part.unlink(missing_ok=True)
    whole = folder / "whole.whl"
    os.replace(found, whole)
    return whole


def _by_uv(package: Package, folder: Path, part: Path, progress: Progress) -> Path | None:
    uv = shutil.which("uv")
    if uv is None:
        return None
    out, cache = folder / "uv-out", folder / "tmp" / "uv-cache"
    command = [uv, "pip", "install", "--quiet", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(out), "--only-binary", ":all:"]
    _run([*command, f"{package.name}=={package.version}"], "uv", folder, {"UV_CACHE_DIR": str(cache)}, progress)
    part.unlink(missing_ok=True)
    return out


def _run(command: list[str], name: str, folder: Path, variables: Mapping[str, str], progress: Progress) -> None:
    """Run pip or uv with its temporary files in ``folder``, in a session of its own: Ctrl-C is ours to handle.

    Raises ``DownloadError`` with its last words.
    """
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    temporary_variables = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    words = temporary / "words"
    with open(words, "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **temporary_variables, **variables},
            start_new_session=True,
        )
    try:
        (folder / "process").write_text(locks.name_process(process.pid), encoding="utf-8")
        while process.poll() is None:
            time.sleep(_EVERY)
            progress(_largest(temporary)[0])
    finally:
        if process.poll() is None:  # before it can throw away what it has
            process.kill()
            process.wait()
        (folder / "process").unlink(missing_ok=True)
    if process.returncode:
        lines = words.read_text("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
        if any("No space left on device" in line for line in lines):
            raise OSError(28, "No space left on device", str(folder))
        raise DownloadError(f"{name} could not fetch it.", [f"{name}: {line.strip()[:200]}" for line in lines])
    shutil.rmtree(temporary, ignore_errors=True)


def _largest(folder: Path) -> tuple[int, Path | None]:
    """Return the bytes of the largest file below a folder, and the file."""
    best: tuple[int, Path | None] = (0, None)
    for path in files_below(folder):
        with contextlib.suppress(OSError):  # gone since it was listed
            if path.is_file() and path.stat().st_size > best[0]:
                best = path.stat().st_size, path
    return best


def _stop_left_over(folder: Path) -> None:
    """Stop a pip or uv that outlived the rung that started it: it would write into what is read now."""
    with contextlib.suppress(OSError):
        owner = (folder / "process").read_text(encoding="utf-8")
        if locks.is_running(owner):
            import psutil

            with contextlib.suppress(psutil.Error):
                psutil.Process(int(owner.split()[0])).kill()


def _rescue(folder: Path, part: Path) -> None:
    """Make what pip left of a wheel the part to go on from, if it is more than there is; clear the rest away."""
    here = part.stat().st_size if part.exists() else 0
    wheels = folder / "tmp"
    if wheels.is_dir():
        found = [(path.stat().st_size, path) for path in wheels.rglob("*.whl") if path.is_file()]
        if found and max(found)[0] > here:
            os.replace(max(found)[1], part)
    for name in ("tmp", "pip-out", "uv-out"):
        shutil.rmtree(folder / name, ignore_errors=True)
