"""Pictures and videos as files: PNG, WebP and GIF through pillow, MP4 through ffmpeg.

A file is written under another name beside its own and then renamed: what is there is whole.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rung.core.errors import BadFile, DiskFull, SoftwareMissing, UsageError
from rung.core.files import FULL, writing, written_whole
from rung.core.text import quoted, size

#: What a video is written as by the end of its name; a picture as the last three of these.
VIDEOS = (".mp4", ".gif", ".webp", ".png")
#: The key of the settings in the text of a PNG, the comment of a GIF and an MP4, the description of a WebP.
SETTINGS = "rung"
_EXIF_DESCRIPTION = 0x010E

Frame = np.ndarray
Frames = np.ndarray


def check_destination(path: Path, frames: int) -> None:
    """Raises ``UsageError`` or ``SoftwareMissing`` when so many frames could not be written there."""
    kind = path.suffix.lower()
    if kind not in VIDEOS:
        raise UsageError(
            f"{path.name} ends in {kind or 'nothing'}, and rung writes {', '.join(VIDEOS)}.",
            ways_out=[f"--out {quoted(path.with_suffix('.mp4' if frames > 1 else '.png').name)}"],
        )
    if kind == ".png" and frames > 1:
        raise UsageError(f"A PNG holds one picture, not {frames} frames.", ways_out=["--out x.webp", "--frames 1"])
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"There is no folder {path.parent}.", ways_out=[f"mkdir -p {quoted(path.parent)}"], code="path-unknown"
        )
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        reason = "it is a folder" if path.is_dir() else f"nothing may be written into {path.absolute().parent}"
        raise UsageError(
            f"{path} cannot be written.",
            [reason],
            [f"--out {quoted(Path.home() / path.name)}"],
            code="output-unwritable",
        )
    if kind == ".mp4":
        ffmpeg()
    elif importlib.util.find_spec("PIL") is None:
        raise SoftwareMissing(
            f"{kind} is written by pillow, which is not installed.", (), ["pip install 'rung[video]'"]
        )


def write(path: Path, frames: Iterable[Frame], fps: float, settings: Mapping[str, Any]) -> None:
    """Writes uint8 frames [height, width, 3], at least one, with the settings in the file; one frame is a picture.

    An MP4 takes each frame as it is made and holds no other. Raises ``UsageError`` or ``SoftwareMissing`` as
    ``check_destination`` does, ``DiskFull``, and ``BadFile`` when writing fails in another way.
    """
    iterator = iter(frames)
    begin = list(itertools.islice(iterator, 2))
    check_destination(path, len(begin))
    write_as = _mp4 if path.suffix.lower() == ".mp4" else _pillow
    try:
        with written_whole(path) as temporary:
            write_as(temporary, begin, iterator, fps, settings)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(
            f"There is no room for {path}.",
            [f"{size(shutil.disk_usage(path.absolute().parent).free)} are free; nothing was left there"],
            ["make room and give the same command again, or name a place on another disk:  --out"],
        ) from error


def settings_of(path: Path) -> dict[str, Any]:
    """The settings in a picture that rung wrote; empty where there are none. Raises ``BadFile``."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            comment = picture.info.get(SETTINGS) or picture.info.get("comment", b"")
            text = comment or picture.getexif().get(_EXIF_DESCRIPTION, "")
    except (OSError, UnidentifiedImageError) as error:
        raise BadFile(f"{path} is no picture: {error}") from error
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def ffmpeg() -> str:
    """The ffmpeg of the package imageio-ffmpeg, else the system's. Raises ``SoftwareMissing``."""
    if importlib.util.find_spec("imageio_ffmpeg") is not None:
        import imageio_ffmpeg

        with contextlib.suppress(RuntimeError):  # the package without its binary
            named = str(imageio_ffmpeg.get_ffmpeg_exe())
            if shutil.which(named) is not None:  # what IMAGEIO_FFMPEG_EXE says is taken unseen
                return named
    found = shutil.which("ffmpeg")
    if found is None:
        raise SoftwareMissing(
            "MP4 is written by ffmpeg, which is not installed.",
            (),
            ["pip install 'rung[video]'", "--out x.webp, or x.gif, which need no ffmpeg"],
        )
    return found


