"""Photographs at training size: what becomes of every kind of picture, and what is left out by name."""

import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from rung.core.errors import BadFile, SoftwareMissing, UsageError
from rung.models.card import SceneCard, View
from rung.splats.photographs import Photographs, as_stored, split
from rung.splats.scenes import lenses, pictures

POSE = (1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 1.0, 0)
RNG = np.random.default_rng(7)


def view(path, width=64, height=48, name="", **more):
    return View(name or path.name, str(path), width, height, 50.0, 52.0, 30.0, 25.0, POSE, **more)


def card(*views):
    return SceneCard("colmap", "scene", tuple(views))


def noise(height=48, width=64, channels=3):
    return RNG.integers(0, 256, (height, width, channels), np.uint8).squeeze()


def smooth(height, width):
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / width * 7 + phase) * np.cos(y / height * 5 - phase) for phase in (0, 1, 2)]
    return np.round(np.stack(waves, 2) * 100 + 128).astype(np.uint8)


def saved(path, array, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **more)
    return path


def sixteen_bit_rgb(path, array):
    """A PNG of 16 bits a channel, which Pillow does not write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = array.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(data)


def test_a_picture_of_the_cameras_size_is_as_stored(tmp_path):
    array = noise()
    camera = view(saved(tmp_path / "a.png", array))
    photographs = Photographs(card(camera), 2**20)
    assert photographs.views == (camera,)
    shot = photographs.shot(0)
    assert np.array_equal(shot.rgb, array)
    assert shot.alpha is None
    assert photographs.notes == ()


def test_every_kind_of_picture_becomes_three_channels_of_eight_bits(tmp_path):
    colors, gray, clear = noise(), noise(channels=1), noise(channels=4)
    wide = RNG.integers(0, 2**16, (48, 64, 3)).astype(np.uint16)
    saved(tmp_path / "gray.png", gray)
    saved(tmp_path / "gray16.png", wide[..., 0])
    sixteen_bit_rgb(tmp_path / "rgb16.png", wide)
    saved(tmp_path / "rgba.png", clear)
    palette = Image.fromarray(colors).quantize(256)
    palette.save(tmp_path / "palette.png")
    want = {
        "gray": np.repeat(gray[..., None], 3, 2),
        "gray16": np.repeat((wide[..., :1] >> 8).astype(np.uint8), 3, 2),
        "rgb16": (wide >> 8).astype(np.uint8),
        "rgba": clear[..., :3],
        "palette": np.array(palette.convert("RGB")),
    }
    photographs = Photographs(card(*(view(tmp_path / f"{name}.png") for name in want)), 2**20)
    for index, (name, array) in enumerate(want.items()):
        shot = photographs.shot(index)
        assert np.array_equal(shot.rgb, array), name
        assert (shot.alpha is None) == (name != "rgba")
    assert np.array_equal(photographs.shot(3).alpha, clear[..., 3])


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize(("width", "height", "longer"), [(640, 480, 160), (600, 450, 200), (602, 451, 119)])
def test_reducing_is_the_mean_of_what_a_pixel_covers_and_scales_the_camera(suffix, width, height, longer, tmp_path):
    array = smooth(height, width)
    camera = view(saved(tmp_path / f"a.{suffix}", array, **({"quality": 98} if suffix == "jpg" else {})), width, height)
    photographs = Photographs(card(camera), 2**24, max_resolution=longer)
    (found,) = photographs.views
    assert (found.width, found.height) == (longer, round(longer * height / width))
    assert (found.fx, found.cx) == pytest.approx((50 * longer / width, 30 * longer / width))
    assert (found.fy, found.cy) == pytest.approx((52 * found.height / height, 25 * found.height / height))
    # the mean over each pixel's rectangle, from sums up to its borders
    sums = np.pad(array.astype(np.float64).cumsum(0).cumsum(1), ((1, 0), (1, 0), (0, 0)))
    rows, columns = (np.linspace(0, side, new + 1) for side, new in ((height, found.height), (width, found.width)))
    sums = np.stack([[np.interp(columns, range(width + 1), line[:, c]) for line in sums] for c in range(3)], 2)
    sums = np.stack(
        [[np.interp(rows, range(height + 1), column[:, c]) for column in sums.transpose(1, 0, 2)] for c in range(3)], 2
    ).transpose(1, 0, 2)
    want = np.diff(np.diff(sums, axis=0), axis=1) / (height / found.height) / (width / found.width)
    assert np.abs(photographs.shot(0).rgb - want).max() < (2.5 if suffix == "png" else 5)


def test_reducing_does_not_fold_fine_detail_into_coarse(tmp_path):
    array = np.zeros((480, 640, 3), np.uint8)
    array[:, ::2] = 255
    camera = view(saved(tmp_path / "a.png", array), 640, 480)
    shot = Photographs(card(camera), 2**20, max_resolution=213).shot(0)
    assert np.abs(shot.rgb[:, 2:-2].astype(int) - 127).max() < 20


def test_nothing_is_enlarged(tmp_path):
    camera = view(saved(tmp_path / "a.png", noise()))
    assert Photographs(card(camera), 2**20, max_resolution=1000).views == (camera,)


def test_a_picture_of_another_size_scales_the_camera_and_one_of_another_shape_is_left_out(tmp_path):
    half, other = saved(tmp_path / "half.png", noise(24, 32)), saved(tmp_path / "other.png", noise(48, 48))
    odd = view(saved(tmp_path / "odd.png", noise(210, 324)), 1297, 840)  # images_4 of it
    photographs = Photographs(card(view(half), odd, view(other)), 2**20)
    assert [(v.width, v.height) for v in photographs.views] == [(32, 24), (324, 210)]
    found = photographs.views[0]
    assert (found.fx, found.fy, found.cx, found.cy) == (25, 26, 15, 12.5)
    assert photographs.notes == ("left out, another aspect ratio than the camera's: other.png",)
    with pytest.raises(BadFile, match="none of 1 photograph has the aspect ratio"):
        Photographs(card(view(other)), 2**20)


def test_cameras_are_as_large_as_their_photographs_but_for_those_that_cannot_be_compared(tmp_path):
    for name, (width, height) in {"a": (32, 24), "b": (32, 24), "c": (128, 96), "d": (40, 90)}.items():
        saved(tmp_path / f"{name}.png", noise(height, width))
    (tmp_path / "e.png").write_bytes(b"no picture")
    cameras = {"a": 1.0, "b": 1.0, "c": 3.0, "d": 4.0, "e": 5.0}
    scene = card(*(dataclasses.replace(view(tmp_path / f"{name}.png"), cx=cx) for name, cx in cameras.items()))
    found = as_stored(scene).views
    assert [(each.width, each.height) for each in found] == [(32, 24), (32, 24), (128, 96), (64, 48), (64, 48)]
    assert (found[0].fx, found[0].fy, found[0].cx, found[0].cy) == (25.0, 26.0, 0.5, 12.5)
    assert found[3:] == scene.views[3:]


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_turns_a_picture_only_where_the_cameras_shape_asks_for_it(orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    array = smooth(48, 64)
    path = saved(tmp_path / "a.png", array, exif=exif)
    assert np.array_equal(Photographs(card(view(path)), 2**20).shot(0).rgb, array)  # as COLMAP saw it
    upright = view(path, 48, 64)
    if orientation == 3:
        with pytest.raises(BadFile, match="aspect ratio"):
            Photographs(card(upright), 2**20)
        return
    photographs = Photographs(card(upright), 2**20)
    assert (photographs.views[0].width, photographs.views[0].height) == (48, 64)
    assert np.array_equal(photographs.shot(0).rgb, np.rot90(array, -1 if orientation == 6 else 1))


def test_masks_and_transparency_both_count(tmp_path):
    colors, mask = noise(channels=4), noise(channels=1)
    camera = view(saved(tmp_path / "a.png", colors), mask=str(saved(tmp_path / "m.png", mask)))
    assert np.array_equal(Photographs(card(camera), 2**20).shot(0).alpha, np.minimum(colors[..., 3], mask))
    plain = view(saved(tmp_path / "b.png", colors[..., :3]), mask=str(tmp_path / "m.png"))
    assert np.array_equal(Photographs(card(plain), 2**20).shot(0).alpha, mask)
    saved(tmp_path / "m.png", noise(48, 48, 1))
    with pytest.raises(BadFile, match="aspect ratio"):
        Photographs(card(plain), 2**20)


def test_the_budget_is_kept_whatever_is_asked_for(tmp_path, monkeypatch):
    views = [view(saved(tmp_path / f"{i}.png", noise())) for i in range(6)]
    photographs = Photographs(card(*views), 2 * 64 * 48 * 3 + 5)
    read = []
    pixels = pictures.pixels
    monkeypatch.setattr(
        pictures, "pixels", lambda path, *rest, **more: read.append(path.name) or pixels(path, *rest, **more)
    )
    want = [photographs.shot(i).rgb for i in range(6)]
    assert photographs.memory_bytes == 2 * 64 * 48 * 3
    read.clear()
    for i in range(5):
        photographs.expect(i + 1)
        assert np.array_equal(photographs.shot(i).rgb, want[i])
    photographs.shot(5)
    assert read == ["2.png", "3.png", "4.png", "5.png"]
    assert photographs.memory_bytes <= 2 * 64 * 48 * 3 + 5


def broken(path, kind):
    suffix = path.suffix[1:]
    buffer = io.BytesIO()
    Image.fromarray(smooth(480, 640)).save(buffer, "JPEG" if suffix == "jpg" else suffix.upper())
    data = buffer.getvalue()
    path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "other": b"hello" * 99}[kind])


@pytest.mark.parametrize("kind", ["cut", "empty", "other"])
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_corrupt_pictures_are_left_out_by_name_up_to_a_tenth(kind, suffix, tmp_path):
    views = [view(saved(tmp_path / f"{i}.png", noise())) for i in range(20)]
    for i in (3, 5):
        broken(tmp_path / f"{i}.{suffix}", kind)
        views[i] = view(tmp_path / f"{i}.{suffix}")
    photographs = Photographs(card(*views), 2**20)
    assert len(photographs.views) == 18
    assert f"3.{suffix}" in photographs.notes[0]
    assert f"5.{suffix}" in photographs.notes[0]
    with pytest.raises(BadFile, match="2 of 19 photographs cannot be read") as caught:
        Photographs(card(*views[:19]), 2**20)
    assert f"5.{suffix}" in str(caught.value)


def test_a_jpeg_that_ends_too_soon_is_corrupt_though_it_holds_a_whole_small_one(tmp_path):
    buffer, small = io.BytesIO(), io.BytesIO()
    Image.fromarray(smooth(30, 40)).save(small, "JPEG")
    Image.fromarray(smooth(48, 64)).save(buffer, "JPEG")
    preview, data = small.getvalue(), buffer.getvalue()
    data = data[:2] + b"\xff\xe2" + struct.pack(">H", len(preview) + 2) + preview + data[2:]  # as cameras put it there
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    assert len(Photographs(card(view(path)), 2**20).views) == 1
    path.write_bytes(data[:-100])
    with pytest.raises(BadFile, match="1 of 1 photograph cannot be read"):
        Photographs(card(view(path)), 2**20)


def test_a_png_whose_middle_was_changed_is_corrupt(tmp_path):
    path = saved(tmp_path / "a.png", noise())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadFile, match="1 of 1 photograph cannot be read"):
        Photographs(card(view(path)), 2**20)


def test_heic_without_its_decoder_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(SoftwareMissing, match="HEIC") as caught:
        Photographs(card(view(tmp_path / "a.heic")), 2**20)
    assert "pip install pillow-heif" in str(caught.value)


def test_a_picture_that_goes_away_is_said(tmp_path):
    photographs = Photographs(card(view(saved(tmp_path / "a.png", noise()))), 2**20)
    (tmp_path / "a.png").unlink()
    with pytest.raises(BadFile, match=r"a\.png"):
        photographs.shot(0)


LENSES = [
    ("opencv", (-0.25, 0.06, 0.002, -0.003)),
    ("opencv", (0.2, 0.0, 0.0, 0.0)),
    ("fisheye", (0.03, -0.01, 0.002, 0.0)),
]


def color(x, y):
    """Return the color in the direction (x, y, 1) of a scene."""
    waves = [np.sin(5 * x + phase) * np.cos(6 * y - phase) for phase in (0.0, 1.0, 2.0)]
    return np.stack(waves, -1) * 100 + 128


@pytest.mark.parametrize(("lens", "bend"), LENSES)
def test_a_bent_photograph_becomes_what_a_pinhole_camera_sees(lens, bend, tmp_path):
    camera = View("a", str(tmp_path / "a.png"), 320, 240, 200.0, 205.0, 155.0, 124.0, POSE, lens=lens, bend=bend)
    v, u = np.mgrid[:240, :320] + 0.5
    goal = np.stack([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy])
    at = goal.copy()  # the ray of every pixel: Newton's method on the lens written down here again, in float64

    def forward(x, y):
        r2 = x * x + y * y
        if lens == "opencv":
            k1, k2, p1, p2 = bend
            radial = 1 + k1 * r2 + k2 * r2**2
            return np.stack(
                [
                    x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
                    y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
                ]
            )
        t = np.arctan(np.sqrt(r2))
        return np.stack([x, y]) * (t + sum(k * t ** (3 + 2 * i) for i, k in enumerate(bend))) / np.sqrt(r2)

    for _ in range(30):
        step = 1e-6
        value, right, below = forward(*at), forward(at[0] + step, at[1]), forward(at[0], at[1] + step)
        (a, c), (b, d) = (right - value) / step, (below - value) / step
        miss = goal - value
        at += np.stack([d * miss[0] - b * miss[1], a * miss[1] - c * miss[0]]) / (a * d - b * c)
    assert np.abs(forward(*at) - goal).max() < 1e-9
    saved(tmp_path / "a.png", np.round(color(*at)).astype(np.uint8))
    photographs = Photographs(card(camera), 2**20, cache=tmp_path / "kept")
    (found,) = photographs.views
    assert (found.lens, found.bend, found.width, found.height) == ("pinhole", (), 320, 240)
    assert found.fx / found.fy == pytest.approx(200 / 205)
    want = color((u - found.cx) / found.fx, (v - found.cy) / found.fy)
    assert np.abs(photographs.shot(0).rgb - want).max() < 2.5
    # the picture is filled, and no more is cut away than must be: some point of the border is on the photograph's
    across, down = lenses.places(
        camera, dataclasses.replace(found, width=321, height=241, cx=found.cx + 0.5, cy=found.cy + 0.5)
    )
    slack = min(across.min(), 320 - across.max(), down.min(), 240 - down.max())
    assert -0.02 <= slack <= 0.7


def test_undistortion_is_kept_on_disk_and_made_again_for_another_picture_or_lens(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", noise())
    camera = view(
        path, lens="opencv", bend=(0.1, 0.0, 0.0, 0.0), mask=str(saved(tmp_path / "m.png", noise(channels=1)))
    )
    first = Photographs(card(camera), 0, cache=tmp_path / "kept").shot(0)
    unbent = lenses.unbent
    calls = []
    monkeypatch.setattr(lenses, "unbent", lambda *arguments: calls.append(1) or unbent(*arguments))
    again = Photographs(card(camera), 0, cache=tmp_path / "kept").shot(0)
    assert calls == []
    assert np.array_equal(first.rgb, again.rgb)
    assert np.array_equal(first.alpha, again.alpha)
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(kept.read_bytes()[:-40])
    assert np.array_equal(Photographs(card(camera), 0, cache=tmp_path / "kept").shot(0).rgb, first.rgb)
    other = dataclasses.replace(camera, bend=(0.2, 0.0, 0.0, 0.0))
    Photographs(card(other), 0, cache=tmp_path / "kept").shot(0)
    saved(path, noise(50, 64)[:48])
    assert not np.array_equal(Photographs(card(camera), 0, cache=tmp_path / "kept").shot(0).rgb, first.rgb)
    assert len(calls) == 6  # three times, a picture and a mask


def test_a_lens_that_folds_the_picture_is_refused(tmp_path):
    camera = view(saved(tmp_path / "a.png", noise()), lens="opencv", bend=(-90.0, 0.0, 0.0, 0.0))
    with pytest.raises(BadFile, match="has no picture without distortion"):
        Photographs(card(camera), 2**20)


def named(*names, splits=()):
    return [
        View(name, "", 1, 1, 1, 1, 0, 0, POSE, split=part)
        for name, part in zip(names, splits or [""] * 99, strict=False)
    ]


def test_every_eighth_by_name_is_a_test():
    names = [f"{i:02}.png" for i in range(20)]
    views = named(*reversed(names))
    train, test = split(views, 8)
    assert [views[i].name for i in test] == ["00.png", "08.png", "16.png"]
    assert [views[i].name for i in train] == [name for i, name in enumerate(names) if i % 8]
    assert split(views, 0) == (tuple(reversed(range(20))), ())
    assert split(named("one"), 8) == ((0,), ())
    with pytest.raises(UsageError, match="left to train on"):
        split(views, 1)


def test_a_split_of_the_data_set_wins():
    views = named("d", "c", "b", "a", splits=("train", "test", "", "train"))
    assert split(views, 8) == ((3, 0), (1,))
    assert split(named("b", "a", "c", splits=("", "test", "")), 8) == ((0, 2), (1,))
    assert split(named("b", "a", "c", splits=("train", "", "train")), 8) == ((0, 2), (1,))
