"""Splats laid over each other in tiles of 16 x 16 pixels, a workgroup and its 256 threads for each.

``pixels`` of a picture [H, W] are six planes of f32, one after the other: colors [H, W, 3], depth, what is left of the
light behind, and the number after the last splat taken. Thresholds are those of ``rung.ops.rasterize``.
"""

from __future__ import annotations

import functools

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.splat import WORKGROUP_BYTES
from rung.kernels.webgpu.splat.camera import INFO, INFO_BYTES, Words
from rung.kernels.webgpu.splat.projection import RECORD
from rung.kernels.webgpu.splat.projection_back import PARTS, UNSIGNED
from rung.kernels.webgpu.splat.sorting import shader

#: Floats of a pixel.
PIXEL = 6

#: What a splat covers of a pixel: its opacity there before it is held to the most, and whether it counts.
ALPHA_CODE = """
const MOST = 0.999;
const LEAST = 0.00392156862745098;
fn power_of(conic: vec4<f32>, dx: f32, dy: f32) -> f32 {
    return 0.5 * (conic.x * dx * dx + conic.z * dy * dy) + conic.y * dx * dy;
}
"""
_COMPOSITE = """
const LEAST_LEFT = 1e-4;
var<workgroup> batch: array<vec4<f32>, 768>;
var<workgroup> taking: atomic<u32>;
%MAIN%
    if (block >= info.across * info.down) { return; }
    let column = block % info.across * 16u + thread % 16u;
    let line = block / info.across * 16u + thread / 16u;
    let x = f32(column) + 0.5;
    let y = f32(line) + 0.5;
    let inside = column < info.width && line < info.height;
    var open = inside;
    var left = 1.0;
    var last = 0u;
    var color = vec3<f32>(0.0);
    var depth = 0.0;
    let begin = starts[block];
    let end = starts[block + 1u];
    if (thread == 0u) { atomicStore(&taking, 1u); }
    workgroupBarrier();
    for (var first = begin; first < end; first += 256u) {
        if (atomicLoad(&taking) == 0u) { break; }
        if (first + thread < end) {
            let from_here = 3u * listed[first + thread];
            for (var part = 0u; part < 3u; part++) { batch[3u * thread + part] = records[from_here + part]; }
        }
        workgroupBarrier();
        if (thread == 0u) { atomicStore(&taking, 0u); }
        workgroupBarrier();
        if (open) {
            let count = min(end - first, 256u);
            for (var k = 0u; k < count; k++) {
                let place = batch[3u * k];
                let dx = x - place.x;
                let dy = y - place.y;
                let power = power_of(batch[3u * k + 1u], dx, dy);
                let alpha = min(place.z * exp(-power), MOST);
                if (power >= 0.0 && alpha >= LEAST) {
                    let after = left * (1.0 - alpha);
                    if (after <= LEAST_LEFT) {
                        open = false;
                        break;
                    }
                    let weight = alpha * left;
                    color += weight * batch[3u * k + 2u].xyz;
                    depth += weight * place.w;
                    left = after;
                    last = first - begin + k + 1u;
                }
            }
            if (open) { atomicStore(&taking, 1u); }
        }
        workgroupBarrier();
    }
    if (!inside) { return; }
    let size = info.width * info.height;
    let at = line * info.width + column;
    pixels[3u * at] = color.x;
    pixels[3u * at + 1u] = color.y;
    pixels[3u * at + 2u] = color.z;
    pixels[3u * size + at] = depth;
    pixels[4u * size + at] = left;
    pixels[5u * size + at] = f32(last);
}"""


@functools.cache
def _composite_code() -> str:
    kinds = ["info: Info", "records: array<vec4<f32>>", "listed: array<u32>", "starts: array<u32>"]
    return INFO + shader([*kinds, "pixels: array<f32>"], (4,), ALPHA_CODE + _COMPOSITE)


def composite(words: Words, listed: int) -> Kernel:
    """Return the kernel over info, records, the lists of all tiles (``listed`` entries), where they begin, and pixels;
    a workgroup for each tile."""
    (width, height), (across, down) = words.size, words.tiles
    reaches = (INFO_BYTES, 4 * RECORD * words.splats, 4 * listed, 4 * (across * down + 1), 4 * PIXEL * width * height)
    return Kernel(_composite_code(), (False,) * 4 + (True,), reaches, 48 * 256 + 4)