def _mp4(path: Path, begin: list[Frame], others: Iterator[Frame], fps: float, settings: Mapping[str, Any]) -> None:
    """H.264, in 4:2:0 where the size allows it, as every player shows it."""
    height, width, _ = begin[0].shape
    chroma = "yuv420p" if height % 2 == width % 2 == 0 else "yuv444p"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    coded = ["-c:v", "libx264", "-crf", "17", "-pix_fmt", chroma, "-movflags", "+faststart"]
    named = ["-metadata", f"comment={json.dumps(settings, ensure_ascii=False)}"]
    command = [ffmpeg(), "-y", "-loglevel", "error", *source, *coded, *named, str(path)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            _feed(process, begin, others)
            process.communicate()
        except BaseException:  # Ctrl-C: the file that it writes is nobody's
            process.kill()
            process.wait()
            raise
        if process.returncode:
            errors.seek(0)
            words = " ".join(errors.read().decode("utf-8", "replace").split())[-300:]
            if os.strerror(errno.ENOSPC) in words:
                raise OSError(errno.ENOSPC, words)
            raise BadFile(f"ffmpeg could not write frames of {width}x{height}", [words], ["--out x.webp"])


def _feed(process: subprocess.Popen[bytes], begin: list[Frame], others: Iterator[Frame]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, and said why
        while begin:
            process.stdin.write(np.ascontiguousarray(begin.pop(0)).data)
        for frame in others:
            process.stdin.write(np.ascontiguousarray(frame).data)


def _pillow(path: Path, begin: list[Frame], others: Iterator[Frame], fps: float, settings: Mapping[str, Any]) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    text = json.dumps(settings, ensure_ascii=False)
    first, *second = (Image.fromarray(np.ascontiguousarray(frame)) for frame in begin)
    options: dict[str, Any] = {}
    if path.suffix == ".png":
        info = PngInfo()
        info.add_itxt(SETTINGS, text)
        options = {"pnginfo": info}
    elif path.suffix == ".gif":
        options = {"comment": text.encode()}
    else:
        exif = Image.Exif()
        exif[_EXIF_DESCRIPTION] = json.dumps(settings)  # EXIF's text is ASCII
        options = {"exif": exif, "quality": 90}
    if second:
        more = itertools.chain(second, (Image.fromarray(np.ascontiguousarray(frame)) for frame in others))
        options |= {"save_all": True, "append_images": more, "duration": round(1000 / fps), "loop": 0}
    try:
        first.save(path, **options)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise BadFile(f"{path.name} cannot be written: {error}", code="output-unwritable") from error


def sheet(path: Path, rows: Mapping[str, Frames], most: int = 8) -> None:
    """A PNG or WebP with a row of frames for each label, side by side; of many frames some, evenly apart.

    All rows have the same number and size of frames.
    """
    from PIL import Image, ImageDraw, ImageFont

    count, height, width, _ = next(iter(rows.values())).shape
    shown = sorted({round(at * (count - 1) / max(min(count, most) - 1, 1)) for at in range(min(count, most))})
    font, line = ImageFont.load_default(), 16
    picture = Image.new("RGB", (len(shown) * width, len(rows) * (height + line)), "white")
    draw = ImageDraw.Draw(picture)
    for row, (label, frames) in enumerate(rows.items()):
        top = row * (height + line)
        draw.text((2, top + 2), label, fill="black", font=font)
        for column, number in enumerate(shown):
            picture.paste(Image.fromarray(np.ascontiguousarray(frames[number])), (column * width, top + line))
    with writing(path), written_whole(path) as temporary:
        picture.save(temporary)
