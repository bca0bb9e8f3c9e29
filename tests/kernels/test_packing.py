"""Packing and the exact way back, sizes, and the pages of mapped files."""

import mmap
import weakref

import numpy as np
import pytest

from rung import formats
from rung.formats import Encoded
from rung.formats.families import grouped
from rung.kernels.cpu.pack import layouts, packing
from rung.kernels.cpu.pack.codebooks import grid_codes
from rung.kernels.cpu.pack.grouped import GROUPED
from rung.kernels.cpu.pack.packing import pack, read_rows, unpack

from ..ops.conformance import FORMATS, weight

PACKED = [f for f in FORMATS if f.name.split(":")[0] in layouts.FORMATS]


@pytest.mark.parametrize("format", PACKED, ids=lambda f: f.name)
@pytest.mark.parametrize("rows", [1, 48, 83])
def test_the_way_back_is_exact(format, rows):
    columns = max(512, format.block)
    encoded = weight(format, rows, columns)
    packed = pack(encoded, 3)
    back = unpack(packed)
    assert back.format == encoded.format
    for name, part in encoded.parts.items():
        assert back.parts[name].dtype == part.dtype
        assert np.array_equal(back.parts[name], part)
    assert np.array_equal(formats.decode(read_rows(packed, [rows - 1, 0])), formats.decode(encoded)[[rows - 1, 0]])


@pytest.mark.parametrize("format", PACKED, ids=lambda f: f.name)
def test_the_size_is_what_was_said_before(format):
    shape = (83, max(1024, format.block))
    packed = pack(weight(format, *shape))
    assert packed.nbytes == layouts.packed_bytes(format, shape)
    assert packed.data.ctypes.data % 64 == 0


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "q6_k", "int8", "nf4"])
def test_native_layouts_are_near_the_stored_size(name):
    format, shape = formats.get(name), (4096, 4096)
    assert layouts.packed_bytes(format, shape) <= 1.03 * format.bytes(shape)


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k", "q8_0"])
def test_any_bytes_survive(name):
    """Every bit of a block is kept, also of blocks that no encoder writes."""
    format = formats.get(name)
    data = np.random.default_rng(2).integers(0, 256, (33, format.bytes((1, 1024))), dtype=np.uint8)
    encoded = Encoded(format, (33, 1024), {"data": data})
    assert np.array_equal(unpack(pack(encoded, 2)).parts["data"], data)


