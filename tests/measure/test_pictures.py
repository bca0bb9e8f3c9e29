"""Files of frames: what was written is there, whole, with its settings; nothing is left of what was not."""

import errno
import importlib.util
import os
import re
import shutil
import subprocess
import weakref
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rung.core.errors import BadFile, DiskFull, SoftwareMissing, UsageError
from rung.measure import curves, pictures

Image = pytest.importorskip("PIL.Image")
FRAMES = np.zeros((5, 32, 48, 3), np.uint8)
FRAMES[:, :, :24, 0] = 255
FRAMES[2:, 16:, :, 2] = 200
SETTINGS = {"prompt": "a cat – in snow", "seed": 7}


@pytest.mark.parametrize("name", ["x.gif", "x.webp"])
def test_moving_pictures(tmp_path, name):
    pictures.write(tmp_path / name, FRAMES, 8.0, SETTINGS)
    with Image.open(tmp_path / name) as found:
        assert found.n_frames >= 2  # equal neighbors may become one
        found.seek(found.n_frames - 1)
        assert np.abs(np.asarray(found.convert("RGB")).astype(int) - FRAMES[-1]).mean() < 12
    assert pictures.settings_of(tmp_path / name) == SETTINGS
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_png_is_exact_and_has_its_settings(tmp_path):
    pictures.write(tmp_path / "x.png", FRAMES[:1], 1.0, SETTINGS)
    with Image.open(tmp_path / "x.png") as found:
        assert (np.asarray(found) == FRAMES[0]).all()
    assert pictures.settings_of(tmp_path / "x.png") == SETTINGS


