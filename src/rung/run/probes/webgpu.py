"""Probe a GPU through WebGPU: values of a few lines of WGSL against float64, and the rates of reading and multiplying.

Each function returns an empty string, or a sentence that says what is wrong with the numbers. What a driver refuses it
raises, and the parent takes its message as the reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import wgpu

from rung.core.types import Device
from rung.hardware.families import webgpu
from rung.run.probes.arrays import wrong

Array = npt.NDArray[Any]

_NUMPY: dict[str, Any] = {"f32": np.float32, "f16": np.float16}
_FEATURES = ("shader-f16", "subgroup")
#: Threads of a workgroup, and the seconds that one figure may take.
_THREADS, _BUDGET = 64, 0.3
#: Workgroups and steps of the kernels that are timed, and how many times as many steps may follow.
_GROUPS, _STEPS, _MOST_STEPS = 512, 64, 1 << 14

_found: Any = None

_MATMUL = """
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> w: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= ROWS * COLUMNS) { return; }
    let row = id.x / COLUMNS;
    let column = id.x % COLUMNS;
    var sum = 0.0;
    for (var k = 0u; k < INNER; k++) { sum += f32(x[row * INNER + k] * w[column * INNER + k]); }
    y[id.x] = T(sum);
}
"""
_ATTENTION = """
@group(0) @binding(0) var<storage, read> q: array<T>;
@group(0) @binding(1) var<storage, read> k: array<T>;
@group(0) @binding(2) var<storage, read> v: array<T>;
@group(0) @binding(3) var<storage, read_write> y: array<T>;
var<workgroup> scores: array<f32, KEYS>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    for (var key = lane; key < KEYS; key += 64u) {
        var sum = 0.0;
        for (var d = 0u; d < 64u; d++) { sum += f32(q[row * 64u + d]) * f32(k[key * 64u + d]); }
        scores[key] = sum / 8.0;
    }
    workgroupBarrier();
    var most = scores[0];
    for (var key = 1u; key < KEYS; key++) { most = max(most, scores[key]); }
    var total = 0.0;
    var sum = 0.0;
    for (var key = 0u; key < KEYS; key++) {
        let weight = exp(scores[key] - most);
        total += weight;
        sum += weight * f32(v[key * 64u + lane]);
    }
    y[row * 64u + lane] = T(sum / total);
}
"""
_ELEMENTWISE = """
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> w: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= COUNT) { return; }
    let a = x[id.x];
    let b = w[id.x];
    y[id.x] = a / (T(1) + exp(-a)) * b + exp(a) * inverseSqrt(b * b + T(1));
}
"""
_INT8 = """
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= ROWS * COLUMNS) { return; }
    let row = id.x / COLUMNS;
    let column = id.x % COLUMNS;
    var sum = 0i;
    for (var k = 0u; k < INNER; k++) { sum += dot4I8Packed(x[row * INNER + k], w[column * INNER + k]); }
    y[id.x] = sum;
}
"""
_SUBGROUP = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) number: u32) {
    y[3u * lane] = subgroupAdd(x[lane]);
    y[3u * lane + 1u] = f32(size);
    y[3u * lane + 2u] = f32(number);
}
"""
_READ = """
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<u32>(0u);
    for (var at = id.x; at < COUNT; at += STRIDE) { sum += x[at]; }
    y[id.x] = sum.x + sum.y + sum.z + sum.w;
}
"""
_MULTIPLY = """
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = x[0];
    var a = vec4<f32>(f32(id.x)) * factor;
    var b = a + factor;
    var c = b + factor;
    var d = c + factor;
    for (var step = 0u; step < STEPS; step++) {
        a = fma(a, factor, factor);
        b = fma(b, factor, factor);
        c = fma(c, factor, factor);
        d = fma(d, factor, factor);
    }
    let sum = a + b + c + d;
    y[id.x] = sum.x + sum.y + sum.z + sum.w;
}
"""


def start(device: Mapping[str, Any]) -> None:
    """Open the adapter that the jobs of this child compute on; raises ``LookupError`` where it has gone."""
    global _found
    adapter = webgpu.open_adapter(Device.from_json(dict(device)))
    _found = adapter.request_device_sync(required_features=[name for name in _FEATURES if name in adapter.features])


