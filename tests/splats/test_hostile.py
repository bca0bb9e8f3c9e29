"""Files of splats that lie: cut off anywhere, counts beyond the file, bombs, bytes that changed. Each is refused with
its reason, and none takes memory or time for what it only declares."""

import gzip
import io
import json
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.core.errors import BadFile, CannotEncode, UsageError
from rung.splats import Cloud, read, write
from rung.splats.files import FORMATS

from .test_foreign import source


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a good file of each format."""
    pytest.importorskip("PIL")
    folder, contents = tmp_path_factory.mktemp("whole"), {}
    for end in FORMATS:
        write(folder / f"a{end}", source(40, 4))
        contents[end] = (folder / f"a{end}").read_bytes()
    return contents


def refused(path, data, *words):
    path.write_bytes(data)
    with pytest.raises(BadFile, match=path.name) as caught:
        read(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@settings(max_examples=60, deadline=None)
@given(end=st.sampled_from(sorted(FORMATS)), share=st.floats(0, 0.999))
def test_a_file_that_ends_too_soon_is_refused(end, share, whole, tmp_path_factory):
    cut = int(share * len(whole[end]))
    if end == ".splat" and cut % 32 == 0:  # no header says how many there should be
        cut += 1
    refused(tmp_path_factory.mktemp("cut") / f"a{end}", whole[end][:cut])


@settings(max_examples=60, deadline=None)
@given(end=st.sampled_from(sorted(FORMATS)), seed=st.integers(0, 2**32))
def test_bytes_that_changed_are_splats_or_refused(end, seed, whole, tmp_path_factory):
    rng = np.random.default_rng(seed)
    data = bytearray(whole[end])
    for position in rng.integers(0, min(len(data), rng.choice([40, 400, 4000])), 3):
        data[position] = rng.integers(0, 256)
    path = tmp_path_factory.mktemp("changed") / f"a{end}"
    path.write_bytes(bytes(data))
    try:
        cloud = read(path)
    except BadFile:
        return
    assert all(np.isfinite(values).all() for values in cloud)


def spz(number=1, version=3, degree=0, point=12, flags=0, data=bytes(20)):
    return gzip.compress(struct.pack("<4sIIBBBB", b"NGSP", version, number, degree, point, flags, 0) + data, mtime=0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends within its header"),
        (b"ply\nformat", "it is no gzip stream"),
        (b"NGSP" + bytes(28), "version 4, which is packed with zstd"),
        (gzip.compress(b"NGSP", mtime=0), "ends within its header"),
        (spz(version=1), "version 1"),
        (spz(degree=4), "degree 4"),
        (spz(point=24), "24 bits behind the point"),
        (spz(flags=2), "extensions of a vendor"),
        (spz(number=2), "its 2 splats take 56 bytes, it unpacks to 36"),
        (spz(data=bytes(21)), "its 1 splats take 36 bytes, it unpacks to 37"),
        (spz(number=2**32 - 1), "it would unpack to 80.0 GB"),
        (spz(number=10**7, data=bytes(20 * 10**7)), "it would unpack to 0.2 GB, more than 100 times its size"),
        (spz()[:-9] + bytes(9), "no gzip stream"),
        (spz()[:-3], "the end of its gzip stream is missing"),
    ],
)
def test_an_spz_that_is_wrong_says_how(data, words, tmp_path):
    refused(tmp_path / "a.spz", data, words)


def compressed(**changed):
    names = [f"{end}_{axis}" for end in ("min", "max") for axis in "xyz"]
    names += [name.replace("_", "_scale_") for name in names]
    lines = {"start": "ply\nformat binary_little_endian 1.0", "chunk": "element chunk 1"}
    lines |= {"bounds": "\n".join(f"property float {name}" for name in names), "vertex": "element vertex 2"}
    packed = ("position", "rotation", "scale", "color")
    lines |= {"packed": "\n".join(f"property uint packed_{name}" for name in packed), "sh": "", "end": "end_header\n"}
    lines |= {"bytes": bytes(48 + 32)} | changed
    data = lines.pop("bytes")
    return "\n".join(line for line in lines.values() if line).encode() + data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (compressed(chunk="element chunk 2"), "2 splats, 2 chunks of 256"),
        (compressed(vertex="element vertex 257"), "257 splats, 1 chunks of 256"),
        (compressed(chunk="element chunk 3906250000", vertex="element vertex 1000000000000"), "rows of chunk take"),
        (compressed(bounds="property float min_x"), "its element chunk has not the properties"),
        (compressed(packed="property uint packed_position"), "its element vertex has not"),
        (compressed(sh="element sh 1\n" + "\n".join(f"property uchar f_rest_{i}" for i in range(9))), "do not fit"),
        (compressed(sh="element sh 2\nproperty uchar f_rest_0"), "its element sh has not"),
        (compressed(bytes=bytes(79)), "2 rows of vertex take 32 bytes, it holds 31"),
        (compressed(bytes=np.full(20, np.nan, "<f4").tobytes()), "NaN or infinite"),
    ],
)
def test_a_compressed_ply_that_is_wrong_says_how(data, words, tmp_path):
    refused(tmp_path / "a.compressed.ply", data, words)


def test_an_older_compressed_ply_has_no_bounds_of_colors(tmp_path):
    (tmp_path / "a.ply").write_bytes(compressed())
    back = read(tmp_path / "a.ply")
    assert (len(back.means), back.degree) == (2, 0)
    assert np.allclose(back.harmonics, -0.5 / 0.28209479177387814)


def sog(entries, **changed):
    """The zip with these entries, meta.json changed."""
    buffer = io.BytesIO()
    meta = json.loads(entries["meta.json"])
    for key, value in changed.items():
        node = meta
        *path, last = key.split("__")
        for step in path:
            node = node[step]
        node[last] = value
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**entries, "meta.json": json.dumps(meta).encode()}.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": 1}, "it is version 1"),
        ({"count": -1}, "with -1 splats"),
        ({"count": 10**12}, "declares 1,000,000,000,000 splats"),
        ({"count": 10**6}, "and 1,000,000 pixels are wanted"),
        ({"count": None}, "does not say what SOG needs"),
        ({"count": 1e999}, "does not say what SOG needs"),
        ({"means": []}, "does not say what SOG needs"),
        ({"means__mins": [0, 0]}, "does not say what SOG needs"),
        ({"means__mins": [1e9, 0, 0]}, "its means have NaN or infinite"),
        ({"means__files": ["../../etc/passwd", "x"]}, "does not say what SOG needs"),
        ({"scales__codebook": [0.0]}, "its log_scales have NaN"),
        ({"shN__bands": 3}, "pixels are wanted"),
        ({"shN__count": 1}, "rows of harmonics beyond the 1"),
        ({"shN__count": 10**9}, "rows of harmonics beyond"),
        ({"quats__files": ["sh0.webp"]}, "which part is the largest"),
    ],
)
def test_a_sog_that_is_wrong_says_how(changed, words, whole, tmp_path):
    with zipfile.ZipFile(io.BytesIO(whole[".sog"])) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    refused(tmp_path / "a.sog", sog(entries, **changed), words)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_packing_is_named(method, whole, tmp_path):
    """Each way of packing has errors of its own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole[".sog"])) as archive, zipfile.ZipFile(buffer, "w", method) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
        first = packed.infolist()[0]
    data = bytearray(buffer.getvalue())
    begin = len(first.filename) + 30
    data[begin + 9 : begin + first.compress_size] = b"\xff" * (first.compress_size - 9)
    refused(tmp_path / "a.sog", bytes(data))