def _as_read(packed) -> np.ndarray:
    """The weights of a generic layout as the products read them: scale * code + minimum, float32 [rows, columns]."""
    layout, columns = packed.layout, packed.shape[1]
    units = packed.data.reshape(packed.groups, columns // 32, layout.unit_bytes)
    headers = np.ascontiguousarray(units[:, :, : layout.unit_header]).view(np.float32)
    headers = headers.reshape(packed.groups, columns // 32, -1, 16).transpose(0, 3, 1, 2)  # group, lane, unit, header
    codes = units[:, :, layout.unit_header :].reshape(packed.groups, columns // 32, -1, 16, 4).transpose(0, 3, 1, 2, 4)
    if layout.codes == "nibble":
        codes = np.concatenate([codes & 15, codes >> 4], axis=3)
    if layout.table:
        values = packed.table[codes].astype(np.float32) - 128
        assert packed.table[16:20].view(np.float32) == 1
    else:
        values = codes.astype(np.float32) - layout.offset
    values = values.reshape(*values.shape[:3], layout.parts, -1) * headers[:, :, :, : layout.parts, None]
    if layout.minimum:
        values += headers[:, :, :, layout.parts :, None]
    return values.reshape(-1, columns)[: packed.shape[0]]


@pytest.mark.parametrize("name", [*(name for name in layouts.GENERIC if name not in GROUPED), "tq1_0", "tq2_0"])
def test_a_generic_layout_holds_the_decoded_weight(name):
    """Scale times code plus minimum, bit for bit; of random blocks, so that every field counts."""
    format = formats.get(name)
    encoded = weight(formats.get(name), 83, 2 * max(format.block, 256))
    generator = np.random.default_rng(3)
    data = generator.integers(0, 256, encoded.parts["data"].shape, dtype=np.uint8)
    blocks = data.reshape(-1).view(formats.layout(format))
    for field in {"d", "m", "dmin"} & set(blocks.dtype.names):
        if blocks[field].dtype.kind == "f":
            blocks[field] = generator.standard_normal(blocks.shape)
    encoded = Encoded(format, encoded.shape, {"data": data})
    with np.errstate(all="ignore"):
        assert np.array_equal(_as_read(pack(encoded, 2)), formats.decode(encoded), equal_nan=True)


@pytest.mark.parametrize("kind", ["u2", "u4", "u8"])
@pytest.mark.parametrize(("block", "scale"), [(32, "f16"), (64, "bf16"), (128, "f16"), (128, "f32")])
def test_codes_with_zero_points_become_scales_and_minima(kind, block, scale):
    """Exact where scales have 16 bits; scales of 32 round once more, and zero points may lie between codes (HQQ)."""
    format = formats.get(f"{kind}:{block}:{scale}")
    generator = np.random.default_rng(4)
    codes = generator.integers(0, 2 ** int(kind[1]), (83, 512), dtype=np.uint8)
    grid = (83, 512 // block)
    scales = grouped.narrow(generator.standard_normal(grid).astype(np.float32), scale)
    zeros = generator.uniform(0, 2 ** int(kind[1]), grid) if scale == "f32" else generator.integers(0, 4, grid)
    encoded = grouped.build(format, codes, scales, grouped.narrow(zeros.astype(np.float32), scale))
    found, expected = _as_read(pack(encoded, 2)), formats.decode(encoded)
    if scale == "f32":
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    else:
        assert np.array_equal(found, expected)


def test_what_cannot_be_packed_is_read_as_it_is_stored():
    assert layouts.divides(formats.get("u4:64"), 256)
    assert layouts.divides(formats.get("u4:64:ordered"), 256)
    assert not layouts.divides(formats.get("u4:16"), 256)
    assert not layouts.divides(formats.get("u4:96"), 256)


def test_the_grid_outlives_the_kernel_that_reads_it(monkeypatch):
    """Threads that ask for a grid first at the same time each get an array that nothing else keeps."""
    freed = []

    def fresh(name):
        grid = grid_codes(name).copy()
        weakref.finalize(grid, freed.append, name)
        return grid

    move = packing.move_rows

    def watched(*arguments):
        assert not freed
        move(*arguments)
        freed.clear()

    monkeypatch.setattr("rung.kernels.cpu.pack.packing.grid_codes", fresh)
    monkeypatch.setattr(packing, "move_rows", watched)
    encoded = weight(formats.get("iq3_s"), 33, 256)
    packed = packing.start(encoded)
    packing.fill(packed, encoded, 0, 33)
    assert np.array_equal(_as_read(packed), formats.decode(encoded))


def test_a_mapped_file_gives_its_pages_back(tmp_path, monkeypatch):
    """Read pages do not stay resident beside the packed copy, and the file reads as before."""
    monkeypatch.setattr("rung.kernels.cpu.pack.packing.SLAB", 1 << 20)
    format, shape = formats.get("q8_0"), (2048, 4096)
    stored = weight(format, 64, shape[1]).parts["data"]
    path = tmp_path / "weight"
    path.write_bytes(b"x" * 5000 + np.tile(stored, (shape[0] // 64, 1)).tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8, offset=5000).reshape(shape[0], -1)
        before = _resident(path)
        packed = pack(Encoded(format, shape, {"data": data}), 2)
        assert before == 0
        assert _resident(path) < data.nbytes / 4
        assert np.array_equal(unpack(packed).parts["data"], data)
        del data, packed


def _resident(path) -> int:
    """Bytes of a mapped file that are resident in this process."""
    size, inside = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            if "-" in line.split()[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                size += int(line.split()[1]) << 10
    return size
