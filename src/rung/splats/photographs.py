"""The photographs of a scene at training size: turned upright, reduced, undistorted, and held within a budget."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile, UsageError
from rung.core.files import trim, used, write_whole
from rung.core.settings import CACHE
from rung.core.shield import Outcome, Workers
from rung.core.text import count
from rung.models.card import SceneCard, View
from rung.splats.scenes import lenses, pictures
from rung.splats.scenes.pictures import Header

Bytes = npt.NDArray[np.uint8]

#: More corrupt photographs than this share, and a scene is refused.
_CORRUPT = 0.1
#: Raised whenever undistortion computes something else: pictures kept on disk are made again.
_VERSION = 1
#: Bytes of undistorted pictures that are kept; those of the last day stay in any case.
_KEPT = 20 << 30


class Shot(NamedTuple):
    """A photograph: ``rgb`` uint8 [H, W, 3], and ``alpha`` uint8 [H, W] where it has a mask or is transparent in
    places (255: counts, opaque)."""

    rgb: Bytes
    alpha: Bytes | None

    @property
    def bytes(self) -> int:
        """Return the size in memory, in bytes."""
        return self.rgb.nbytes + (0 if self.alpha is None else self.alpha.nbytes)


def transparent(alpha: str | None, view: View) -> bool:
    """Return whether what a photograph leaves open shows the background, by the option of that name; by default what no
    mask leaves open."""
    return alpha == "transparent" or (alpha is None and not view.mask)


def as_stored(card: SceneCard) -> SceneCard:
    """The scene with cameras as large as their photographs are, by the header of one photograph of each camera: they
    may have been found on others, larger or smaller. What cannot be read, or has another shape, stays as it is."""
    sizes = dict[View, _Fit | None]()
    found = []
    for view in card.views:
        camera = dataclasses.replace(view, name="", image="", mask="", split="", pose=())
        if camera not in sizes:
            try:
                sizes[camera] = _fit(view, pictures.header_of(Path(view.image)))
            except BadFile:
                sizes[camera] = None
        fit = sizes[camera]
        found.append(_sized(view, fit.width, fit.height) if fit else view)
    return dataclasses.replace(card, views=tuple(found))


class Photographs:
    """Photographs of a scene at training size, undistorted, through a cache of so many bytes.

    ``views`` are pinhole cameras at training size, in the order of the card without those left out, which ``notes``
    name. ``max_resolution`` is that of the longer side in pixels; nothing is enlarged. The first photographs that fit
    into ``budget`` bytes stay in memory, the others are decoded each time. Undistorted ones are kept as files under
    ``cache`` (by default in rung's cache). May be used by several threads.

    Raises ``BadFile`` where more than a tenth are corrupt or none is left, and ``SoftwareMissing`` without a decoder.
    """

    def __init__(
        self, card: SceneCard, budget: int, max_resolution: int | None = None, cache: Path | None = None
    ) -> None:
        self._folder = cache or CACHE.read() / "undistorted"
        self._writable, self._trimmed = True, False
        self._budget, self._cached_bytes = budget, 0
        self._shots: dict[int, Shot] = {}
        self._coming: dict[int, Outcome[Shot]] = {}
        self._lock = threading.Lock()
        self._ahead = Workers(1)
        corrupt, foreign, plans = list[str](), list[str](), list[_Plan]()
        for view in card.views:
            try:
                headers = [pictures.header_of(Path(file), whole=True) for file in (view.image, view.mask) if file]
            except BadFile as error:
                corrupt.append(f"{view.name}: {'; '.join(error.facts) or error.cause}")
                continue
            fits = [fit for header in headers if (fit := _fit(view, header))]
            if len(fits) < len(headers):
                foreign.append(view.name)
            else:
                plans.append(_planned(view, fits, max_resolution))
        _check(card, corrupt, foreign, len(plans))
        self._plans = plans
        self.views = tuple(plan.target for plan in plans)
        self.notes = tuple(
            f"left out, {why}: {', '.join(names)}"
            for why, names in (("corrupt", corrupt), ("another aspect ratio than the camera's", foreign))
            if names
        )

    @property
    def memory_bytes(self) -> int:
        """Return the size of the pictures in memory, in bytes."""
        return self._cached_bytes

    def shot(self, index: int) -> Shot:
        """The photograph of ``views[index]`` (read only). Raises ``BadFile`` if it cannot be read any more."""
        with self._lock:
            found = self._shots.get(index)
            coming = self._coming.pop(index, None)
        if found is None:
            found = coming.result() if coming else self._read(index)
        return found

    def expect(self, index: int) -> None:
        """Begins to read a photograph that will be asked for, in a thread beside."""
        with self._lock:
            if index not in self._shots and index not in self._coming:
                self._coming[index] = self._ahead.submit(self._read, index)

    def _read(self, index: int) -> Shot:
        shot = self._undistorted(self._plans[index])
        with self._lock:
            if index not in self._shots and self._cached_bytes + shot.bytes <= self._budget:
                self._shots[index] = shot
                self._cached_bytes += shot.bytes
        return shot

    def _undistorted(self, plan: _Plan) -> Shot:
        if plan.reduced.lens == "pinhole":
            return _decoded(plan)
        kept, target = self._folder / f"{plan.key}.png", plan.target
        if kept.is_file():
            try:
                used(kept)
                return _shot(pictures.pixels(kept, target.width, target.height))
            except BadFile:
                kept.unlink(missing_ok=True)  # made again
        bent = _decoded(plan)
        alpha = None if bent.alpha is None else lenses.unbent(bent.alpha, plan.reduced, target)
        shot = Shot(lenses.unbent(bent.rgb, plan.reduced, target), alpha)
        if self._writable:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                if not self._trimmed:
                    self._trimmed = True
                    trim(self._folder, _KEPT)
                write_whole(kept, pictures.png(shot.rgb, shot.alpha))
            except OSError:  # a full disk costs time, not the training
                self._writable = False
        return shot


class _Fit(NamedTuple):
    """Size of a picture as it is used, and whether it is turned for that."""

    width: int
    height: int
    lying: bool


class _Plan(NamedTuple):
    """How a photograph becomes its picture: ``reduced`` is its camera at training size, still bent; ``lying`` whether
    the picture and the mask are turned; ``key`` names all that an undistorted picture depends on."""

    reduced: View
    target: View
    lying: tuple[bool, ...]
    key: str


def _key(reduced: View, lying: tuple[bool, ...]) -> str:
    files = [Path(name) for name in (reduced.image, reduced.mask) if name]
    stamps = [(str(file.absolute()), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    camera = dataclasses.replace(reduced, name="", pose=(), split="")
    return hashlib.sha256(repr((_VERSION, stamps, camera, lying)).encode()).hexdigest()[:32]


def _fit(view: View, header: Header) -> _Fit | None:
    """How a picture fits its camera; ``None`` if it is of another shape.

    A reduced picture's sides are rounded, so each may differ by a pixel from the camera's shape. Poses were found on
    the pixels as stored unless only the turned picture has the camera's shape.
    """
    turned = [_Fit(header.height, header.width, True)] if header.lying else []
    for fit in (_Fit(header.width, header.height, False), *turned):
        if abs(fit.width * view.height - fit.height * view.width) <= view.width + view.height:
            return fit
    return None


def _sized(view: View, width: int, height: int) -> View:
    """The camera whose picture is that of ``view`` in another size."""
    across, down = width / view.width, height / view.height
    return dataclasses.replace(
        view,
        width=width,
        height=height,
        fx=view.fx * across,
        cx=view.cx * across,
        fy=view.fy * down,
        cy=view.cy * down,
    )


def _planned(view: View, fits: list[_Fit], max_resolution: int | None) -> _Plan:
    """How the picture, and the mask if ``fits`` has one, are brought to training size."""
    width, height, _ = fits[0]
    lying = tuple(fit.lying for fit in fits)
    ratio = min(1.0, (max_resolution or max(width, height)) / max(width, height))
    reduced = _sized(view, max(1, round(width * ratio)), max(1, round(height * ratio)))
    key = "" if reduced.lens == "pinhole" else _key(reduced, lying)
    return _Plan(reduced, lenses.straight(reduced), lying, key)


def _check(card: SceneCard, corrupt: list[str], foreign: list[str], left: int) -> None:
    if left and len(corrupt) <= _CORRUPT * len(card.views):
        return
    number = count(len(card.views), "photograph")
    facts = [*corrupt[:5], *(["..."] if len(corrupt) > 5 else [])]
    if corrupt:
        raise BadFile(
            f"{card.path}: {len(corrupt)} of {number} cannot be read.",
            facts,
            ["copy them again from the camera"],
            code="file-unreadable",
        )
    raise BadFile(
        f"{card.path}: none of {number} has the aspect ratio of its camera.",
        [f"the first are {', '.join(foreign[:5])}"],
        ["say where the pictures are from which the cameras were found: --images DIR"],
    )


def _shot(found: Bytes) -> Shot:
    clear = found.shape[2] == 4 and bool((found[..., 3] < 255).any())
    return Shot(np.ascontiguousarray(found[..., :3]), np.ascontiguousarray(found[..., 3]) if clear else None)


def _decoded(plan: _Plan) -> Shot:
    view = plan.reduced
    shot = _shot(pictures.pixels(Path(view.image), view.width, view.height, plan.lying[0]))
    if not view.mask:
        return shot
    mask = pictures.pixels(Path(view.mask), view.width, view.height, plan.lying[1], gray=True)
    return Shot(shot.rgb, mask if shot.alpha is None else np.minimum(mask, shot.alpha))


def split(views: Sequence[View], every: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indexes of the training views and of the test views, each in the order of the names.

    Of the names sorted, those whose place is a multiple of ``every`` are tests; 0 for none. Where the data set says
    which are which, it is followed instead, and what it names neither is not used. One view alone is trained on.
    Raises ``UsageError`` where none is left to train on.
    """
    order = sorted(range(len(views)), key=lambda index: views[index].name)
    splits = {view.split for view in views} - {""}
    if splits:
        # A data set that names only one of the two means the others by the rest.
        parts = {part: part if part in splits else "" for part in ("train", "test")}
        train, test = (tuple(i for i in order if views[i].split == parts[part]) for part in ("train", "test"))
    else:
        some = every > 0 and len(order) > 1
        test = tuple(index for rank, index in enumerate(order) if some and rank % every == 0)
        train = tuple(index for index in order if index not in test)
    if not train:
        raise UsageError(
            "No photograph is left to train on.",
            [f"{len(test)} of {len(views)} are kept for testing"],
            ["keep fewer: --eval-split 8"],
        )
    return train, test