def test_a_zip_bomb_is_not_unpacked(whole, tmp_path):
    with zipfile.ZipFile(io.BytesIO(whole[".sog"])) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    refused(tmp_path / "a.sog", sog(entries | {"means_l.webp": bytes(2 << 20)}), "means_l.webp unpacks to more than")
    refused(tmp_path / "c.sog", sog(entries | {"quats.webp": b"GIF89a"}), "quats.webp is no WebP picture")
    refused(tmp_path / "b.sog", b"PK\3\4" + bytes(100), "no zip")


@pytest.mark.parametrize("end", FORMATS)
def test_splats_that_are_no_numbers_are_not_written(end, tmp_path):
    good = source(5, 1)
    bad = good._replace(quats=np.full_like(good.quats, np.nan))
    with pytest.raises(CannotEncode, match="quats have NaN"):
        write(tmp_path / f"a{end}", bad)
    assert not list(tmp_path.iterdir())


def test_a_center_beyond_spz_leaves_the_old_file(tmp_path):
    good = source(5, 1)
    write(tmp_path / "a.spz", good)
    kept = (tmp_path / "a.spz").read_bytes()
    with pytest.raises(CannotEncode, match="one lies at 9,000,000"):
        write(tmp_path / "a.spz", good._replace(means=good.means * 0 + 9e6))
    assert (tmp_path / "a.spz").read_bytes() == kept
    assert len(list(tmp_path.iterdir())) == 1


def test_opacities_without_a_logit_are_held(tmp_path):
    original = source(5, 1)
    write(tmp_path / "a.ply", original._replace(logits=np.array([99, -99, 0, 1, 2], np.float32)))
    data = (tmp_path / "a.ply").read_bytes()
    for value, found in ((99, np.inf), (-99, -np.inf)):
        data = data.replace(np.float32(value).tobytes(), np.float32(found).tobytes())
    (tmp_path / "a.ply").write_bytes(data)
    assert read(tmp_path / "a.ply").logits.tolist() == [16, -16, 0, 1, 2]


def test_a_name_says_which_format(tmp_path):
    write(tmp_path / "A.COMPRESSED.PLY", source(5, 1))
    assert b"element chunk 1" in (tmp_path / "A.COMPRESSED.PLY").read_bytes()
    with pytest.raises(UsageError, match=r"\.compressed\.ply, \.ply, \.splat, \.spz, \.sog"):
        write(tmp_path / "a.ksplat", source(5, 1))
    assert isinstance(read(tmp_path / "A.COMPRESSED.PLY"), Cloud)
