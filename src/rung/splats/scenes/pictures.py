"""Sizes of pictures from their headers."""

from __future__ import annotations

from pathlib import Path

from rung.core.errors import BadFile, SoftwareMissing


def size_of(path: Path) -> tuple[int, int]:
    """Width and height; raises ``BadFile`` for what is no picture, ``SoftwareMissing`` without Pillow."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise SoftwareMissing(
            "Pillow reads the pictures of a scene and is not installed.", [], ["pip install pillow"]
        ) from error
    try:
        with Image.open(path) as picture:
            return picture.size
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise BadFile(f"{path} is no picture that can be read.", [str(error)], ["take it out of the scene"]) from error
