"""Weights as GPUs hold them, and products with them through WebGPU, against float64 on a software adapter."""

import numpy as np
import pytest

from rung import formats
from rung.core.errors import OutOfMemory
from rung.formats.table import FORMATS
from rung.kernels.cpu.pack.layouts import FORMATS as PACKED
from rung.kernels.webgpu.layouts import FLOATS, GpuLayout, gpu_bytes, widest
from rung.ops import LADDERS, proof
from tests.support.devices import software_adapter

adapter = software_adapter()
NAMES = [name for name in FORMATS if name in FLOATS or name.split(":")[0] in PACKED]
#: Formats that no other one shares its shader with.
APART = [
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "nvfp4",
    "int8",
    "nf4:64",
]
ROWS = 83


def decoded(layout: GpuLayout, sections: list[np.ndarray], row: int, columns: int) -> np.ndarray:
    """A row decoded from its sections, in NumPy."""
    units, bytes_of = columns // 32, [part.view(np.uint8) for part in sections]
    widths = layout.widths(columns)
    codes, highs, scales, heads = (
        part[row * width : (row + 1) * width] for part, width in zip(bytes_of, widths, strict=True)
    )
    if layout.codes in FLOATS:
        wide = codes.view({"f16": np.float16, "f32": np.float32, "bf16": np.uint16}[layout.codes])
        return (wide.astype(np.uint32) << 16).view(np.float32) if layout.codes == "bf16" else wide.astype(np.float32)
    if layout.codes in ("nibble", "five", "six"):
        values = np.concatenate([codes.reshape(units, 16) & 15, codes.reshape(units, 16) >> 4], axis=1)
        if layout.codes == "six":
            pairs = highs.reshape(units, 2, 1, 4) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
            values = values | (pairs.reshape(units, 32) << 4)
        elif layout.codes == "five":
            fifths = highs.reshape(units, 1, 4) >> np.arange(8, dtype=np.uint8)[:, None] & 1
            values = values | (fifths.reshape(units, 32) << 4)
    elif layout.codes == "three":
        lows = codes.reshape(units, 2, 1, 4) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        thirds = highs.reshape(units, 1, 4) >> np.arange(8, dtype=np.uint8)[:, None] & 1
        values = lows.reshape(units, 32) | (thirds.reshape(units, 32) << 2)
    else:
        values = codes.view(np.int8 if layout.codes == "byte" else np.uint8).reshape(units, 32)
    numbers = np.array(layout.table, np.float32)[values] if layout.table else values.astype(np.float32) - layout.offset
    numbers, group = numbers.reshape(-1), layout.group
    kind = layout.scale.removesuffix("_min")
    if kind in ("half", "float"):
        found = scales.view(np.float16 if kind == "half" else np.float32).astype(np.float32)
        minima = np.zeros_like(found)
        if layout.scale.endswith("_min"):
            found, minima = found.reshape(-1, 2).T
    elif kind == "row":
        found, minima, group = scales.view(np.float32), np.zeros(1, np.float32), columns
    elif kind == "i8":
        found = (heads.view(np.float16).astype(np.float32)[:, None] * scales.view(np.int8).reshape(-1, 16)).reshape(-1)
        minima = np.zeros_like(found)
    else:
        d = heads.view(np.float16).astype(np.float32).reshape(-1, 2)
        if kind == "u4":
            both = scales.reshape(-1, 16) & 15, scales.reshape(-1, 16) >> 4
        else:
            words = scales.view(np.uint32).reshape(-1, 3)
            at = np.arange(8, dtype=np.uint32)
            both = tuple(
                (words[:, [part]] >> (4 * at) & 15) | ((words[:, [2]] >> (2 * at + 16 * part) & 3) << 4)
                for part in (0, 1)
            )
        found, minima = ((d[:, [part]] * both[part].astype(np.float32)).reshape(-1) for part in (0, 1))
        minima = -minima
    return numbers * np.repeat(found, group) + np.repeat(minima, group)


