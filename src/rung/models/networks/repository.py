"""Outlines of repositories of the model hub: some configurations, and the headers of weight files."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from rung.core.errors import BadFile, HubError, ModelNotFound, RungError
from rung.core.shield import Workers
from rung.core.text import size
from rung.models.architectures.family import FREQUENCY_TENSORS
from rung.models.files import gguf
from rung.models.files.gguf_remote import Far, Lost
from rung.models.files.jsonfile import LIMIT, read_object
from rung.models.files.safetensors import INDEX, LONGEST_INDEX, read_index, weight_map
from rung.models.hub import Listing, Unreachable, listing
from rung.models.hub.ranges import Ranges
from rung.models.locate import gguf_files, repository_of
from rung.models.networks import pipeline
from rung.models.networks.values import Outline

#: First bytes of a safetensors file; most headers are shorter.
_SAFETENSORS = 2**15
#: First bytes of a GGUF file, whose vocabulary stands before the list of tensors, and the most that is tried.
_GGUF, _MOST_GGUF = 2**20, 2**25
_AT_ONCE = 8


class Mirror:
    """Files of a repository below ``folder``."""

    def __init__(self, ranges: Ranges, listed: Listing, folder: Path) -> None:
        self._ranges, self._listed, self._folder = ranges, listed, folder

    def small(self, name: str, limit: int = LIMIT) -> None:
        """Copies a JSON file. Raises ``HubError`` for one that is too long to be what it is called."""
        length = self._listed.files[name]
        if length > limit:
            raise HubError(
                f"{name} of {self._listed.repository} is {size(length)} long; rung reads up to {size(limit)}."
            )
        self._local_path(name).write_bytes(self._ranges.first(name, length, length) if length else b"")

    def headers(self, names: Iterable[str]) -> None:
        """Copies the headers of safetensors and GGUF files, several at once."""
        with Workers(_AT_ONCE) as pool:
            pool.map(self._header, names)

    def _header(self, name: str) -> None:
        (self._gguf if name.lower().endswith(".gguf") else self._safetensors)(name)

    def _safetensors(self, name: str) -> None:
        length = self._listed.files[name]
        data = self._ranges.first(name, _SAFETENSORS, length)
        count = min(8 + int.from_bytes(data[:8], "little"), length, LIMIT + 8)
        if count > len(data):
            data += self._ranges.first(name, count - len(data), length, len(data))
        self._sparse(name, data, length)

    def _gguf(self, name: str) -> None:
        """The header without its vocabulary where that can be stepped over, and the small tensors that cards are made
        of."""
        length = self._listed.files[name]
        try:
            data, moved = Far(functools.partial(self._part, name), length).short()
            path = self._sparse(name, data, length - moved)
            header = gguf.read_header(path)
        except (Lost, BadFile):  # read from its beginning it is whole, or the reader says what is wrong with it
            moved = 0
            path, header = self._whole_header(name)
        for tensor in header.tensors:
            if tensor.name in FREQUENCY_TENSORS and tensor.bytes <= LIMIT:
                with open(path, "r+b") as file:
                    file.seek(tensor.offset)
                    file.write(self._ranges.first(name, tensor.bytes, length, tensor.offset + moved))

    def _part(self, name: str, first: int, count: int) -> bytes:
        length = self._listed.files[name]
        return self._ranges.first(name, count, length, first) if first < length else b""

    def _whole_header(self, name: str) -> tuple[Path, gguf.Header]:
        """Reads on until the list of tensors is whole."""
        length, count, data = self._listed.files[name], _GGUF, b""
        while True:
            data += self._ranges.first(name, count - len(data), length, len(data)) if count > len(data) else b""
            path = self._sparse(name, data, length)
            try:
                header = gguf.read_header(path)
                if min((tensor.offset for tensor in header.tensors), default=0) <= len(data) or len(data) >= length:
                    return path, header
            except BadFile:  # or the bytes that are not here yet
                if data[:4] != b"GGUF" or len(data) >= min(length, _MOST_GGUF):
                    raise
            count = min(2 * len(data), length, _MOST_GGUF)

    def _sparse(self, name: str, data: bytes, length: int) -> Path:
        path = self._local_path(name)
        with open(path, "wb") as file:
            file.write(data)
            file.truncate(length)
        return path

    def _local_path(self, name: str) -> Path:
        path = self._folder / name
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise HubError(f"{self._listed.repository} lists a file {name[:80]!r}, which lies outside of it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


_MOST_SHARDS = 1024
Open = Callable[[Path], Outline]


def outline_of_repository(
    name: str, open_path: Open, *, offline: bool, revision: str | None, seconds: float, stems: tuple[str, ...]
) -> Outline | None:
    """The outline of ``ORG/REPO``, ``ORG/REPO:Q4_K_M``, ``ORG/REPO/file.gguf``; None for other names.

    ``open_path`` opens local places, ``stems`` begin the names of weight files. ``offline``, or no hub in
    reach: what was downloaded before. Raises ``HubError``, ``ModelNotFound`` and what ``open_path`` raises.
    """
    found = repository_of(name)
    if found is None:
        return None
    repository, label, file = found
    if offline:
        return _downloaded(listing(repository, revision, offline=True)[0], label, file, open_path)
    ranges = Ranges(repository, revision, seconds)
    try:
        listed = ranges.listing()
    except Unreachable as unreachable:
        try:
            downloaded = listing(repository, revision, offline=True)[0]
        except HubError:
            raise unreachable from None
        return _downloaded(downloaded, label, file, open_path)
    with tempfile.TemporaryDirectory(prefix="rung-headers-") as temporary:
        # laid out as the hub's cache is, so that errors name the repository
        folder = Path(temporary) / f"models--{repository.replace('/', '--')}" / "snapshots" / "headers"
        folder.mkdir(parents=True)
        mirror = Mirror(ranges, listed, folder)
        location = _gguf(listed, mirror, label, file) or _folder(listed, mirror, folder, open_path, stems)
        outline = open_path(folder / location)
    kind = outline.kind if outline.kind == "pipeline" else "hub"
    return replace(outline, name=repository, kind=kind, path=name, card=None)


def _downloaded(listed: Listing, label: str | None, file: str | None, open_path: Open) -> Outline:
    assert listed.folder is not None, "offline listings are of local folders"
    ggufs = any(name.endswith(".gguf") for name in listed.files) and "config.json" not in listed.files
    return open_path(listed.folder / (gguf_files(listed, label, file)[0] if label or file or ggufs else "."))


def _gguf(listed: Listing, mirror: Mirror, label: str | None, file: str | None) -> str:
    """Mirrors a GGUF model and returns the name of its first file; empty for repositories of another kind."""
    plain = {"config.json", pipeline.INDEX} & set(listed.files)
    if not (label or file) and (plain or not any(name.endswith(".gguf") for name in listed.files)):
        return ""
    names = gguf_files(listed, label, file)
    mirror.headers(names)
    return names[0]


def _folder(listed: Listing, mirror: Mirror, folder: Path, open_path: Open, stems: tuple[str, ...]) -> str:
    """Mirrors a plain model or a pipeline."""
    if pipeline.INDEX in listed.files:
        mirror.small(pipeline.INDEX)
        for name in pipeline.components(read_object(folder / pipeline.INDEX), pipeline.INDEX):
            if f"{name}/config.json" in listed.files:
                _part(listed, mirror, folder, f"{name}/", open_path, stems)
    elif "config.json" in listed.files:
        _part(listed, mirror, folder, "", open_path, stems)
    else:
        raise ModelNotFound(
            f"{listed.repository} holds no model that rung knows",
            [f"it has {len(listed.files)} files, and no config.json, {pipeline.INDEX} or GGUF file among them"],
        )
    return "."


def _part(listed: Listing, mirror: Mirror, folder: Path, prefix: str, open_path: Open, stems: tuple[str, ...]) -> None:
    """One component: its configuration, and its weights as far as they are not known from that and the index."""
    mirror.small(f"{prefix}config.json")
    for stem in stems:
        whole, index = f"{prefix}{stem}.safetensors", f"{prefix}{stem}{INDEX}"
        if whole in listed.files:
            return mirror.headers([whole])
        if index in listed.files:
            mirror.small(index, LONGEST_INDEX)
            if not _says_all(folder / prefix, folder / index, open_path):
                mirror.headers(f"{prefix}{shard}" for shard in _shards(folder / index, listed, prefix))
            return None
    return None


def _says_all(config: Path, index: Path, open_path: Open) -> bool:
    """Return whether the configuration explains every byte of the index, so that no shard needs to be asked."""
    try:
        described = open_path(config).weight_bytes
    except RungError:
        return False
    metadata = read_index(index).get("metadata")
    return isinstance(metadata, dict) and metadata.get("total_size") == described


def _shards(index: Path, listed: Listing, prefix: str) -> list[str]:
    names = sorted(set(weight_map(index).values()))
    strangers = [name for name in names if f"{prefix}{name}" not in listed.files]
    if len(names) > _MOST_SHARDS or strangers:
        fact = f"{strangers[0][:80]} is not there" if strangers else f"it names {len(names)} files"
        raise BadFile(f"{index.name} does not belong to {listed.repository}", [fact])
    return names
