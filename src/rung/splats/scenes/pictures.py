"""Pictures in files: their sizes from their headers, whether they are whole, and their pixels at a size."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile, RungError, SoftwareMissing

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

Bytes = npt.NDArray[np.uint8]

_HEIC = {".heic", ".heif", ".hif"}
#: How names of photographs end.
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"} | _HEIC
#: EXIF's tag of the orientation; from 5 on width and height are exchanged.
_ORIENTATION, _LYING = 0x0112, 5
#: Make and model; the directory of how the photograph was taken, and the focal length in it.
_MAKE, _EXIF, _FOCAL = (0x010F, 0x0110), 0x8769, 0x920A
#: A JPEG file ends with this, behind which some cameras add a little.
_END_OF_JPEG, _TAIL = b"\xff\xd9", 64 * 2**10


class Header(NamedTuple):
    """Size in pixels as stored, and whether EXIF says that width and height are to be exchanged to look at it."""

    width: int
    height: int
    lying: bool


def _pillow() -> ModuleType:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise SoftwareMissing(
            "Pillow reads the pictures of a scene and is not installed.", [], ["pip install pillow"]
        ) from error


def _opened(path: Path) -> ImageFile:
    """The picture, its header read; raises ``SoftwareMissing`` for HEIC without its decoder, ``OSError``."""
    pillow = _pillow()
    if path.suffix.lower() in _HEIC:
        try:
            importlib.import_module("pillow_heif").register_heif_opener()
        except ImportError as error:
            raise SoftwareMissing(
                f"{path} is a HEIC picture, and its decoder is not installed.",
                [],
                ["pip install pillow-heif", "convert the pictures to JPEG"],
            ) from error
    picture: ImageFile = pillow.open(path)
    return picture


def _bad(path: Path, error: Exception) -> BadFile:
    return BadFile(f"{path} is no picture that can be read.", [str(error)], ["take it out of the scene"])


def size_of(path: Path) -> tuple[int, int]:
    """Width and height as stored; raises ``BadFile`` for what is no picture, ``SoftwareMissing`` without a decoder."""
    header = header_of(path)
    return header.width, header.height


def header_of(path: Path, whole: bool = False) -> Header:
    """Read the header; with ``whole`` also look at the file as far as is cheap: PNG by its check sums, JPEG by its end,
    others are decoded. Raises as ``size_of``."""
    try:
        with _opened(path) as picture:
            # Asked for its EXIF data, a PNG without them before its pixels would be decoded.
            exif = {} if picture.format == "PNG" and "exif" not in picture.info else picture.getexif()
            orientation = int(exif.get(_ORIENTATION, 1) or 1)
            found = Header(*picture.size, _LYING <= orientation <= 8)
            if whole and picture.format == "PNG":
                picture.verify()
            elif whole and not (picture.format == "JPEG" and picture.fp and _has_an_end(path, picture.fp.tell())):
                picture.load()
            return found
    except (RungError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever they like for bytes that are no picture
        raise _bad(path, error) from error


def settings_of(path: Path) -> tuple[object, ...]:
    """Return the settings that photographs of one camera and one focal length share: size, make, model, focal length in
    mm."""
    try:
        with _opened(path) as picture:
            exif = picture.getexif()
            return (*picture.size, *(str(exif.get(tag)) for tag in _MAKE), str(exif.get_ifd(_EXIF).get(_FOCAL)))
    except (RungError, MemoryError):
        raise
    except Exception as error:  # as above
        raise _bad(path, error) from error


def _has_an_end(path: Path, pixels: int) -> bool:
    """Return whether the pixels that begin there have an end; a small picture of the whole, before them, has its
    own."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL, pixels))
        return _END_OF_JPEG in file.read()


def pixels(path: Path, width: int, height: int, lying: bool = False, gray: bool = False) -> Bytes:
    """The picture as [height, width, 3], with alpha, where it has one, as [.., 4], ``gray`` as [height, width].

    16-bit values lose their lower half. ``lying`` turns it as EXIF says. Reducing takes the mean of what a pixel
    covers (Hamming's window). Raises as ``size_of``.
    """
    pillow = _pillow()
    try:
        with _opened(path) as opened:
            picture: Image = opened
            _decode_smaller(picture, *((height, width) if lying else (width, height)))
            if picture.mode.startswith("I"):
                picture = pillow.fromarray((np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
            clear = "A" in picture.getbands() or "transparency" in picture.info
            picture = picture.convert("L" if gray else "RGBA" if clear else "RGB")
            if lying:
                turned = importlib.import_module("PIL.ImageOps").exif_transpose(picture)
                picture = picture if turned is None else turned
            if picture.size != (width, height):
                picture = picture.resize((width, height), pillow.Resampling.HAMMING)
            return np.array(picture)
    except (RungError, MemoryError):
        raise
    except Exception as error:  # as above
        raise _bad(path, error) from error


def _decode_smaller(picture: Image, width: int, height: int) -> None:
    """Let a JPEG decoder leave out detail that is reduced away, where its blocks divide the picture evenly."""
    if picture.format == "JPEG" and picture.mode in ("RGB", "L") and not any(side % 8 for side in picture.size):
        picture.draft(None, (2 * width, 2 * height))


def png(rgb: Bytes, alpha: Bytes | None = None) -> bytes:
    """A PNG file of a picture [H, W, 3], and of how opaque it is [H, W]; made fast, not small."""
    buffer = io.BytesIO()
    picture = _pillow().fromarray(rgb if alpha is None else np.dstack([rgb, alpha]))
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