@pytest.mark.parametrize("name", NAMES)
def test_sections_hold_every_weight_exactly(name):
    from rung.kernels.isa.products import packs_signed_bytes
    from rung.kernels.webgpu.packing import pack

    encoded = proof.weights(name, ROWS, proof.columns_of(name))
    layout, sections = pack(encoded, packs_signed_bytes())
    right = formats.decode(encoded)
    for row in range(ROWS):
        # bitsandbytes divides by 127, which a scale cannot: the last digit differs
        bound = 2e-7 if name == "llm_int8" else 0
        np.testing.assert_allclose(decoded(layout, sections, row, encoded.shape[1]), right[row], rtol=bound, atol=0)
    taken = sum(part.nbytes for part in sections)
    assert taken <= gpu_bytes(encoded.format, encoded.shape)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "nf4:64", "int8", "f16"])
def test_common_formats_take_no_more_than_a_file(name):
    shape = 4096, 4096
    assert gpu_bytes(formats.get(name), shape) <= 1.001 * formats.get(name).bytes(shape)


def test_no_format_takes_more_than_nine_bits():
    sizes = {name: gpu_bytes(formats.get(name), (4096, 4096)) * 8 / 4096**2 for name in NAMES if name not in FLOATS}
    assert {name for name, bits in sizes.items() if bits > 6.57} <= {"q8_0", "u8:128", "int8", "llm_int8"}
    assert max(sizes.values()) <= 10


@pytest.mark.parametrize(("name", "most"), [("q3_k", 1.04), ("q5_0", 1.001), ("q5_1", 1.001), ("q5_k", 1.001)])
def test_three_and_five_bits_take_hardly_more_than_a_file(name, most):
    shape = 4096, 4096
    assert gpu_bytes(formats.get(name), shape) <= most * formats.get(name).bytes(shape)


def test_other_formats_have_no_layout():
    assert widest(formats.get("e4m3:128")) is None


@pytest.mark.parametrize("name", APART)
def test_products(adapter, name):
    """A row of activations has a shader of its own; several rows share what is read, 16 at a time."""
    rung = LADDERS["linear"].rung("webgpu.rows").load()
    encoded = proof.weights(name, ROWS, proof.columns_of(name))
    state = rung.prepare(encoded, dtype="f32", threads=2, device=adapter.id)
    dense = formats.decode(encoded).astype(np.float64)
    for rows in (1, 3, 17):
        x = np.random.default_rng(rows).standard_normal((rows, encoded.shape[1]), dtype=np.float32)
        sizes = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(dense, axis=1) / np.sqrt(encoded.shape[1])
        assert proof.compare(rung.multiply(state, x), x @ dense.T, sizes, 2e-6) == ""
    assert rung.restore(state).parts["data"] is encoded.parts["data"]


def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * gain


@pytest.mark.parametrize("rows", [1, 3])
def test_a_gated_product_of_two_formats_with_norms_around_it(adapter, rows):
    """``silu(gate y) * (up y)`` of y = norm(x + norm(added)), where gate and up have layouts of their own."""
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.info import INFO
    from rung.kernels.webgpu.linear import Product, Segment
    from rung.kernels.webgpu.matrix import Matrix, join

    device, columns = gpu(adapter.id), 256
    encoded = [proof.weights(name, ROWS, columns) for name in ("q4_0", "q6_k")]
    weights = [Matrix.of_encoded(device, each) for each in encoded]
    join(weights)
    random = np.random.default_rng(5)
    x, added = random.standard_normal((2, rows, columns), dtype=np.float32) * np.float32([[[1]], [[7]]])
    gain, post = 1 + random.standard_normal((2, columns), dtype=np.float32) / 4
    segments = tuple(Segment(each.layout, ROWS, each.pieces[0].base) for each in weights)
    product = Product(segments, columns, rows, 2 * columns, 0, 1e-6, "silu", post=columns, keeps=True)
    words, y, kept = weights[0].pieces[0].buffer, device.buffer(4 * rows * ROWS), device.buffer(4 * rows * columns)
    others = [device.upload([gain, post]), device.buffer(4 * INFO), device.upload([x]), y, device.upload([added]), kept]
    device.run([device.bind(product.kernel(), [words, words, *others], *product.grid)])
    whole = x.astype(np.float64) + rms_norm(added.astype(np.float64), post)
    gate, up = (rms_norm(whole, gain) @ formats.decode(each).astype(np.float64).T for each in encoded)
    found = device.read(y, 0, 4 * rows * ROWS).view(np.float32).reshape(rows, ROWS)
    assert proof.compare(found, gate / (1 + np.exp(-gate)) * up, np.abs(gate * up).max(), 1e-5) == ""
    sums = device.read(kept, 0, 4 * rows * columns).view(np.float32).reshape(rows, columns)
    np.testing.assert_allclose(sums, whole, rtol=2e-6, atol=2e-6)


