"""The sharpest frames of a video."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rung.core.errors import BadFile
from rung.measure.pictures import ffmpeg

SUFFIXES = {".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"}
#: One of so many frames is taken, but so many at least and at most: beyond, not every two can be compared.
_ONE_OF, _LEAST, _MOST = 12, 20, 150
#: Width at which frames are judged.
_WIDTH = 480


def sharpest(path: Path, images: Path, most: int | None = None) -> list[str]:
    """Writes the sharpest frame of each of equal parts of the video as PNG to the folder ``images``; their names.

    Raises ``BadFile`` for what ffmpeg cannot read, ``SoftwareMissing`` without ffmpeg.
    """
    sharp = [_sharpness(frame) for frame in _frames(path)]
    if not sharp:
        raise BadFile(f"{path} has no frames.", [], ["play it: is it a video?"])
    number = min(len(sharp), max(_LEAST, len(sharp) // _ONE_OF), most or _MOST, _MOST)
    bounds = [part * len(sharp) // number for part in range(number + 1)]
    chosen = [begin + int(np.argmax(sharp[begin:end])) for begin, end in itertools.pairwise(bounds)]
    selection = "+".join(f"eq(n\\,{index})" for index in chosen)
    _ffmpeg(path, "-vf", f"select={selection}", "-fps_mode", "passthrough", str(images / "%05d.png"))
    names = []
    for position, index in enumerate(chosen, 1):
        names.append(f"frame_{index:06}.png")
        (images / f"{position:05}.png").rename(images / names[-1])
    return names


def _command(path: Path, *arguments: str) -> list[str]:
    read = ["-nostdin", "-v", "error", "-protocol_whitelist", "file,pipe", "-i", f"file:{path}"]
    return [ffmpeg(), *read, "-map", "0:v:0", *arguments]


def _ffmpeg(path: Path, *arguments: str) -> None:
    done = subprocess.run(_command(path, *arguments), capture_output=True, check=False)
    if done.returncode:
        if os.strerror(errno.ENOSPC) in done.stderr.decode("utf-8", "replace"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise _bad(path, done.stderr)


def _bad(path: Path, errors: bytes) -> BadFile:
    words = errors.decode("utf-8", "replace").strip().splitlines()[-3:]
    return BadFile(f"{path} is no video that ffmpeg can read.", words, ["convert it to MP4"])


def _frames(path: Path) -> Iterator[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """The frames in gray, small: [H, W]."""
    small = ("-vf", f"scale={_WIDTH}:-2", "-fps_mode", "passthrough", "-pix_fmt", "gray")
    command = _command(path, *small, "-c:v", "pgm", "-f", "image2pipe", "-")
    with (
        tempfile.TemporaryFile() as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err) as process,
    ):
        out = process.stdout
        assert out is not None
        while out.readline():  # P5, the size, 255
            width, height = (int(word) for word in out.readline().split())
            out.readline()
            yield np.frombuffer(out.read(width * height), np.uint8).reshape(height, width).astype(np.float32)
        if process.wait():
            err.seek(0)
            raise _bad(path, err.read())


def _sharpness(frame: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    """The variance of the Laplacian: what blur takes away first."""
    inner = frame[1:-1, 1:-1]
    around = frame[:-2, 1:-1] + frame[2:, 1:-1] + frame[1:-1, :-2] + frame[1:-1, 2:]
    return float(np.var(around - 4 * inner))
