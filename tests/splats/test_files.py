"""Files of splats against a foreign reader, and every way in which they can be wrong."""

import numpy as np
import pytest

from rung.core.errors import BadFile, UsageError
from rung.splats import read, write
from tests.support.splats import random_cloud


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_ply_comes_back_to_the_bit(degree, tmp_path):
    cloud = random_cloud(50, degree, seed=degree)
    write(tmp_path / "a.ply", cloud)
    back = read(tmp_path / "a.ply")
    assert back.degree == degree
    assert all(np.array_equal(a, b) for a, b in zip(cloud, back, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]


def test_another_program_reads_a_ply(tmp_path):
    plyfile = pytest.importorskip("plyfile")
    cloud = random_cloud(50, 1, seed=1)
    write(tmp_path / "a.ply", cloud)
    vertex = plyfile.PlyData.read(tmp_path / "a.ply")["vertex"]
    assert [p.name for p in vertex.properties][:9] == ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    assert np.array_equal(vertex["y"], cloud.means[:, 1])
    assert np.array_equal(vertex["f_rest_4"], cloud.harmonics[:, 2, 1])  # channel by channel: green's second of three
    assert np.array_equal(vertex["rot_0"], cloud.quats[:, 0])
    assert np.array_equal(vertex["opacity"], cloud.logits)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_ply_of_another_program(order, tmp_path):
    plyfile = pytest.importorskip("plyfile")
    names = ["x", "y", "z", "opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    names += ["f_dc_0", "f_dc_1", "f_dc_2", "curvature"]
    rows = np.zeros(7, [*((name, "f8") for name in names), ("label", "u1")])
    for index, name in enumerate(names):
        rows[name] = np.arange(7) + 10 * index
    element = plyfile.PlyElement.describe(rows, "vertex")
    plyfile.PlyData([element], byte_order=order).write(tmp_path / "b.ply")
    back = read(tmp_path / "b.ply")
    assert back.degree == 0
    assert np.array_equal(back.log_scales[:, 2], np.arange(7) + 60)
    assert np.array_equal(back.harmonics[:, 0, 1], np.arange(7) + 120)


def header(**changed):
    lines = {"magic": "ply", "format": "format binary_little_endian 1.0", "vertex": "element vertex 2"}
    names = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", *(f"scale_{i}" for i in range(3))]
    lines["properties"] = "\n".join(f"property float {name}" for name in [*names, *(f"rot_{i}" for i in range(4))])
    lines |= {"end": "end_header\n"} | changed
    return "\n".join(lines.values()).encode() + bytes(2 * 14 * 4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"solid", "does not begin with the letters ply"),
        (b"ply\nformat binary_little_endian 1.0\nelement ver", "it ends within its header: it was cut off"),
        (header(magic="plx"), "does not begin"),
        (header(end=""), "it ends within its header"),
        (b"ply\n" + b"comment\n" * 9000, "does not end within 64 kB"),
        (header(format="format ascii 1.0"), "it is ascii"),
        (header(format="comment none"), "no format"),
        (
            header(vertex="element vertex 1000000000000"),
            "1,000,000,000,000 rows of vertex take 56,000,000,000,000 bytes",
        ),
        (header(vertex="element vertex -2"), "has the line 'element vertex -2'"),
        (header(vertex="element face 2\nproperty list uchar int a\nelement vertex 2"), "a list stands before them"),
        (header(properties="property float x\nproperty float x"), "one of its properties twice"),
        (header(properties="property list uchar int a"), "a list stands before them"),
        (header(properties="property half x"), "has the line 'property half x'"),
        (header(vertex="element vertex 2\nelement vertex 2"), "has vertex or one of its properties twice"),
        (header(end="".join(f"property float f_rest_{x}\n" for x in "abcdefghi") + "end_header\n"), "f_rest_* are 9"),
        (header(properties="property float x\nproperty float y\nproperty float z"), "have no f_dc_0"),
        (header(end="property float f_rest_0\nend_header\n") + bytes(8), "f_rest_* are 1, not 0, 9"),
        (header()[:-1] + b"", "take 112 bytes, it holds 111"),
        (header()[:-4] + np.float32(np.nan).tobytes(), "quats have NaN"),
    ],
)
def test_a_ply_that_is_wrong_says_how(data, words, tmp_path):
    (tmp_path / "c.ply").write_bytes(data)
    with pytest.raises(BadFile, match=r"c\.ply") as caught:
        read(tmp_path / "c.ply")
    assert words in str(caught.value)


def test_a_splat_file_keeps_what_a_byte_can(tmp_path):
    cloud = random_cloud(50, 0, seed=0)
    write(tmp_path / "a.splat", cloud)
    assert (tmp_path / "a.splat").stat().st_size == 32 * 50
    back = read(tmp_path / "a.splat")
    order = np.argsort(-np.exp(cloud.log_scales.astype(np.float64).sum(1)) * cloud.opacities)
    assert np.array_equal(back.means, cloud.means[order])
    assert np.allclose(back.log_scales, cloud.log_scales[order], atol=1e-6)
    assert np.abs(back.opacities - cloud.opacities[order]).max() <= 0.5 / 255 + 1e-6
    units = cloud.quats / np.linalg.norm(cloud.quats, axis=1, keepdims=True)
    assert np.abs(back.quats - units[order]).max() <= 1 / 128 + 1e-6
    colors = np.clip(0.5 + 0.28209479 * cloud.harmonics[order, 0], 0, 1)
    assert np.abs(0.5 + 0.28209479 * back.harmonics[:, 0] - colors).max() <= 0.5 / 255 + 1e-6


def test_names_and_places_that_are_wrong(tmp_path):
    with pytest.raises(UsageError, match="no file of splats that rung knows"):
        read(tmp_path / "a.obj")
    with pytest.raises(BadFile, match="No such file"):
        read(tmp_path / "a.ply")
    (tmp_path / "b.splat").write_bytes(bytes(33))
    with pytest.raises(BadFile, match="no multiple of 32"):
        read(tmp_path / "b.splat")
    (tmp_path / "c.splat").write_bytes(np.full(8, np.nan, np.float32).tobytes())
    with pytest.raises(BadFile, match="below zero, or no numbers"):
        read(tmp_path / "c.splat")
