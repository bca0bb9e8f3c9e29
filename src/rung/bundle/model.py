"""The model of a bundle: which file it is, under which license, and how its bytes are copied."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rung.bundle.packages import own_license
from rung.core.errors import BadFile, UsageError
from rung.core.text import quoted
from rung.models.card import ModelCard
from rung.models.files.gguf import Extent, find_model, read_header
from rung.models.lookup import name_of
from rung.models.store import folder
from rung.models.store.starters import Starter, Terms, starters

#: Licenses that ask nobody to accept anything, as model cards name them.
_OPEN = {
    "apache-2.0",
    "mit",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc0-1.0",
    "cc-by-4.0",
    "cc-by-sa-4.0",
    "unlicense",
    "isc",
}
_CHUNK = 16 << 20


@dataclass(frozen=True)
class BundledModel:
    """A model to put into a bundle. ``license`` is its name, empty where nobody says; ``links`` lead to its text."""

    path: Path
    extent: Extent
    name: str
    license: str
    links: tuple[str, ...]
    terms: Terms | None

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.extent.end - self.extent.begin

    def stored_bytes(self) -> int:
        """Return the bytes that it takes on a disk: less than ``size`` for a file with holes."""
        blocks = getattr(self.path.stat(), "st_blocks", None)  # Windows has none
        return self.size if blocks is None else min(self.size, 512 * blocks)

    def license_text(self) -> str:
        """Return the license page of the model: notice, links, and the full text where that is known."""
        lines = [f"{self.name}: {self.license or 'its file names no license'}", *self.links]
        lines += [self.terms.notice, *self.terms.links] if self.terms else []
        licenses = sorted(each for each in self.path.parent.glob("LICENSE*") if each.is_file())
        texts = [each.read_text("utf-8", "replace") for each in licenses]
        if not texts and self.license.lower() == "apache-2.0":
            texts = [own_license()]
        return "\n\n".join(["\n".join(dict.fromkeys(lines)), *texts])


def bundled_model(card: ModelCard, typed: str) -> BundledModel:
    """Return the model of a card; ``typed`` is its name as a person wrote it. Raises ``UsageError`` for one that is not
    a single GGUF file."""
    path = Path(card.path)
    extent = find_model(path) if len(card.files) == 1 and path.is_file() else None
    if extent is None:
        raise UsageError(
            f"{typed} is not a single GGUF file, and a bundle has one.",
            [f"it has {len(card.files)} files"],
            [f"rung convert {quoted(typed)} model.gguf", "rung bundle model.gguf model.pyz"],
            code="model-not-one-file",
        )
    metadata = read_header(path).metadata
    stored = next((each for each in folder.manifests()[0] if each.path == path), None)
    starter = _starter(extent)
    stated = [starter.license] if starter else [stored.license] if stored else []
    license = next((each for each in (*stated, _text(metadata.get("general.license"))) if each), "")
    links = tuple(text for key in ("link", "name") if (text := _text(metadata.get(f"general.license.{key}"))))
    named = starter.name if starter else name_of(path)
    name = path.stem if named == str(path) else named.rpartition("/")[2]
    return BundledModel(path, extent, name, license, links, _terms(starter, name, license, links))


def _starter(extent: Extent) -> Starter | None:
    """The starter whose file this is, by its size: two files of exactly as many bytes are one."""
    return next((each for each in starters().values() if each.size == extent.end - extent.begin), None)


def _text(value: object) -> str:
    return value.strip()[:500] if isinstance(value, str) else ""


def _terms(starter: Starter | None, name: str, license: str, links: tuple[str, ...]) -> Terms | None:
    """The terms that come with a model: those of a starter, or a license that is not one of the open ones."""
    if starter is not None:
        return starter.terms
    if not license or license.lower() in _OPEN:
        return None
    return Terms(license.lower(), f"{name} comes under the license {license}: read it before you pass it on.", links)


def copy_model(model: BundledModel, out: IO[bytes], progress: Callable[[int, int], None]) -> str:
    """Copy a model to where ``out`` stands, holes of its file as holes; return the SHA-256 of its bytes in hex.

    ``progress`` is called with (bytes done, bytes in all). Raises ``OSError``, and ``BadFile`` where the file was cut.
    """
    digest, begin, end = hashlib.sha256(), model.extent.begin, model.extent.end
    start = out.tell()
    with open(model.path, "rb") as file:
        for first, last, hole in _pieces(file, begin, end):
            file.seek(first)
            out.seek(start + first - begin)
            for at in range(first, last, _CHUNK):
                count = min(_CHUNK, last - at)
                data = bytes(count) if hole else file.read(count)
                if len(data) != count:
                    raise BadFile(f"{model.path} became shorter while it was read.", code="file-truncated")
                digest.update(data)
                if not hole:
                    out.write(data)
                progress(at + count - begin, end - begin)
    out.seek(start + end - begin)
    out.truncate()  # a hole at the end
    return digest.hexdigest()


def _pieces(file: IO[bytes], begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the parts [first, last) of a file in order, and whether each is a hole, which reads as zeros."""
    at = begin
    while at < end:
        first = _next_data(file, at, end)
        if first > at:
            yield at, first, True
        at = min(os.lseek(file.fileno(), first, os.SEEK_HOLE), end) if first < end and hasattr(os, "SEEK_HOLE") else end
        if at > first:
            yield first, at, False


def _next_data(file: IO[bytes], at: int, end: int) -> int:
    """Where a file has data from ``at`` on; ``end`` where only a hole is left. Systems without holes have it all."""
    if not hasattr(os, "SEEK_DATA"):
        return at
    try:
        return min(os.lseek(file.fileno(), at, os.SEEK_DATA), end)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        raise
