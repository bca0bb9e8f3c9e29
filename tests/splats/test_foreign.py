"""Files that other programs wrote: 270 splats of degree 2 whose numbers are sines, by Niantic's encoder (spz 1.1.0
writes version 2, 2.1.0 version 3) and by SplatTransform 1.10.1; and what SplatTransform reads in files of ours."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rung.splats import Cloud, read, write

HERE = Path(__file__).parent / "foreign"
SPLAT_TRANSFORM = shutil.which("splat-transform")
#: What its reader of SPZ leaves undone: from right, up, back to right, down, forward.
TURN = np.array([1, -1, -1], np.float32)
SIGNS = np.array([-1, -1, 1, -1, 1, 1, -1, 1], np.float32)[:, None]


def source(number=270, terms=9):
    """Splats along a tangled curve, at least 0.05 apart."""

    def waves(step, *shape):
        count = int(np.prod(shape, dtype=int))
        values = np.sin(np.arange(number)[:, None] * step + np.arange(count) * 1.7)
        return values.reshape(number, *shape).astype(np.float32)

    harmonics = waves(0.37, terms, 3)
    harmonics[:, 1:] *= 0.4
    return Cloud(waves(0.61803, 3) * 4, waves(0.23, 4), waves(0.11, 3) * 2 - 4, waves(0.53) * 5, harmonics)


def unit(quats):
    """Scale to length 1, the largest part positive: the same rotation looks the same."""
    largest = np.take_along_axis(quats, np.abs(quats).argmax(1)[:, None], 1)
    return quats / np.linalg.norm(quats, axis=1, keepdims=True) * np.sign(largest)


def apart(a, b):
    """The largest differences, by name; ``b``'s splats may be in another order."""
    looks = [np.concatenate([c.means, c.log_scales, c.opacities[:, None], c.harmonics[:, 0]], axis=1) for c in (a, b)]
    nearest = ((looks[0][:, None] - looks[1][None]) ** 2).sum(-1).argmin(1)
    assert sorted(nearest) == list(range(len(a.means)))
    b = Cloud(*(values[nearest] for values in b))
    pairs = {"means": (a.means, b.means), "scales": (a.log_scales, b.log_scales)}
    pairs |= {"opacities": (a.opacities, b.opacities), "colors": (a.harmonics[:, 0], b.harmonics[:, 0])}
    turned = np.minimum(np.abs(unit(a.quats) - unit(b.quats)).max(1), np.abs(unit(a.quats) + unit(b.quats)).max(1))
    found = {name: float(np.abs(x - y).max()) for name, (x, y) in pairs.items()} | {"quats": float(turned.max())}
    if b.degree:
        found["rest"] = float(np.abs(a.harmonics[:, 1:] - b.harmonics[:, 1:]).max())
    return found


#: What each format may differ by, as its module says, for these splats.
BOUNDS = {
    ".splat": {"means": 0, "scales": 1e-6, "opacities": 0.003, "colors": 0.8, "quats": 0.012},
    ".compressed.ply": {"means": 0.005, "scales": 0.003, "opacities": 0.003, "colors": 0.01, "quats": 0.0015}
    | {"rest": 0.0157},
    ".spz": {"means": 0.00013, "scales": 0.0313, "opacities": 0.003, "colors": 0.0132, "quats": 0.0018, "rest": 0.0626},
    ".sog": {"means": 0.0005, "scales": 0.05, "opacities": 0.003, "colors": 0.03, "quats": 0.006, "rest": 0.2},
}


def within(found, bounds):
    return {name: (value, bounds[name]) for name, value in found.items() if value > bounds[name]} == {}


@pytest.mark.parametrize(
    ("file", "bounds"),
    [
        ("v2.spz", {**BOUNDS[".spz"], "quats": 0.0625, "rest": 0.0665}),  # w follows from bytes of the others
        ("v3.spz", {**BOUNDS[".spz"], "rest": 0.0665}),
        ("st.compressed.ply", BOUNDS[".compressed.ply"]),
        ("st.sog", {**BOUNDS[".sog"], "opacities": 0.004, "quats": 0.007}),  # it cuts off where we round
    ],
)
def test_a_file_of_another_program(file, bounds):
    found = apart(source(), read(HERE / file))
    assert {name: (value, bounds[name]) for name, value in found.items() if value > bounds[name]} == {}


@pytest.mark.parametrize("end", BOUNDS)
def test_a_file_of_ours_comes_back_within_its_precision(end, tmp_path):
    write(tmp_path / f"a{end}", source())
    found = apart(source(), read(tmp_path / f"a{end}"))
    assert {name: (value, BOUNDS[end][name]) for name, value in found.items() if value > BOUNDS[end][name]} == {}
    assert found.keys() == BOUNDS[end].keys()


def test_versions_2_and_3_of_spz_hold_the_same(tmp_path):
    second, third = read(HERE / "v2.spz"), read(HERE / "v3.spz")
    for name in ("means", "log_scales", "logits", "harmonics"):
        assert np.array_equal(getattr(second, name), getattr(third, name))
    write(tmp_path / "a.spz", third)
    again = read(tmp_path / "a.spz")
    assert apart(third, again) == {**dict.fromkeys(BOUNDS[".spz"], 0), "quats": pytest.approx(0, abs=2e-5)}


@pytest.mark.skipif(SPLAT_TRANSFORM is None, reason="the npm package @playcanvas/splat-transform is not installed")
@pytest.mark.parametrize("end", BOUNDS)
def test_another_program_reads_a_file_of_ours(end, tmp_path):
    write(tmp_path / f"a{end}", source())
    subprocess.run([SPLAT_TRANSFORM, "-q", tmp_path / f"a{end}", tmp_path / "b.ply"], check=True, timeout=120)
    ours, theirs = read(tmp_path / f"a{end}"), read(tmp_path / "b.ply")
    if end == ".spz":
        harmonics = np.concatenate([theirs.harmonics[:, :1], theirs.harmonics[:, 1:] * SIGNS], axis=1)
        quats = theirs.quats * np.array([1, *TURN])
        theirs = Cloud(theirs.means * TURN, quats, theirs.log_scales, theirs.logits, harmonics)
    found = apart(ours, theirs)
    bytewise = {"opacities": 0.001, "quats": 0.006} if end == ".splat" else {"opacities": 0.001}  # 128 or 127.5 is 0
    assert {name: value for name, value in found.items() if value > bytewise.get(name, 2e-6)} == {}
