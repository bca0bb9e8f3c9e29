"""Find where photographs were taken: pycolmap's SIFT, which look alike, matching and mapping on the CPU."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile, SoftwareMissing, UsageError
from rung.core.files import writing
from rung.core.shield import Workers
from rung.core.text import count
from rung.splats.scenes import archive, colmap, video
from rung.splats.scenes.pictures import SUFFIXES, settings_of

Floats = npt.NDArray[np.float32]

#: Words, rounds in which they are found, and descriptors that are looked at in all, and of each photograph.
_WORDS, _ROUNDS, _LEARNT, _EACH = 32, 8, 40_000, 1000


def descriptors(pycolmap: ModuleType, database: Path, names: list[str]) -> list[Floats]:
    """SIFT descriptors [N, 128] of each photograph, the first of them, in the order of ``names``."""
    opened = pycolmap.Database.open(str(database))
    try:
        numbers = {image.name: image.image_id for image in opened.read_all_images()}
        found = [opened.read_descriptors(numbers[name]).data[:_EACH] if name in numbers else None for name in names]
    finally:
        opened.close()
    return [np.zeros((0, 128), np.float32) if each is None else np.asarray(each, np.float32) for each in found]


def _nearest(rows: Floats, words: Floats) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.argmin((words * words).sum(1) - 2 * rows @ words.T, axis=1)
    return found


def _words(rows: Floats) -> Floats:
    """Centers [_WORDS, 128] of descriptors by Lloyd's rounds; the same for the same descriptors."""
    chance = np.random.default_rng(0)
    rows = rows[chance.permutation(len(rows))[:_LEARNT]]
    words = rows[:_WORDS].copy()
    for _ in range(_ROUNDS):
        near = _nearest(rows, words)
        for word in range(len(words)):
            own = rows[near == word]
            if len(own):
                words[word] = own.mean(0)
    return words


def alike_pairs(each: list[Floats], most: int) -> Iterable[tuple[int, int]]:
    """Pairs (a, b), a < b, of photographs: each with the ``most`` that look most like it."""
    words = _words(np.concatenate(each))
    signs = np.zeros((len(each), len(words), 128), np.float32)
    for sign, rows in zip(signs, each, strict=True):
        np.add.at(sign, near := _nearest(rows, words), rows - words[near])
    signs = np.sign(signs) * np.sqrt(np.abs(signs))  # so that patterns which repeat do not outvote the rest
    flat = signs.reshape(len(each), -1)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    close = flat @ flat.T
    np.fill_diagonal(close, -np.inf)
    found = set()
    for a, row in enumerate(close):
        found |= {(min(a, int(b)), max(a, int(b))) for b in np.argsort(-row, kind="stable")[:most] if b != a}
    return sorted(found)


#: Up to so many photographs every two are compared; of more those that follow each other, and those that look alike.
_EXHAUSTIVE, _FOLLOWING, _ALIKE = 150, 10, 20
#: SIFT's pictures are at most so long, with at most so many features: twice as many take four times as long to match.
_SIDE, _FEATURES = 2000, 4096
#: Photographs that a scene needs, and the share of them that must be placed.
_LEAST, _ENOUGH = 3, 0.3
_SEED = 0
#: How folders begin in which cameras are being found.
_WORK = ".sfm-"

Note = Callable[[str], None]


class Placed(NamedTuple):
    """Hold what was found: photographs that have a camera now, those that have none, and points."""

    photographs: int
    unplaced: tuple[str, ...]
    points: int


def is_video(source: Path) -> bool:
    """Return whether photographs are to be taken out of it, by its suffix."""
    return source.suffix.lower() in video.SUFFIXES and source.is_file()


def photographs_of(source: Path) -> tuple[Path, list[str]]:
    """The folder of the photographs of ``source`` (itself, or ``images`` in it), and their names in it, sorted."""
    folder = source / "images" if (source / "images").is_dir() else source
    names = [
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES and file.is_file() and not file.name.startswith(".")
    ]
    return folder, sorted(names)


