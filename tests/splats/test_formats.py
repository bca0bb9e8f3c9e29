"""Compact formats, read by decoders that were written here from the specifications: number by number, in float64."""

import io
import json
import math
import struct
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.splats import Cloud, read, write

C0 = 0.28209479177387814
TERMS = (0, 3, 8, 15)
#: Which harmonics above the first change their sign when y and z do.
SIGNS = (-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1)


@st.composite
def clouds(draw):
    """Splats of all degrees, around the sizes of chunks, with values at and beyond what formats hold."""
    number, degree = draw(st.sampled_from([0, 1, 7, 30, 256, 257])), draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    means = rng.standard_normal((number, 3)) * draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e5]))
    harmonics = rng.standard_normal((number, (degree + 1) ** 2, 3)) * draw(st.sampled_from([0.0, 0.2, 3.0]))
    quats, scales = rng.standard_normal((number, 4)), rng.standard_normal((number, 3)) * 2 - 4
    opacities = rng.standard_normal(number) * 3
    extreme = rng.random(number) < draw(st.sampled_from([0.0, 0.1]))
    quats[extreme] = draw(st.sampled_from([(0, 0, 0, 0), (0, 0, -2, 0), (1, 1, 1, 1), (1e-20, 0, 0, 0)]))
    scales[extreme] = draw(st.sampled_from([-30, 0, 9]))
    opacities[extreme] = draw(st.sampled_from([-80, 80]))
    return Cloud(*(values.astype(np.float32) for values in (means, quats, scales, opacities, harmonics)))


def unit(quat):
    length = math.sqrt(sum(float(part) ** 2 for part in quat))
    return [float(part) / length for part in quat] if length else [1.0, 0.0, 0.0, 0.0]


def turn(quats):
    """[N, 3, 3]"""
    w, x, y, z = np.array([unit(quat) for quat in quats]).reshape(-1, 4).T
    rows = [[1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]]
    rows += [[2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]]
    rows += [[2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]]
    return np.moveaxis(np.array(rows).reshape(3, 3, -1), -1, 0)


def three(parts, largest):
    """A quaternion of its three smallest parts and the index of the largest."""
    quat = list(parts)
    quat.insert(largest, math.sqrt(max(0.0, 1 - sum(part * part for part in parts))))
    return quat


def near(got, expected, bound, name):
    got, expected = np.asarray(got, np.float64).reshape(np.shape(expected)), np.asarray(expected, np.float64)
    worst = float(np.max(np.abs(got - expected) - bound, initial=-1.0))
    assert worst <= 0, f"{name} is {worst} more than it may be from what was written"


