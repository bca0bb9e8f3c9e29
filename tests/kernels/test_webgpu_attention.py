"""Attention through WebGPU in parts, against float64 and against attention in one piece."""

import re

import numpy as np
import pytest

from rung.kernels.webgpu.attention import (
    Heads,
    Sight,
    Turn,
    attend,
    join_parts,
    quantized,
    rope_and_store,
)
from rung.kernels.webgpu.gpu import gpu
from rung.kernels.webgpu.info import INFO, MOST_PARTS, MOST_ROWS, ONE_PART, POSITION, TABLE, part_bytes
from tests.support.devices import software_adapter

adapter = software_adapter()
HEADS, KV_HEADS, BLOCK = 4, 2, 64


def in_bytes(values):
    """Return values [..., positions, size] as bytes and scales in bfloat16, by head."""
    units = values.reshape(*values.shape[:-1], -1, 32)
    scales = np.abs(units).max(axis=-1, keepdims=True) / np.float32(127)
    scales = (scales.view(np.uint32) + 0xFFFF) >> 16
    y = units / (scales << 16).view(np.float32)
    codes = (np.sign(y) * np.floor(np.abs(y) + np.float32(0.5))).astype(np.int8)
    assert (codes * (scales << 16).view(np.float32) == quantized(values).reshape(units.shape)).all()
    assert np.abs(units - quantized(values).reshape(units.shape)).max() <= 0.504 / 127 * np.abs(values).max()
    parts = [codes.view(np.uint8), scales.astype(np.uint16).view(np.uint8)]
    return np.concatenate([part.reshape(*values.shape[:-2], -1) for part in parts], axis=-1)