def reconstruct(
    source: Path, out: Path, *, max_images: int | None = None, threads: int = -1, note: Note = lambda text: None
) -> Placed:
    """Makes ``out`` a scene: photographs in ``images``, COLMAP's model in ``sparse/0``. Nothing is downloaded.

    ``source`` is a folder or zip file of photographs, or a video, of which the sharpest frames are taken. ``out`` must
    not hold a scene. What is found is there whole or not at all. Raises ``UsageError``, ``BadFile`` where too few
    photographs can be placed, ``SoftwareMissing`` without pycolmap (or ffmpeg for a video), ``DiskFull``.
    """
    pycolmap = _pycolmap()
    if (out / "sparse").exists():
        raise UsageError(f"{out} holds a scene already.", [], ["give another --out"], code="output-exists")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(f"{_WORK}*"):  # of an attempt that was killed
        shutil.rmtree(left, ignore_errors=True)
    with writing(out), tempfile.TemporaryDirectory(dir=out, prefix=_WORK) as temporary:
        work = Path(temporary)
        names = _gather(source, work / "images", max_images, note)
        model = map_photographs(pycolmap, work, names, threads, note)
        placed = {image.name for image in model.images.values()} if model is not None else set()
        unplaced = tuple(name for name in names if name not in placed)
        if model is None or len(placed) < max(_LEAST, _ENOUGH * len(names)):
            raise BadFile(
                f"{source}: only {len(placed)} of {count(len(names), 'photograph')} show places that others show too.",
                [f"not placed: {', '.join(unplaced[:10])}" + (" ..." if len(unplaced) > 10 else "")],
                ["take photographs that overlap by two thirds, from many places, sharp and in the same light"],
            )
        (work / "0").mkdir()
        model.write_binary(str(work / "0"))
        _give(work / "images", out / "images")
        (work / "sparse").mkdir()
        (work / "0").replace(work / "sparse/0")
        (work / "sparse").replace(out / "sparse")
    points = len(colmap.points(out / "sparse/0")[0])
    note(f"{count(len(placed), 'camera')} and {count(points, 'point')} found")
    if unplaced:
        note(f"no place found for {', '.join(unplaced)}")
    return Placed(len(placed), unplaced, points)


def posed(source: Path, out: Path, *, threads: int, note: Note) -> Path:
    """The scene that was made of ``source`` in ``out``, made now if it is not there. Raises as ``reconstruct``."""
    if not (out / "sparse/0").is_dir():
        reconstruct(source, out, threads=threads, note=note)
    return out


def _pycolmap() -> ModuleType:
    try:
        found = importlib.import_module("pycolmap")
    except ImportError as error:
        raise SoftwareMissing(
            "pycolmap finds out where photographs were taken, and is not installed.",
            [str(error)],
            ["pip install 'rung[splats]'"],
        ) from error
    found.logging.minloglevel = 3  # what it could not do is seen from what it returns
    found.set_random_seed(_SEED)
    return found