def decode_spz(data):
    """Columns in PLY's axes, and the bits behind the point."""
    data = zlib.decompress(data, 31)
    magic, version, number, degree, point, flags, _ = struct.unpack_from("<IIIBBBB", data)
    assert (magic, version, flags) == (0x5053474E, 3, 0)
    at, terms = 16, TERMS[degree]
    assert len(data) == 16 + number * (9 + 1 + 3 + 3 + 4 + 3 * terms)
    digits = [int.from_bytes(data[at + 3 * i : at + 3 * i + 3], "little", signed=True) for i in range(3 * number)]
    means = [value / 2**point * (1, -1, -1)[i % 3] for i, value in enumerate(digits)]
    at += 9 * number
    opacities, at = [byte / 255 for byte in data[at : at + number]], at + number
    colors, at = [(byte / 255 - 0.5) / 0.15 for byte in data[at : at + 3 * number]], at + 3 * number
    scales, at = [byte / 16 - 10 for byte in data[at : at + 3 * number]], at + 3 * number
    quats = []
    for (word,) in struct.iter_unpack("<I", data[at : at + 4 * number]):
        fields = [word >> shift & 1023 for shift in (20, 10, 0)]
        parts = [(-1) ** (field >> 9) * (field & 511) / 511 / math.sqrt(2) for field in fields]
        x, y, z, w = three(parts, word >> 30)
        quats.append([w, x, -y, -z])
    rest = [(byte - 128) / 128 * SIGNS[i // 3 % terms] for i, byte in enumerate(data[at + 4 * number :])]
    return means, opacities, colors, scales, quats, rest, point


@settings(max_examples=15, deadline=None)
@given(cloud=clouds())
def test_spz_by_its_specification(cloud, tmp_path_factory):
    path = tmp_path_factory.mktemp("spz") / "a.spz"
    write(path, cloud)
    means, opacities, colors, scales, quats, rest, point = decode_spz(path.read_bytes())
    far = float(np.abs(cloud.means).max(initial=0))
    assert (far <= 2040 and point >= 12) or (far > 2040 and 2**22 <= far * 2**point < 2**23)
    near(means, cloud.means, max(min(2**-13, far / 65536), far / 2**22, 2**-24) + far * 1e-7, "means")
    near(opacities, cloud.opacities, 1 / 510 + 1e-6, "opacities")
    near(colors, np.clip(cloud.harmonics[:, 0], -0.5 / 0.15, 0.5 / 0.15), 1 / 76.5 + 1e-6, "colors")
    near(scales, np.clip(cloud.log_scales, -10, 255 / 16 - 10), 1 / 32 + 1e-6, "scales")
    near(turn(quats), turn(cloud.quats), 0.006, "rotations")
    bound = np.where(np.arange(cloud.harmonics.shape[1] - 1) < 3, 1 / 32, 1 / 16)[:, None] + 1e-6
    near(rest, np.clip(cloud.harmonics[:, 1:], -1, 1), bound, "harmonics")
    same(cloud, path)


def same(cloud, path):
    """Write again what was read of a file: the file is the same; but for the order, so is what we read."""
    back = read(path)
    assert len(back.means) == len(cloud.means)
    again = path.with_name(f"again{path.name[1:]}")
    write(again, back)
    return again.read_bytes() == path.read_bytes()


def decode_compressed_ply(data):
    """Columns, the chunk's extents [N, 18] among them, and which splat lies where."""
    head, data = data.split(b"end_header\n", 1)
    counts = {
        line.split()[1]: int(line.split()[2]) for line in head.decode().splitlines() if line.startswith("element")
    }
    chunks, number = counts["chunk"], counts["vertex"]
    assert chunks == math.ceil(number / 256)
    assert counts.get("sh", number) == number
    bounds = [struct.unpack_from("<18f", data, 72 * index) for index in range(chunks)]
    at, columns = 72 * chunks, ([], [], [], [], [], [])
    rest = np.frombuffer(data[at + 16 * number :], np.uint8)
    for index in range(number):
        bound = bounds[index // 256]
        position, rotation, scale, color = struct.unpack_from("<4I", data, at + 16 * index)
        for column, word, first in ((0, position, 0), (1, scale, 6)):
            parts = (word >> 21) / 2047, (word >> 11 & 1023) / 1023, (word & 2047) / 2047
            low, high = bound[first : first + 3], bound[first + 3 : first + 6]
            columns[column].append([a + (b - a) * t for a, b, t in zip(low, high, parts, strict=True)])
        parts = [(rotation >> shift & 1023) / 1023 - 0.5 for shift in (20, 10, 0)]
        columns[2].append(three([part * math.sqrt(2) for part in parts], rotation >> 30))
        parts = [(color >> shift & 255) / 255 for shift in (24, 16, 8)]
        columns[3].append([a + (b - a) * t for a, b, t in zip(bound[12:15], bound[15:18], parts, strict=True)])
        columns[4].append((color & 255) / 255)
        columns[5].append(bound)
    return *columns, rest


@settings(max_examples=15, deadline=None)
@given(cloud=clouds())
def test_compressed_ply_by_its_specification(cloud, tmp_path_factory):
    path = tmp_path_factory.mktemp("ply") / "a.compressed.ply"
    write(path, cloud)
    means, scales, quats, colors, opacities, bounds, rest = decode_compressed_ply(path.read_bytes())
    cloud, bounds = in_order(cloud), np.array(bounds).reshape(-1, 18)
    steps = np.array([2047, 1023, 2047])
    near(means, cloud.means, (bounds[:, 3:6] - bounds[:, :3]) / steps / 2 * 1.0001 + 1e-5, "means")
    logs = np.clip(cloud.log_scales, -20, 20)
    near(scales, logs, (bounds[:, 9:12] - bounds[:, 6:9]) / steps / 2 * 1.0001 + 1e-5, "scales")
    expected = cloud.harmonics[:, 0].astype(np.float64) * C0 + 0.5
    near(colors, expected, (bounds[:, 15:] - bounds[:, 12:15]) / 255 / 2 * 1.0001 + 1e-5, "colors")
    near(opacities, cloud.opacities, 1 / 510 + 1e-6, "opacities")
    near(turn(quats), turn(cloud.quats), 0.007, "rotations")
    terms = cloud.harmonics.shape[1] - 1
    if terms:
        got = ((rest.astype(np.float64) + 0.5) / 256 - 0.5) * 8
        expected = np.clip(cloud.harmonics[:, 1:].swapaxes(1, 2).ravel(), -4, 4)
        near(got, expected, 1 / 64 + 1e-6, "harmonics")
    assert rest.size == 3 * terms * len(cloud.means)
    same(cloud, path)


def in_order(cloud):
    """Along Morton's curve, bit by bit."""
    if not len(cloud.means):
        return cloud
    low = cloud.means.min(0).astype(np.float64)
    cells = ((cloud.means - low) / np.maximum(cloud.means.max(0) - low, 1e-30) * (2**21 - 1)).astype(int).tolist()
    codes = [
        sum((cell >> bit & 1) << 3 * bit + axis for bit in range(21) for axis, cell in enumerate(c)) for c in cells
    ]
    order = sorted(range(len(codes)), key=codes.__getitem__)
    return Cloud(*(values[order] for values in cloud))


def pixels(archive, name):
    image = pytest.importorskip("PIL.Image")
    with image.open(io.BytesIO(archive.read(name))) as picture:
        assert picture.format == "WEBP"
        return np.array(picture.convert("RGBA")).reshape(-1, 4).tolist(), picture.size


def decode_sog(path):
    """Columns as meta.json says they are kept."""
    with zipfile.ZipFile(path) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        meta = json.loads(archive.read("meta.json"))
        read_all = lambda part: [pixels(archive, name)[0] for name in meta[part]["files"]]  # noqa: E731
        low, high = read_all("means")
        (quats,), (scales,), (colors,) = read_all("quats"), read_all("scales"), read_all("sh0")
        table, labels = (pixels(archive, name) for name in meta["shN"]["files"]) if "shN" in meta else ([], [])
    number, bounds = meta["count"], list(zip(meta["means"]["mins"], meta["means"]["maxs"], strict=True))
    logs = [
        [a + (b - a) * (low[i][axis] + 256 * high[i][axis]) / 65535 for axis, (a, b) in enumerate(bounds)]
        for i in range(number)
    ]
    turned = [three([(byte / 255 * 2 - 1) / math.sqrt(2) for byte in q[:3]], q[3] - 252) for q in quats[:number]]
    scale = [[meta["scales"]["codebook"][byte] for byte in pixel[:3]] for pixel in scales[:number]]
    color = [[meta["sh0"]["codebook"][byte] for byte in pixel[:3]] for pixel in colors[:number]]
    rest = []
    if "shN" in meta:
        (cells, (width, _)), terms = table, TERMS[meta["shN"]["bands"]]
        assert width == 64 * terms
        for red, green, *_ in labels[0][:number]:
            label = red + 256 * green
            assert label < meta["shN"]["count"]
            begin = label // 64 * width + label % 64 * terms
            rest.append([[meta["shN"]["codebook"][byte] for byte in cells[begin + term][:3]] for term in range(terms)])
    return logs, turned, scale, color, [pixel[3] / 255 for pixel in colors[:number]], rest


@settings(max_examples=10, deadline=None)
@given(cloud=clouds())
def test_sog_by_its_specification(cloud, tmp_path_factory):
    pytest.importorskip("PIL")
    path = tmp_path_factory.mktemp("sog") / "a.sog"
    write(path, cloud)
    logs, quats, scales, colors, opacities, rest = decode_sog(path)
    cloud = in_order(cloud)
    expected = np.sign(cloud.means) * np.log1p(np.abs(cloud.means.astype(np.float64)))
    near(logs, expected, np.ptp(expected, axis=0) / 131070 + 1e-6 if len(expected) else 0, "means")
    near(opacities, cloud.opacities, 1 / 510 + 1e-6, "opacities")
    near(turn(quats), turn(cloud.quats), 0.025, "rotations")
    for name, got, kept in (("scales", scales, cloud.log_scales), ("colors", colors, cloud.harmonics[:, 0])):
        error = np.square(np.array(got).reshape(kept.shape) - kept)
        assert np.sqrt(error.mean()) <= 0.01 * kept.std() + 1e-6 if kept.size else True, name
    if cloud.degree and len(cloud.means):
        error = np.sqrt(np.square(np.array(rest) - cloud.harmonics[:, 1:]).mean())
        assert error <= 0.75 * cloud.harmonics[:, 1:].std() + 1e-6
    first = path.read_bytes()
    write(path, cloud)
    assert path.read_bytes() == first
