"""The package index as pip or uv are told to use it, read without either: which wheel, and where it is.

The pages are those of https://packaging.python.org/en/latest/specifications/simple-repository-api/, JSON or HTML.
"""

from __future__ import annotations

import base64
import configparser
import html.parser
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rung.core.errors import DownloadError
from rung.models.store import ranges

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
