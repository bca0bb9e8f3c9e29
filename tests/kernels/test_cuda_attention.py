"""Attention of a whole token in CUDA C, built for the processor, against float64: in one block and in many."""

import ctypes

import numpy as np
import pytest
import torch

from rung.kernels.cuda import fibers
from rung.kernels.cuda.attention_source import MOST_PARTS, PART, attention, part_floats, parts_of
from rung.kernels.cuda.driver import Attend
from rung.kernels.gpu.decoders import quantized_parts
from rung.kernels.webgpu.attention import quantized

pytestmark = pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
HEADS, KV_HEADS = 4, 2
#: What a cache of each kind makes of numbers.
KEPT = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16), "q8_0": quantized}


def in_bytes(numbers):
    """Return numbers [blocks, heads, positions, size] as a cache in q8_0 has them, [blocks, heads, bytes]."""
    codes, scales = quantized_parts(torch.from_numpy(numbers))
    parts = codes.numpy().view(np.uint8), scales.view(torch.int16).numpy().view(np.uint8)
    return np.concatenate([part.reshape(*numbers.shape[:2], -1) for part in parts], axis=2)


def attended(position, context, size=64, window=0, softcap=0.0, dtype="f16", block=0):
    """The kernel's result [heads, size] as its int8 stands for it, the right one, and the steps of these int8.

    The cache has the positions before; rotations are by angles that are not 0.
    """
    random, kept = np.random.default_rng(position + size), KEPT[dtype]
    block = block or context
    shape = (-(-context // block), KV_HEADS, block, size)
    cached = [random.normal(size=shape).astype(np.float32) for _ in range(2)]
    keys, values = map(in_bytes, cached) if dtype == "q8_0" else map(kept, cached)
    qkv = random.normal(size=(HEADS + 2 * KV_HEADS, size)).astype(np.float32)
    angles = random.normal(size=size // 2)
    turn = np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32)
    table = random.permutation(len(keys)).astype(np.int32)
    info, parts = np.concatenate([[position], table]).astype(np.int32), parts_of(context)
    quantized = np.zeros(-(-HEADS * size // 1024) * 96 * 16, np.uint8)
    left, counters = np.zeros(HEADS * parts * part_floats(size), np.float32), np.zeros(HEADS, np.int32)
    row = keys.strides[2] if keys.ndim == 4 else size
    argument = Attend(
        qkv=qkv.ctypes.data, turn=turn.ctypes.data, keys=keys.ctypes.data, values=values.ctypes.data,
        info=info.ctypes.data, quantized=quantized.ctypes.data, left=left.ctypes.data, counters=counters.ctypes.data,
        block_bytes=keys.strides[0], head=keys.strides[1], row=row, heads=HEADS, kv_heads=KV_HEADS,
        half=size // 2, window=window, table=1, block=block, most_parts=parts, scale=size**-0.5, softcap=softcap,
        epsilon=1e-6,
    )  # fmt: skip
    before = keys.copy()
    for _ in range(2):  # counters are as they were
        fibers.launch(attention(size, False, dtype), "attend", (HEADS, parts), [argument])
    assert (keys != before).any(axis=-1).sum() == KV_HEADS
    if dtype == "q8_0":  # a row of bytes and its scales
        assert 0 < (keys != before).sum() <= KV_HEADS * size * 17 // 16
    assert isinstance(argument, ctypes.Structure)
    cached = [kept(each).astype(np.float64) for each in cached]
    sought = expected(qkv.astype(np.float64), angles, *cached, table, position, window, softcap, kept)
    units = [at // 32 * 96 + at % 32 for at in range(HEADS * size // 32)]
    vectors = quantized.reshape(-1, 16)
    codes = np.array([np.concatenate([vectors[at], vectors[at + 32]]).view(np.int8) for at in units])
    scales = np.array([vectors[at + 64].view(np.float32)[0] for at in units])[:, None]
    return (codes * scales).reshape(HEADS, size), sought, np.repeat(scales, 32, axis=1).reshape(HEADS, size)


def expected(qkv, angles, keys, values, table, position, window, softcap, kept):
    """Return attention [heads, size] in float64."""
    size, first = qkv.shape[1], max(0, position + 1 - window) if window else 0
    along = [
        np.concatenate(list(part[table].astype(np.float64)), axis=1)[:, first : position + 1] for part in (keys, values)
    ]
    one, two = qkv[:, : size // 2], qkv[:, size // 2 :]
    turned = np.concatenate(
        [one * np.cos(angles) - two * np.sin(angles), two * np.cos(angles) + one * np.sin(angles)], 1
    )
    result = []
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        key, value = along[0][kv].copy(), along[1][kv].copy()
        key[-1] = kept(turned[HEADS + kv].astype(np.float32))
        value[-1] = kept(qkv[HEADS + KV_HEADS + kv].astype(np.float32))
        scores = key @ turned[head] * size**-0.5
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        weights = np.exp(scores - scores.max())
        result.append(weights @ value / weights.sum())
    return np.array(result)


@pytest.mark.parametrize(
    ("position", "context", "more"),
    [
        *((at, 700, {}) for at in (0, 2, PART - 1, PART, PART + 1, 3 * PART + 5, 699)),
        (MOST_PARTS * PART + 300, MOST_PARTS * PART + 512, {}),
        (650, 700, {"window": 200}),
        (650, 700, {"window": 100, "softcap": 5.0}),
        (400, 448, {"block": 64}),
        (300, 384, {"size": 128, "dtype": "f32"}),
        (300, 384, {"size": 256}),
        (300, 384, {"size": 32}),
        (300, 384, {"size": 96, "dtype": "q8_0"}),
        (700, 704, {"size": 128, "dtype": "q8_0", "block": 64, "window": 300}),
    ],
)
def test_attention_is_right_wherever_it_is_cut(position, context, more):
    found, sought, steps = attended(position, context, **more)
    assert (np.abs(found - sought) <= 0.51 * steps + 1e-5).all()


def test_a_head_has_no_more_blocks_than_a_warp_joins():
    assert [parts_of(context) for context in (1, PART, PART + 1, 10**6)] == [1, 1, 2, MOST_PARTS]
    assert MOST_PARTS == 32
