"""Scenes of photographs with known cameras: COLMAP, nerfstudio, Blender, RealityCapture. Without torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rung.core.errors import BadFile
from rung.core.text import count, quoted
from rung.models.card import SceneCard, View
from rung.splats.poses import in_picture
from rung.splats.scenes import archive, colmap, realitycapture, transforms
from rung.splats.scenes.colmap import points_of

#: More missing photographs than this share, and a scene is refused.
_MISSING = 0.1
#: Points by which it is seen where cameras look.
_LOOKED_AT = 500


def scene(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    subsample: int = 1,
    max_images: int | None = None,
) -> SceneCard:
    """Describe a scene from its files alone; pictures are not opened (only their headers, where no size is stated).

    A folder or zip file, or the only folder in it, with a COLMAP model (in itself, ``sparse``, ``colmap/sparse`` or
    their numbered subfolders; the largest), ``transforms.json``, ``transforms_train.json``, or the csv of
    RealityCapture. ``images`` is where its photographs are, by default ``images`` or where the scene says; masks are
    under ``masks`` by the same names. Every ``subsample``-th photograph is taken, and of those ``max_images`` that
    are spread evenly. Raises ``BadFile``.
    """
    folder = Path(path)
    try:
        card = _card_at(folder, images)
        if card is not None:
            # a zip file is found again by its own name, whatever becomes of the cache
            return _fewer(_present(dataclasses.replace(card, path=str(folder))), subsample, max_images)
    except OSError as error:
        raise BadFile(
            f"{error.filename or folder} cannot be read: {error.strerror or error}.",
            [],
            ["check the folder"],
            code="file-unreadable",
        ) from error
    raise _no_scene(folder)


def _card_at(path: Path, images: str | os.PathLike[str] | None) -> SceneCard | None:
    """Return the scene in a folder or zip file, or in the only folder in it; ``None`` if there is none."""
    folder = archive.unpacked(path) if path.suffix.lower() == ".zip" and path.is_file() else path
    card = _found(folder, images)
    if card is None and folder.is_dir():
        inner = [entry for entry in folder.iterdir() if entry.is_dir()]
        card = _found(inner[0], images) if len(inner) == 1 else None
    return card


def _no_scene(folder: Path) -> BadFile:
    """Return the error for a place that is not there, or holds no scene."""
    if not folder.exists():
        return BadFile(
            f"{folder} does not exist.", [], ["check the name", "rung splat train demo --out DIR"], code="path-unknown"
        )
    looked = [
        *(f"{part}/cameras.bin" for part in colmap.PLACES),
        "transforms.json",
        "transforms_train.json",
        "*.csv",
    ]
    return BadFile(
        f"{folder} holds no scene: no cameras are known.",
        [f"looked for {', '.join(looked)}"],
        [
            f"rung splat sfm {quoted(folder)} --out SCENE   # finds the cameras of photographs, or of a video"
            if folder.is_dir()
            else "name the folder that the scene is in"
        ],
    )


def _found(folder: Path, pictures: str | os.PathLike[str] | None) -> SceneCard | None:
    """The scene in that folder; ``None`` if there is none. ``pictures`` may be a folder in it."""
    images = None if pictures is None else Path(pictures)
    if images is not None and not images.is_dir() and (folder / images).is_dir():
        images = folder / images
    models = colmap.folders(folder)
    if models:
        card = _colmap(folder, models, images or folder / "images")
    elif (folder / "transforms.json").is_file():
        views, file = transforms.views(folder / "transforms.json", images=images)
        there = bool(file) and Path(file).is_file()
        notes = (f"its points are not there: {file}",) if file and not there else ()
        card = SceneCard("transforms", str(folder), _sorted(views), 0, file if there else "", notes)
    elif (folder / "transforms_train.json").is_file():
        card = _blender(folder, images)
    elif (table := realitycapture.table(folder)) is not None:
        card = SceneCard("realitycapture", str(folder), _sorted(realitycapture.views(table, images)))
    else:
        return None
    points = points_of(card)[0]
    _look(folder, card.views, points[:: max(1, len(points) // _LOOKED_AT)].astype(np.float64))
    return _masked(dataclasses.replace(card, points=len(points)), folder / "masks")


def _sorted(views: Iterable[View]) -> tuple[View, ...]:
    return tuple(sorted(views, key=lambda view: view.name))


def _colmap(folder: Path, models: list[Path], images: Path) -> SceneCard:
    read = [(colmap.images(model), model) for model in models]
    registered, model = max(read, key=lambda each: len(each[0]))
    cameras = colmap.cameras(model)
    unknown = next((image for image in registered if image.camera not in cameras), None)
    if unknown is not None:
        raise BadFile(
            f"{model}: {unknown.name} was taken by camera {unknown.camera}, which is not there.", [], colmap.AGAIN
        )
    views = [
        View(image.name, str(images / image.name), pose=image.pose, **cameras[image.camera]._asdict())
        for image in registered
    ]
    file = next((model / f"points3D.{end}" for end in ("bin", "txt") if (model / f"points3D.{end}").is_file()), None)
    notes = () if len(models) == 1 else (f"{count(len(models), 'model')}; taken is the largest, {model}",)
    return SceneCard("colmap", str(folder), _sorted(views), 0, str(file or ""), notes)


def _look(folder: Path, views: Sequence[View], points: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    """Refuses cameras of which none has any of the points in its picture: their axes must be others."""
    behind = 0
    for view in views:
        inside, depths = in_picture(view, points)
        if inside.any():
            return
        behind += not (depths > 0).any()
    if views and len(points):
        raise BadFile(
            f"{folder}: all cameras look away from the points.",
            [f"{behind} of {count(len(views), 'camera')} have every point behind them, the others none in the picture"],
            [
                "COLMAP's poses are world to camera, axes right, down, forward: write them so",
                "poses of transforms.json are camera to world, axes right, up, backward: write them so",
            ],
        )


def _blender(folder: Path, images: Path | None) -> SceneCard:
    views = []
    for split in ("train", "test"):
        path = folder / f"transforms_{split}.json"
        if path.is_file():
            views += transforms.views(path, split, images)[0]
    return SceneCard("blender", str(folder), _sorted(views))


def _masked(card: SceneCard, masks: Path) -> SceneCard:
    """With the masks that lie in that folder: ``NAME.jpg.png`` as COLMAP has them, or ``NAME.png``."""
    if not masks.is_dir():
        return card
    views = []
    for view in card.views:
        names = (transforms.inside(view.name), transforms.below(view.name))
        near = (file for name in names for file in (masks / f"{name}.png", masks / name.with_suffix(".png")))
        mask = view.mask or next((str(file) for file in near if file.is_file()), "")
        views.append(dataclasses.replace(view, mask=mask))
    number = sum(bool(view.mask) for view in views)
    notes = () if number == len(views) else (f"{number} of {count(len(views), 'photograph')} have a mask in {masks}",)
    return dataclasses.replace(card, views=tuple(views), notes=(*card.notes, *notes))


def _present(card: SceneCard) -> SceneCard:
    """The scene without photographs that are not there; refused when they are many, or none are left."""
    there = tuple(view for view in card.views if Path(view.image).is_file())
    kept = {view.name for view in there}
    missing = [view.name for view in card.views if view.name not in kept]
    if not card.views:
        raise BadFile(
            f"{card.path} has cameras, but none that took a photograph.",
            ["the list of its images, or frames, is empty"],
            ["register photographs: rung splat sfm IMAGES --out SCENE"],
        )
    if not there or len(missing) > _MISSING * len(card.views):
        raise BadFile(
            f"{card.path}: {len(missing)} of {count(len(card.views), 'photograph')} are not there.",
            [f"missing: {', '.join(missing[:5])}" + (" ..." if len(missing) > 5 else "")],
            ["say where they are: --images DIR", "copy them to where the scene names them"],
        )
    notes = [f"left out, not there: {', '.join(missing)}"] if missing else []
    notes += ["one photograph: nothing says how far away things are"] if len(there) == 1 else []
    return dataclasses.replace(card, views=there, notes=(*card.notes, *notes))


def _fewer(card: SceneCard, subsample: int, most: int | None) -> SceneCard:
    """Every so many photographs, and of those so many."""
    views = card.views[::subsample]
    if most is not None and most < len(views):
        views = tuple(views[index * len(views) // most] for index in range(most))
    if len(views) == len(card.views):
        return card
    text = f"taken are {len(views)} of {count(len(card.views), 'photograph')}"
    return dataclasses.replace(card, views=views, notes=(*card.notes, text))