_BLAME = """
var<workgroup> scratch: array<f32, 4096>;  // slopes and weights of eight splats, then their partial sums
var<workgroup> grads: array<vec4<f32>, 256>;
var<workgroup> batch: array<vec4<f32>, 24>;
var<workgroup> entries: array<u32, 8>;
var<workgroup> taken: atomic<u32>;
%MAIN%
    if (block >= info.across * info.down) { return; }
    let corner = 16u * vec2<u32>(block % info.across, block / info.across);
    let column = corner.x + thread % 16u;
    let line = corner.y + thread / 16u;
    let at = line * info.width + column;
    let size = info.width * info.height;
    let told = 10u + 2u * info.unsigned;
    let begin = starts[block];
    var left = 1.0;
    var last = 0u;
    var given = vec4<f32>(0.0);
    var by_alpha = 0.0;
    if (column < info.width && line < info.height) {
        left = pixels[4u * size + at];
        last = u32(pixels[5u * size + at]);
        given = vec4<f32>(gradients[3u * at], gradients[3u * at + 1u], gradients[3u * at + 2u],
                          gradients[3u * size + at]);
        by_alpha = gradients[4u * size + at];
    }
    grads[thread] = given;
    if (thread == 0u) { atomicStore(&taken, 0u); }
    workgroupBarrier();
    atomicMax(&taken, last);
    workgroupBarrier();
    var loss = 0.0;
    // in the sums a thread has a splat, a column, and every other line
    let own = thread / 32u;
    let lane = thread % 32u;
    let x = f32(corner.x + lane % 16u) + 0.5;
    for (var number = atomicLoad(&taken); number > 0u; number -= min(number, 8u)) {
        if (thread < 24u && thread / 3u < number) {
            batch[thread] = records[3u * listed[begin + number - 1u - thread / 3u] + thread % 3u];
        }
        if (thread < 8u && thread < number) {
            let place = places[listed[begin + number - 1u - thread]];
            entries[thread] = place.x + (corner.y / 16u) * place.y + corner.x / 16u;
        }
        workgroupBarrier();
        for (var k = 0u; k < 8u; k++) {
            var weight = 0.0;
            var slope = 0.0;
            if (k < number && number - k <= last) {
                let place = batch[3u * k];
                let dx = f32(column) + 0.5 - place.x;
                let dy = f32(line) + 0.5 - place.y;
                let power = power_of(batch[3u * k + 1u], dx, dy);
                let raw = place.z * exp(-power);
                let alpha = min(raw, MOST);
                if (power >= 0.0 && alpha >= LEAST) {
                    left = left / (1.0 - alpha);
                    let rise = dot(given, vec4<f32>(batch[3u * k + 2u].xyz, place.w)) + by_alpha - loss;
                    weight = alpha * left;
                    slope = select(0.0, -weight * rise, raw <= MOST);
                    loss += alpha * rise;
                }
            }
            scratch[256u * k + thread] = slope;
            scratch[2048u + 256u * k + thread] = weight;
        }
        workgroupBarrier();
        var sums = array<f32, 12>();
        let conic = batch[3u * own + 1u];
        let dx = x - batch[3u * own].x;
        for (var r = 0u; r < 16u; r += 2u) {
            let pixel = 16u * (r + lane / 16u) + lane % 16u;
            let slope = scratch[256u * own + pixel];
            let weight = scratch[2048u + 256u * own + pixel];
            let dy = f32(corner.y + r + lane / 16u) + 0.5 - batch[3u * own].y;
            let color = weight * grads[pixel];
            sums[0] += slope;
            sums[1] += slope * dx;
            sums[2] += slope * dy;
            sums[3] += slope * dx * dx;
            sums[4] += slope * dx * dy;
            sums[5] += slope * dy * dy;
            sums[6] += color.x;
            sums[7] += color.y;
            sums[8] += color.z;
            sums[9] += color.w;
            sums[10] += abs(slope * (conic.x * dx + conic.y * dy));
            sums[11] += abs(slope * (conic.y * dx + conic.z * dy));
        }
        workgroupBarrier();
        for (var part = 0u; part < 12u; part++) { scratch[256u * part + thread] = sums[part]; }
        workgroupBarrier();
        if (thread < 8u * told && thread % 8u < number) {
            let part = thread / 8u;
            var sum = 0.0;
            for (var k = 0u; k < 32u; k++) {  // each thread begins elsewhere, in another bank
                sum += scratch[256u * part + 32u * (thread % 8u) + (k + thread) % 32u];
            }
            parts[entries[thread % 8u] * told + part] = sum;
        }
        workgroupBarrier();
    }
}"""


@functools.cache
def _blame_code() -> str:
    kinds = ["info: Info", "records: array<vec4<f32>>", "places: array<vec2<u32>>", "listed: array<u32>"]
    kinds += ["starts: array<u32>", "pixels: array<f32>", "gradients: array<f32>", "parts: array<f32>"]
    return INFO + shader(kinds, (7,), ALPHA_CODE + _BLAME)


def blame(words: Words, listed: int) -> Kernel:
    """Return the kernel that takes the splats off again, last first, and writes what each tile tells of each; a
    workgroup for each tile.

    Its buffers: info, records, places, the lists of all tiles, where they begin, pixels, ``gradients`` (f32: of colors
    [H, W, 3], depth and alpha [H, W]) and ``parts`` [listed, told], zeros before.
    """
    (width, height), (across, down), parts = words.size, words.tiles, PARTS + UNSIGNED * words.unsigned
    reads = (INFO_BYTES, 4 * RECORD * words.splats, 8 * words.splats, 4 * listed, 4 * (across * down + 1))
    planes = (4 * PIXEL * width * height, 20 * width * height)
    return Kernel(_blame_code(), (False,) * 7 + (True,), (*reads, *planes, 4 * parts * listed), WORKGROUP_BYTES)