def test_the_likeliest_token_goes_to_the_next_token(adapter):
    from rung.kernels.webgpu.choose import FOUND_BYTES, GROUPS, feed_back, likeliest
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.info import AHEAD, INFO, POSITION, TOKEN

    device, count, random = gpu(adapter.id), 9001, np.random.default_rng(3)
    plain = random.standard_normal(count, dtype=np.float32)
    rows = [plain, -np.abs(plain) - 1, np.round(plain), np.zeros(count, np.float32)]
    rows[3][:7] = -0.0
    for token, value in ((0, 50), (count - 1, 50), (4097, np.nan), (4097, -np.nan), (8, np.inf), (8, -np.inf)):
        rows.append(plain.copy())
        rows[-1][token] = value
    rows += [np.full(count, -np.inf, np.float32), np.full(count, np.finfo(np.float32).min)]
    info, chosen = device.buffer(4 * INFO), device.buffer(64)
    logits, found = device.buffer(4 * count), device.buffer(FOUND_BYTES)
    kernels = [
        device.bind(likeliest(count), [logits, found], GROUPS),
        device.bind(feed_back(), [found, info, chosen], 1),
    ]
    for number, row in enumerate(rows):
        device.write(logits, 0, row)
        device.run(kernels)
        words, right = device.read(info, 0, 4 * INFO).view(np.uint32), int(row.argmax())
        assert [words[POSITION], words[AHEAD], words[TOKEN]] == [number + 1, number + 1, right], number
        token = int(device.read(chosen, 4 * number, 4).view(np.int32)[0])
        assert token == (right if np.isfinite(row[right]) else -1), number


def rows_to_draw_of(count, chance):
    """Rows of logits: peaked, flat, with equal ones, with -inf, the likeliest all at the beginning."""
    for scale in (0.5, 2.0, 5.0):
        yield scale * chance.standard_normal(count, dtype=np.float32)
    yield -np.abs(chance.standard_normal(count, dtype=np.float32)) - 1e4
    yield np.round(3 * chance.standard_normal(count, dtype=np.float32))
    sparse = np.full(count, -np.inf, np.float32)
    sparse[chance.choice(count, 9, replace=False)] = chance.standard_normal(9)
    yield sparse
    falling = -np.log1p(np.arange(count, dtype=np.float32)) * 2
    yield falling + 0.01 * chance.standard_normal(count, dtype=np.float32)


@pytest.mark.parametrize("count", [83, pytest.param(9001, marks=pytest.mark.slow)])
def test_drawn_tokens_are_those_of_the_processor(adapter, count):
    """Never another one; where float32 cannot tell the processor is told to draw, which is seldom."""
    from rung.kernels.webgpu import draw
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.info import AHEAD, INFO, POSITION, TOKEN
    from rung.ops.sample.numpy_sample import RUNG
    from rung.ops.token_choice import Row

    device, chance = gpu(adapter.id), np.random.default_rng(5)
    info, chosen, settings = device.buffer(4 * INFO), device.buffer(64), device.buffer(draw.SETTINGS_BYTES)
    logits, found = device.buffer(4 * count), device.buffer(draw.FOUND_BYTES)
    kernels = {}
    for filtered in (False, True):
        first = device.bind(draw.part(count, filtered), [logits, settings, found], draw.PARTS)
        second = draw.draw(count, filtered)
        kernels[filtered] = [first, device.bind(second, [logits, settings, found, info, chosen], 1)]
    few = [{"top_k": 1}, {"top_k": 40}, {"top_k": 64, "min_p": 0.05}, {"min_p": 0.1}, {"top_p": 0.5}]
    few += [{"top_k": 30, "top_p": 0.8, "min_p": 0.01}, {"top_p": 0.9, "min_p": 0.2}]
    left = 0
    tried = [({}, row) for row in rows_to_draw_of(count, chance)]
    for number, options in enumerate(few):  # each row with two or three of them
        tried += [(options, row) for row in list(rows_to_draw_of(count, chance))[number % 3 :: 3]]
    for number, (options, row) in enumerate(tried):
        temperature = float(chance.choice([0.3, 1.0, 1.7]))
        bits = [int(each) for each in chance.integers(0, 2**64, 16, np.uint64)]
        if not number:
            bits[:2] = 0, 2**64 - 1
        rows = [Row(temperature=temperature, **options, random=each) for each in bits]
        one = rows[0]
        device.write(logits, 0, row)
        device.write(settings, 0, draw.settings(one.inverse, one.top_k, one.top_p, one.min_p, bits))
        device.write(info, 0, np.zeros(INFO, np.uint32))
        device.run(kernels[bool(options)] * 16)
        tokens = device.read(chosen, 0, 64).view(np.uint32).tolist()
        words = device.read(info, 0, 4 * INFO).view(np.uint32)
        assert [words[POSITION], words[AHEAD]] == [16, 16]
        right = [each.token for each in RUNG.apply(None, np.stack([row] * 16), rows)]
        wrong = [pair for pair in zip(tokens, right, strict=True) if pair[0] not in (pair[1], draw.PROCESSOR)]
        assert not wrong, (options, temperature)
        assert words[TOKEN] < count
        equal = len(np.unique(row)) < count // 2
        wide = options and "top_k" not in options  # filters may leave more than are looked at
        left += 0 if equal or wide else tokens.count(draw.PROCESSOR)
    assert left < 0.02 * 16 * len(tried)