def _gather(source: Path, images: Path, most: int | None, note: Note) -> list[str]:
    """Links or copies the photographs, or a video's sharpest frames, to ``images``; their names."""
    images.mkdir()
    if is_video(source):
        names = video.sharpest(source, images, most)
        note(f"taken are the {len(names)} sharpest frames of {source}")
        return names
    folder, names = photographs_of(archive.unpacked(source) if source.suffix.lower() == ".zip" else source)
    if most is not None and most < len(names):
        names = [names[index * len(names) // most] for index in range(most)]
    if len(names) < _LEAST:
        raise BadFile(
            f"{source} holds {count(len(names), 'photograph')}; places are found from {_LEAST} and more.",
            [f"looked in {folder}"],
            ["give a folder of photographs or a video"],
        )
    for name in names:
        target = images / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link((folder / name).resolve(), target)
        except OSError:  # another disk
            shutil.copyfile(folder / name, target)
    return names


def _give(images: Path, target: Path) -> None:
    """Moves the photographs to where they stay, beside or over those that an attempt left."""
    for file in sorted(images.rglob("*")):
        if file.is_file():
            target_file = target / file.relative_to(images)
            target_file.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target_file)


def map_photographs(pycolmap: ModuleType, work: Path, names: list[str], threads: int, note: Note) -> Any:
    """Return the largest model of the photographs in ``work/images``; ``None`` if there is none."""
    database, images = work / "database.db", work / "images"
    note(f"looking for features in {count(len(names), 'photograph')}")
    _find_features(pycolmap, database, images, names, threads)
    _match(pycolmap, database, names, threads, note)
    note("placing the cameras")
    options = pycolmap.IncrementalPipelineOptions(num_threads=threads, random_seed=_SEED, min_model_size=_LEAST)
    paths = (str(database), str(images), str(_new(work / "models")))
    models = _run(pycolmap, pycolmap.incremental_mapping, *paths, options=options)
    return max(models.values(), key=lambda model: int(model.num_reg_images()), default=None)


def _find_features(pycolmap: ModuleType, database: Path, images: Path, names: list[str], threads: int) -> None:
    extraction = pycolmap.FeatureExtractionOptions(num_threads=threads, use_gpu=False, max_image_size=_SIDE)
    extraction.sift.max_num_features = _FEATURES
    for group in _cameras(images, names):
        _run(
            pycolmap,
            pycolmap.extract_features,
            str(database),
            str(images),
            image_names=group,
            camera_mode=pycolmap.CameraMode.SINGLE,
            reader_options=pycolmap.ImageReaderOptions(camera_model="RADIAL"),
            extraction_options=extraction,
            device=pycolmap.Device.cpu,
        )


def _match(pycolmap: ModuleType, database: Path, names: list[str], threads: int, note: Note) -> None:
    """Compares the features of every two photographs, of many only those that may show the same."""
    matching = pycolmap.FeatureMatchingOptions(num_threads=threads, use_gpu=False)
    how: dict[str, Any] = {"matching_options": matching, "device": pycolmap.Device.cpu}
    if len(names) <= _EXHAUSTIVE:
        note("comparing every two of them")
        _run(pycolmap, pycolmap.match_exhaustive, str(database), **how)
        return
    note("comparing those that follow each other, and those that look alike")
    pairing = pycolmap.SequentialPairingOptions(overlap=_FOLLOWING, loop_detection=False)
    _run(pycolmap, pycolmap.match_sequential, str(database), pairing_options=pairing, **how)
    alike = alike_pairs(descriptors(pycolmap, database, names), _ALIKE)
    compare(pycolmap, database, ((names[a], names[b]) for a, b in alike), **how)


def compare(pycolmap: ModuleType, database: Path, pairs: Iterable[tuple[str, str]], **how: Any) -> None:
    """Matches these pairs of photographs of COLMAP's database."""
    listed = database.with_name("pairs.txt")
    with _numbered(database) as numbers:
        known = [(numbers[a], numbers[b]) for a, b in pairs if a in numbers and b in numbers]
        listed.write_text("".join(f"{a} {b}\n" for a, b in known))
        options = pycolmap.ImportedPairingOptions(match_list_path=str(listed))
        _run(pycolmap, pycolmap.match_image_pairs, str(database), pairing_options=options, **how)


@contextlib.contextmanager
def _numbered(database: Path) -> Iterator[dict[str, int]]:
    """Photographs are called by their numbers while in the block: a list of pairs holds no names with blanks."""
    rename = "UPDATE images SET name = ? WHERE image_id = ?"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        names = connection.execute("SELECT name, image_id FROM images").fetchall()
        with connection:
            connection.executemany(rename, [(str(number), number) for _, number in names])
        yield dict(names)
        with connection:
            connection.executemany(rename, names)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _cameras(images: Path, names: list[str]) -> list[list[str]]:
    """Photographs by camera: those of one size, make, model and focal length, as their headers say."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        try:
            groups.setdefault(settings_of(images / name), []).append(name)
        except BadFile:
            continue  # a photograph that cannot be read gets no place, which is said
    return list(groups.values())


def _run(pycolmap: ModuleType, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Calls into COLMAP in a thread, so that Ctrl-C is heard; raises ``BadFile`` for what it says is wrong."""
    token = pycolmap.CancellationToken()
    with Workers(1) as pool:
        outcome = pool.submit(function, *arguments, cancellation_token=token, **more)
        try:
            return outcome.result()
        except (RuntimeError, ValueError) as error:
            raise BadFile(
                f"pycolmap could not go on: {error}", [], ["take out photographs that are damaged"]
            ) from error
        except BaseException:
            token.cancel()
            raise