@pytest.mark.parametrize("width", [48, 47])
def test_an_mp4_by_its_decoder(tmp_path, width):
    pytest.importorskip("imageio_ffmpeg")
    pictures.write(tmp_path / "x.mp4", FRAMES[:, :, :width], 8.0, SETTINGS)
    command = [pictures.ffmpeg(), "-loglevel", "error", "-i", str(tmp_path / "x.mp4")]
    raw = subprocess.run([*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    found = np.frombuffer(raw, np.uint8).reshape(5, 32, width, 3)
    assert np.abs(found.astype(int) - FRAMES[:, :, :width]).mean() < 12


def test_an_mp4_holds_no_frames_but_the_one_it_writes(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    references, most = [], []

    def drawn():
        for _ in range(20):
            frame = np.zeros((32, 48, 3), np.uint8)
            references.append(weakref.ref(frame))
            yield frame
            del frame
            most.append(sum(each() is not None for each in references))

    pictures.write(tmp_path / "x.mp4", drawn(), 8.0, SETTINGS)
    assert max(most) <= 2  # those by which it is known that it is no picture


def test_what_goes_wrong_while_frames_are_made_leaves_nothing(tmp_path):
    pytest.importorskip("imageio_ffmpeg")

    def drawn():
        yield from FRAMES[:3]
        raise BadFile("no more")

    for name in ("x.mp4", "x.gif"):
        with pytest.raises(BadFile, match="no more"):
            pictures.write(tmp_path / name, drawn(), 8.0, SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_an_ffmpeg_that_is_not_there_says_what_to_do(monkeypatch):
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nowhere/ffmpeg")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SoftwareMissing, match="not installed") as refused:
        pictures.ffmpeg()
    assert any("x.webp" in way for way in refused.value.ways_out)


def test_an_ffmpeg_that_ends_at_once_says_why(tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\necho 'no encoder here' >&2\nexit 1\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setattr(pictures, "ffmpeg", lambda: str(tmp_path / "ffmpeg"))
    many = (np.zeros((64, 64, 3), np.uint8) for _ in range(50))  # more than a pipe holds
    with pytest.raises(BadFile, match="no encoder here"):
        pictures.write(tmp_path / "x.mp4", many, 8.0, SETTINGS)


@pytest.mark.parametrize("name", ["x.mp4", "x.gif", "x.png"])
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch, name):
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\necho 'x.mp4: No space left on device' >&2\nexit 1\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setattr(pictures, "ffmpeg", lambda: str(tmp_path / "ffmpeg"))

    def full(self, path, **options):
        path.write_bytes(b"a beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("PIL.Image.Image.save", full)
    with pytest.raises(DiskFull, match=rf"no room for .*{name}[\s\S]* free[\s\S]*--out"):
        pictures.write(tmp_path / name, FRAMES[:1] if name == "x.png" else FRAMES, 8.0, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]


def test_ctrl_c_while_ffmpeg_writes_leaves_nothing(tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    killed = []

    class Stopped(subprocess.Popen):
        def communicate(self, *args, **kwargs):
            raise KeyboardInterrupt

        def kill(self):
            killed.append(True)
            super().kill()

    (tmp_path / "x.mp4").write_bytes(b"an older one")
    monkeypatch.setattr(subprocess, "Popen", Stopped)
    with pytest.raises(KeyboardInterrupt):
        pictures.write(tmp_path / "x.mp4", FRAMES, 8.0, SETTINGS)
    assert killed == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["x.mp4"]
    assert (tmp_path / "x.mp4").read_bytes() == b"an older one"


def test_no_ffmpeg(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "imageio_ffmpeg" else found(name))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SoftwareMissing) as refused:
        pictures.check_destination(tmp_path / "x.mp4", 16)
    assert any("webp" in way for way in refused.value.ways_out)
    pictures.check_destination(tmp_path / "x.webp", 16)


@pytest.mark.parametrize(
    ("name", "frames", "said"),
    [("x.avi", 2, "ends in .avi"), ("x.png", 2, "one picture"), ("no/x.gif", 2, "no folder")],
)
def test_destinations_that_cannot_be(tmp_path, name, frames, said):
    with pytest.raises(UsageError, match=said):
        pictures.check_destination(tmp_path / name, frames)


def test_places_that_cannot_be_written_are_told_before_anything_is_made(tmp_path, monkeypatch):
    (tmp_path / "x.gif").mkdir()
    with pytest.raises(UsageError, match="it is a folder"):
        pictures.check_destination(tmp_path / "x.gif", 2)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(UsageError, match=rf"nothing may be written into {tmp_path}"):
        pictures.check_destination(tmp_path / "y.gif", 2)


def test_what_is_no_picture(tmp_path):
    (tmp_path / "x.png").write_bytes(b"no")
    with pytest.raises(BadFile):
        pictures.settings_of(tmp_path / "x.png")


def test_a_sheet_has_a_row_a_label(tmp_path):
    pictures.sheet(tmp_path / "x.png", {"f32": FRAMES, "int8": FRAMES[::-1]}, most=3)
    with Image.open(tmp_path / "x.png") as found:
        assert found.size == (3 * 48, 2 * (32 + 16))
        assert (np.asarray(found)[16:48, :48] == FRAMES[0]).all()
        assert (np.asarray(found)[-32:, -48:] == FRAMES[0]).all()


def test_more_curves_than_colors_are_told_apart(tmp_path):
    curves.curves(tmp_path / "x.svg", {str(n): [(0, n), (1, n)] for n in range(9)}, "title", "layer", "dB")
    drawn = re.findall(
        r'stroke="(#\w+)" stroke-width="1.5" stroke-dasharray="([\d ]*)"', (tmp_path / "x.svg").read_text()
    )
    assert len(set(drawn)) == 9


@pytest.mark.parametrize("target", ["/proc/x.svg", "folder.svg", "none/x.svg"])
def test_a_place_where_nothing_can_be_drawn_is_refused_before(tmp_path, target):
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError, match=r"cannot be written|There is no folder"):
        curves.check_curves(tmp_path / target)
    curves.check_curves(tmp_path / "x.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_curves_are_drawn_inside_of_their_frame(tmp_path):
    series = {"a <b>": [(0, 1.0), (1, 2.0), (2, float("inf"))], "c": [(0, 3.0), (2, 0.0)]}
    curves.curves(tmp_path / "x.svg", series, "title", "layer", "dB")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    lines = [one.attrib["points"].split() for one in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [2, 2]
    for across, down in (map(float, point.split(",")) for points in lines for point in points):
        assert 0 <= across <= 720
        assert 0 <= down <= 360
    assert "a <b>" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_curves_of_a_png_are_where_those_of_an_svg_are(tmp_path):
    series = {"flat": [(0, 0.0), (4, 0.0)], "high": [(0, 8.0), (4, 8.0)], "none": []}
    for name in ("x.svg", "x.png"):
        curves.curves(tmp_path / name, series, "title", "step", "dB")
    with Image.open(tmp_path / "x.png") as found:
        pixels = np.asarray(found.convert("RGB"))
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 2
    for line in lines:
        (left, down), (right, _) = (tuple(map(float, point.split(","))) for point in line.attrib["points"].split())
        color = [int(line.attrib["stroke"][at : at + 2], 16) for at in (1, 3, 5)]
        there = (pixels[:, round(left) + 9 : round(right) - 9] == color).all(axis=(1, 2))
        assert set(np.flatnonzero(there)) & {round(down) - 1, round(down), round(down) + 1}
    assert (pixels[-30:] != 255).any()  # the name of the axis
