"""Scenes of photographs with known cameras, found by looking: COLMAP, nerfstudio, Blender. Without torch."""

from __future__ import annotations

import os
from pathlib import Path

from rung.core.errors import BadFile
from rung.core.text import count
from rung.models.card import SceneCard, View
from rung.splats.scenes import colmap, transforms

#: More missing photographs than this share, and a scene is refused.
_MISSING = 0.1


def scene(path: str | os.PathLike[str], images: str | os.PathLike[str] | None = None) -> SceneCard:
    """What a scene is, from its files alone; pictures are not opened (Blender's headers apart).

    A folder with a COLMAP model (in itself, ``sparse``, ``colmap/sparse`` or their numbered subfolders; the largest),
    ``transforms.json`` or ``transforms_train.json``. ``images`` is where COLMAP's photographs are, by default
    ``images``. Raises ``BadFile``.
    """
    folder = Path(path)
    try:
        models = colmap.folders(folder)
        if models:
            return _present(_colmap(folder, models, Path(images) if images is not None else folder / "images"))
        if (folder / "transforms.json").is_file():
            views, points = transforms.views(folder / "transforms.json")
            return _present(SceneCard("transforms", str(folder), _sorted(views), points_file=points))
        if (folder / "transforms_train.json").is_file():
            return _present(_blender(folder))
    except OSError as error:
        raise BadFile(
            f"{error.filename or folder} cannot be read: {error.strerror}.", [], ["check the folder"]
        ) from error
    looked = [*(f"{place}/cameras.bin" for place in colmap.PLACES), "transforms.json", "transforms_train.json"]
    raise BadFile(
        f"{folder} holds no scene: no cameras are known.",
        [f"looked for {', '.join(looked)}"],
        ["colmap automatic_reconstructor finds the cameras of photographs"],
    )


def _sorted(views: list[View]) -> tuple[View, ...]:
    return tuple(sorted(views, key=lambda view: view.name))


def _colmap(folder: Path, models: list[Path], images: Path) -> SceneCard:
    read = [(colmap.images(model), model) for model in models]
    registered, model = max(read, key=lambda each: len(each[0]))
    cameras = colmap.cameras(model)
    unknown = next((image for image in registered if image.camera not in cameras), None)
    if unknown is not None:
        raise BadFile(f"{model}: {unknown.name} was taken by camera {unknown.camera}, which is not there.", [], [])
    views = [
        View(image.name, str(images / image.name), pose=image.pose, **cameras[image.camera]._asdict())
        for image in registered
    ]
    points = next((model / f"points3D.{end}" for end in ("bin", "txt") if (model / f"points3D.{end}").is_file()), None)
    notes = () if len(models) == 1 else (f"{count(len(models), 'model')}; taken is the largest, {model}",)
    number = len(colmap.points(model)[0])
    return SceneCard("colmap", str(folder), _sorted(views), number, str(points or ""), notes)


def _blender(folder: Path) -> SceneCard:
    views = []
    for split in ("train", "test"):
        path = folder / f"transforms_{split}.json"
        if path.is_file():
            views += transforms.views(path, split)[0]
    return SceneCard("blender", str(folder), _sorted(views))


def _present(card: SceneCard) -> SceneCard:
    """The scene without photographs that are not there; refused when they are many, or none are left."""
    there = tuple(view for view in card.views if Path(view.image).is_file())
    missing = [view.name for view in card.views if view not in there]
    if not there or len(missing) > _MISSING * len(card.views):
        raise BadFile(
            f"{card.path}: {len(missing)} of {count(len(card.views), 'photograph')} are not there.",
            [f"missing: {', '.join(missing[:5])}" + (" ..." if len(missing) > 5 else "")] if missing else [],
            ["say where they are", "copy them to where the scene names them"] if missing else ["add photographs"],
        )
    notes = card.notes + ((f"left out, not there: {', '.join(missing)}",) if missing else ())
    return SceneCard(card.kind, card.path, there, card.points, card.points_file, notes)