def test_no_token_is_drawn_of_what_is_no_number(adapter):
    from rung.kernels.webgpu import draw
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.info import INFO

    device, count = gpu(adapter.id), 700
    info, chosen, settings = device.buffer(4 * INFO), device.buffer(64), device.buffer(draw.SETTINGS_BYTES)
    logits, found = device.buffer(4 * count), device.buffer(draw.FOUND_BYTES)
    device.write(settings, 0, draw.settings(1.0, 5, 1.0, 0.0, [1 << 63]))
    for value in (np.nan, -np.nan, np.inf, None):
        row = np.full(count, -np.inf if value is None else 0.0, np.float32)
        row[300] = row[300] if value is None else value
        device.write(logits, 0, row)
        for filtered in (False, True):
            device.write(info, 0, np.zeros(INFO, np.uint32))
            device.run(
                [
                    device.bind(draw.part(count, filtered), [logits, settings, found], draw.PARTS),
                    device.bind(draw.draw(count, filtered), [logits, settings, found, info, chosen], 1),
                ]
            )
            assert device.read(chosen, 0, 4).view(np.uint32)[0] == 0xFFFFFFFF


@pytest.mark.parametrize("name", ["q8_0", "q6_k", "q4_k"])
def test_rows_of_an_embedding_are_exact(adapter, name):
    rung = LADDERS["embedding"].rung("webgpu.rows").load()
    encoded = proof.weights(name, ROWS, proof.columns_of(name))
    state = rung.prepare(encoded, dtype="f32", threads=2, device=adapter.id)
    ids = [82, 0, 17, 17, *range(20)]
    np.testing.assert_array_equal(rung.rows(state, ids), formats.decode(encoded)[ids])


def test_a_weight_beyond_a_binding_lies_in_pieces(adapter, monkeypatch):
    from dataclasses import replace

    from rung.kernels.webgpu.gpu import gpu

    device = gpu(adapter.id)
    encoded = proof.weights("q6_k", ROWS, 512)
    monkeypatch.setattr(device, "limits", replace(device.limits, binding=40_000))
    rung = LADDERS["linear"].rung("webgpu.rows").load()
    state = rung.prepare(encoded, dtype="f32", threads=2, device=adapter.id)
    assert len(state.pieces) > 1
    assert sum(piece.rows for piece in state.pieces) == ROWS
    monkeypatch.undo()
    x = np.random.default_rng(0).standard_normal((2, 512), dtype=np.float32)
    right = x @ formats.decode(encoded).astype(np.float64).T
    assert proof.compare(rung.multiply(state, x), right, np.abs(right).max(), 1e-5) == ""
    looked_up = LADDERS["embedding"].rung("webgpu.rows").load().rows(state, [82, 0, 31, 32])
    np.testing.assert_array_equal(looked_up, formats.decode(encoded)[[82, 0, 31, 32]])


def test_a_buffer_beyond_the_limit_is_refused_with_both_numbers(adapter):
    from rung.kernels.webgpu.gpu import gpu

    device = gpu(adapter.id)
    with pytest.raises(OutOfMemory, match="is more than") as caught:
        device.buffer(device.limits.buffer + 16)
    assert f"{device.limits.buffer:,}" in caught.value.facts[0]