class Layer:
    """A layer's cache of random keys and values, in sequences of so many positions, and what kernels read beside it."""

    def __init__(self, adapter, positions, size, kind):
        self.gpu, self.size, self.positions, codes = gpu(adapter.id), size, positions, kind == "q8_0"
        random = np.random.default_rng(size)
        self.per_sequence = max(positions) // BLOCK + 1
        blocks, rows = self.per_sequence * len(positions), len(positions)
        self.cache = random.normal(size=(blocks, 2, KV_HEADS, BLOCK, size)).astype(np.float32)
        self.kept = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16), "q8_0": quantized}[kind]
        self.there = in_bytes(self.cache) if codes else self.kept(self.cache)
        self.cache = self.kept(self.cache)
        self.qkv = random.normal(size=(rows, HEADS + 2 * KV_HEADS, size)).astype(np.float32)
        self.tables = random.permutation(blocks).reshape(rows, -1).astype(np.uint32)
        self.angles = random.normal(size=(rows, size // 2))
        row_words = {"f32": size, "f16": size // 2, "q8_0": size // 4}[kind]
        tables, head = MOST_ROWS * self.per_sequence, self.there[0, 0, 0].nbytes // 4
        self.heads = Heads(HEADS, KV_HEADS, size, BLOCK, kind == "f16", 2 * KV_HEADS * head, KV_HEADS * head, head,
                           row_words, self.there.nbytes // 4, tables, codes)  # fmt: skip
        self.turn = Turn(size, False, 4, -1, -1, 1e-6)

    def attended(self, sight, parted, apart=True):
        """Return the attention of a row of each sequence [rows, heads, size]."""
        upload, rows = self.gpu.upload, len(self.positions)
        info = np.zeros(INFO, np.uint32)
        info[POSITION : POSITION + rows] = self.positions
        info[TABLE : TABLE + rows] = np.arange(rows) * self.per_sequence
        tables, turns = np.zeros(self.heads.tables, np.uint32), np.zeros((MOST_ROWS, self.size), np.float32)
        tables[: self.tables.size] = self.tables.ravel()
        turns[:rows] = np.concatenate([np.cos(self.angles), np.sin(self.angles)], axis=1)
        qkv = np.zeros((MOST_ROWS, self.heads.wide), np.float32)
        qkv[:rows] = self.qkv.reshape(rows, -1)
        buffers = [upload([each]) for each in (np.zeros(4, np.float32), info, tables, turns, qkv, self.there)]
        y = self.gpu.buffer(4 * MOST_ROWS * HEADS * self.size)
        kernel = attend(self.heads, sight, self.turn if apart else None, parted=parted)
        work = [] if apart else [self.gpu.bind(rope_and_store(self.heads, self.turn), buffers, self.heads.all, 0)]
        if parted:
            left = self.gpu.bindable(part_bytes(HEADS, self.heads.size))
            work.append(self.gpu.bind(kernel, [*buffers, left], HEADS * MOST_PARTS, 0))
            work.append(self.gpu.bind(join_parts(self.heads, sight, apart, False), [left, buffers[1], y], HEADS, 0))
        else:
            work.append(self.gpu.bind(kernel, [*buffers, y], HEADS, 0))
        self.gpu.run(work, rows)
        count = rows * HEADS * self.size
        return self.gpu.read(y, 0, 4 * count).view(np.float32).reshape(rows, HEADS, self.size)

    def expected(self, sight):
        """Return the same in float64."""
        result = np.zeros((len(self.positions), HEADS, self.size))
        for row, position in enumerate(self.positions):
            first = max(0, position + 1 - sight.window) if sight.window else 0
            x, half, angles = self.qkv[row].astype(np.float64), self.size // 2, self.angles[row]
            one, two = x[:, :half], x[:, half:]
            turned = np.concatenate([one * np.cos(angles) - two * np.sin(angles),
                                     two * np.cos(angles) + one * np.sin(angles)], axis=1)  # fmt: skip
            parts = self.cache[self.tables[row]].astype(np.float64)
            for head in range(HEADS):
                kv = head // (HEADS // KV_HEADS)
                keys, values = (parts[:, which, kv].reshape(-1, self.size)[first : position + 1] for which in (0, 1))
                keys[-1] = self.kept(turned[HEADS + kv].astype(np.float32))
                values[-1] = self.kept(x[HEADS + KV_HEADS + kv].astype(np.float32))
                scores = keys @ turned[head] * sight.scale
                if sight.softcap:
                    scores = sight.softcap * np.tanh(scores / sight.softcap)
                weights = np.exp(scores - scores.max())
                result[row, head] = weights @ values / weights.sum()
        return result


@pytest.mark.parametrize(
    ("size", "kind", "window", "softcap"),
    [
        (64, "f16", None, None),
        (128, "f32", None, 5.0),
        (96, "f16", 1100, None),
        (256, "f16", 300, None),
        (96, "q8_0", None, None),
        (256, "q8_0", 300, 5.0),
    ],
)
@pytest.mark.parametrize("apart", [pytest.param(True, marks=pytest.mark.slow), False])
def test_rows_of_any_length_see_what_they_shall(adapter, size, kind, window, softcap, apart):
    """Positions of one part and of all; those up to ``ONE_PART`` have the bits of attention in one piece."""
    positions = [0, 3, ONE_PART - 1, ONE_PART + 1, 1500, 5003]
    layer, sight = Layer(adapter, positions, size, kind), Sight(size**-0.5, window, softcap)
    found, whole = (layer.attended(sight, parted, apart) for parted in (True, False))
    assert np.abs(found - layer.expected(sight)).max() < 2e-5
    short = [number for number, at in enumerate(positions) if at < ONE_PART]
    assert (found[short] == whole[short]).all()
    assert window == 300 or (found != whole).any()


@pytest.mark.parametrize("makes", [False, True])
@pytest.mark.parametrize("size", [64, 256])
def test_memory_of_a_workgroup_is_counted_as_it_is_declared(size, makes):
    words = size // 4
    heads = Heads(HEADS, KV_HEADS, size, BLOCK, False, 2 * words, words, words, words, 64 * words, 4, True)
    sight, turn = Sight(1.0, None, None), Turn(size, False, 4, -1, -1, 1e-6)
    kernels = [
        rope_and_store(heads, turn),
        join_parts(heads, sight, True, makes),
        join_parts(heads, sight, False, makes),
    ]
    kernels += [attend(heads, sight, each, makes, parted) for each in (turn, None) for parted in (False, True)]
    for kernel in kernels:
        declared = re.findall(r"var<workgroup> \w+: array<(?:atomic<)?[fiu]32>?, (\d+)>", kernel.code)
        assert len(declared) == kernel.code.count("var<workgroup>")
        assert 4 * sum(map(int, declared)) == kernel.workgroup_bytes
