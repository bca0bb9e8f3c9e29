"""Files of trained scenes, by suffix. Everything they hold is hostile until it is checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rung.core.errors import BadFile, CannotEncode, UsageError
from rung.core.files import written_whole
from rung.splats.cloud import Cloud
from rung.splats.files import ply, sog, splat, spz


class Format(NamedTuple):
    """How files of one suffix are read, and the pieces of bytes that are written one after another."""

    read: Callable[[Path], Cloud]
    encode: Callable[[Cloud], Iterator[bytes]]


#: By the end of the name, longer ones first.
FORMATS = {
    ".compressed.ply": Format(ply.read, ply.encode_compressed),
    ".ply": Format(ply.read, ply.encode),
    ".splat": Format(splat.read, splat.encode),
    ".spz": Format(spz.read, spz.encode),
    ".sog": Format(sog.read, sog.encode),
}

_AGAIN = ["export the scene again from the program that made it"]
#: The logit of an opacity of 0.9999999.
_SURE = np.float32(16)


def suffix(path: Path, *more: str) -> str:
    """Which of ``FORMATS`` a name asks for; raises ``UsageError`` for others, which names ``more`` suffixes too."""
    found = next((end for end in FORMATS if path.name.lower().endswith(end)), None)
    if found is None:
        raise UsageError(
            f"{path.name} is no file of splats that rung knows by its name.",
            [f"suffixes: {', '.join((*FORMATS, *more))}"],
            [f"give it the name {path.stem}.ply"],
        )
    return found


def read(path: str | os.PathLike[str]) -> Cloud:
    """The splats of a file; raises ``UsageError`` for other suffixes, ``BadFile`` with what is wrong."""
    file = Path(path)
    if file.is_dir():
        raise UsageError(
            f"{file} is a folder.", [], [f"name the file in it: {file / 'splats.ply'}"], code="output-unwritable"
        )
    if not file.suffix and not file.exists():
        raise BadFile(
            f"{file} cannot be read: No such file or directory.", [], ["check the name"], code="file-unreadable"
        )
    try:
        with np.errstate(all="ignore"):  # what comes of numbers that lie is looked at below
            cloud = FORMATS[suffix(file)].read(file)
    except OSError as error:
        raise BadFile(
            f"{file} cannot be read: {error.strerror}.", [], ["check the name"], code="file-unreadable"
        ) from error
    except MemoryError as error:
        raise BadFile(f"{file} holds more splats than there is memory.", [], ["read it on a larger machine"]) from error
    endless = np.isinf(cloud.logits)  # SplatTransform writes them for a byte's 0 and 255
    cloud = cloud._replace(logits=np.where(endless, np.copysign(_SURE, cloud.logits), cloud.logits))
    if broken := _broken(cloud):
        raise BadFile(
            f"{file} is not a file of splats: its {broken} have NaN or infinite values.",
            [],
            _AGAIN,
            code="values-not-finite",
        )
    return cloud


def write(path: str | os.PathLike[str], cloud: Cloud) -> None:
    """Writes a file whole or not at all, in pieces; what a format keeps is said in its module.

    Raises ``UsageError`` for other suffixes, ``CannotEncode`` for NaN and for values beyond a format, ``OSError``.
    """
    target = Path(path)
    encode = FORMATS[suffix(target)].encode
    if broken := _broken(cloud):
        raise CannotEncode(f"{target} is not written: the splats' {broken} have NaN or infinite values.")
    with written_whole(target) as temporary, temporary.open("wb") as file:
        for piece in encode(cloud):
            file.write(piece)


def _broken(cloud: Cloud) -> str:
    return next((name for name, values in cloud._asdict().items() if not np.isfinite(values).all()), "")