def matmul(dtype: str) -> str:
    """Multiply x [M, K] and w [N, K] transposed, in three shapes; in int8 by ``dot4I8Packed``, exactly."""
    if dtype == "int8":
        return _int8()
    for rows, inner, columns in ((1, 256, 64), (33, 95, 47), (64, 256, 128)):
        x, w = _random((rows, inner), dtype, 1), _random((columns, inner), dtype, 2)
        sizes = {"ROWS": rows, "INNER": inner, "COLUMNS": columns}
        y = _compute(_MATMUL, dtype, sizes, (x, w), (rows, columns), -(-rows * columns // _THREADS))
        if problem := wrong(y, np.einsum("mk,nk->mn", x.astype(np.float64), w.astype(np.float64)), dtype):
            return f"{rows}x{inner} times {inner}x{columns}: {problem}"
    return ""


def attention(dtype: str) -> str:
    """Let 40 queries, and one, attend to keys of 64 values."""
    for queries, keys in ((40, 40), (1, 37)):
        q, k, v = (_random((n, 64), dtype, seed) for seed, n in ((3, queries), (4, keys), (5, keys)))
        y = _compute(_ATTENTION, dtype, {"KEYS": keys}, (q, k, v), (queries, 64), queries)
        scores = q.astype(np.float64) @ k.astype(np.float64).T / 8
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)
        if problem := wrong(y, expected, dtype):
            return f"{queries} queries over {keys} keys: {problem}"
    return ""


def elementwise(dtype: str) -> str:
    """Compute sums, products, exponentials and roots of a vector."""
    x, w = _random((8, 97), dtype, 6), _random((8, 97), dtype, 7)
    y = _compute(_ELEMENTWISE, dtype, {"COUNT": x.size}, (x, w), x.shape, -(-x.size // _THREADS))
    a, b = x.astype(np.float64), w.astype(np.float64)
    return wrong(y, a / (1 + np.exp(-a)) * b + np.exp(a) / np.sqrt(b * b + 1), dtype)


def subgroup() -> str:
    """Sum over the threads of a subgroup, whatever its size is there."""
    x = _random((64,), "f32", 8)
    found = _compute(_SUBGROUP, "f32", {}, (x,), (64, 3), 1)
    size = int(found[0, 1])
    if not 4 <= size <= 128 or not np.array_equal(found[:, 2], np.arange(64) % size):
        return f"subgroups of {size} threads do not follow each other"
    parts = [x[at : at + size].astype(np.float64) for at in range(0, 64, size)]
    return wrong(found[:, :1], np.concatenate([np.full((len(part), 1), part.sum()) for part in parts]), "f32")


def bandwidth(size: int) -> float:
    """Return the bytes read in a second of a buffer of ``size`` bytes, or as many as one binding may have."""
    limits = _found.limits
    most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
    count = min(size, most) // 16
    code = _READ.replace("COUNT", f"{count}u").replace("STRIDE", f"{_GROUPS * _THREADS}u")
    data = np.ones(4 * count, np.uint32)
    work = _Dispatch(code, (data,), 4 * _GROUPS * _THREADS, _GROUPS)
    seconds = work.seconds(_BUDGET)
    if int(work.read(np.uint32).astype(np.int64).sum()) != 4 * count:
        raise LookupError("what was read is not what was written")
    return float(16 * count / seconds)


def multiplied() -> float:
    """Return the f32 operations in a second, 2 for a multiplication and an addition; more steps until it is long."""
    steps = _STEPS
    while True:
        code = _MULTIPLY.replace("STEPS", f"{steps}u")
        factor = np.full(4, 1e-3, np.float32)
        seconds = _Dispatch(code, (factor,), 4 * _GROUPS * _THREADS, _GROUPS).seconds(_BUDGET / 3)
        if seconds > _BUDGET / 10 or steps >= _MOST_STEPS:
            return 2.0 * 16 * steps * _GROUPS * _THREADS / seconds
        steps *= 4


def _int8() -> str:
    rows, inner, columns = 33, 24, 47
    draw = np.random.default_rng(9)
    x, w = (draw.integers(-128, 128, (n, 4 * inner), dtype=np.int8) for n in (rows, columns))
    sizes = {"ROWS": rows, "INNER": inner, "COLUMNS": columns}
    packed = tuple(each.view(np.uint32) for each in (x, w))
    work = _Dispatch(_sized(_INT8, sizes), packed, 4 * rows * columns, -(-rows * columns // _THREADS))
    work.run()
    found = work.read(np.int32).reshape(rows, columns)
    off = (found != x.astype(np.int32) @ w.astype(np.int32).T).any(axis=1)
    return f"wrong numbers, first in row {int(off.argmax())}" if off.any() else ""


class _Dispatch:
    """A kernel over inputs, with one output of so many bytes."""

    def __init__(self, code: str, inputs: Sequence[Array], output: int, groups: int) -> None:
        storage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffers = [_found.create_buffer_with_data(data=_filled(each), usage=storage) for each in inputs]
        self._size = output
        self._output = _found.create_buffer(size=-(-output // 4) * 4, usage=storage)
        module = _found.create_shader_module(code=code)
        self._pipeline = _found.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        entries = [{"binding": n, "resource": {"buffer": b}} for n, b in enumerate([*buffers, self._output])]
        self._group = _found.create_bind_group(layout=self._pipeline.get_bind_group_layout(0), entries=entries)
        self._groups = groups

    def run(self) -> None:
        """Compute, and wait until it is done."""
        encoder = _found.create_command_encoder()
        computing = encoder.begin_compute_pass()
        computing.set_pipeline(self._pipeline)
        computing.set_bind_group(0, self._group)
        computing.dispatch_workgroups(self._groups)
        computing.end()
        _found.queue.submit([encoder.finish()])
        _found.queue.read_buffer(self._output, 0, 4)

    def read(self, dtype: Any) -> Array:
        """Return the output."""
        data: Array = np.frombuffer(_found.queue.read_buffer(self._output), np.uint8)[: self._size].view(dtype)
        return data

    def seconds(self, budget: float) -> float:
        """Return the seconds of the fastest run after a first one that warms up."""
        self.run()
        best, spent = float("inf"), 0.0
        while spent < budget:
            began = time.perf_counter()
            self.run()
            took = time.perf_counter() - began
            best, spent = min(best, took), spent + took
        return best


def _compute(
    code: str, dtype: str, sizes: Mapping[str, int], inputs: Sequence[Array], shape: tuple[int, ...], groups: int
) -> Array:
    kind = _NUMPY[dtype]
    enable = "enable f16;\n" if dtype == "f16" else ""
    text = f"{enable}alias T = {dtype};\n{_sized(code, sizes)}"
    work = _Dispatch(text, inputs, int(np.prod(shape)) * np.dtype(kind).itemsize, groups)
    work.run()
    return work.read(kind).reshape(shape).astype(np.float64)


def _sized(code: str, sizes: Mapping[str, int]) -> str:
    for name, number in sizes.items():
        code = code.replace(name, f"{number}u")
    return code


def _filled(array: Array) -> bytes:
    """The bytes of an array, filled up to whole words."""
    data = np.ascontiguousarray(array).tobytes()
    return data + bytes(-len(data) % 4)


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(_NUMPY[dtype])
