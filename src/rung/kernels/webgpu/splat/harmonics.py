"""Real spherical harmonics to degree 3 in WGSL, and the derivative of their sum; signs as in 3D Gaussian Splatting.

Source: Sloan, Efficient Spherical Harmonic Evaluation (JCGT 2013).
"""

from __future__ import annotations

import functools

#: The harmonics of a unit vector d, by number.
_TERMS = (
    "0.28209479177387814",
    "-0.4886025119029199 * d.y",
    "0.4886025119029199 * d.z",
    "-0.4886025119029199 * d.x",
    "1.0925484305920792 * d.x * d.y",
    "-1.0925484305920792 * d.y * d.z",
    "0.31539156525252005 * (2.0 * d.z * d.z - d.x * d.x - d.y * d.y)",
    "-1.0925484305920792 * d.x * d.z",
    "0.5462742152960396 * (d.x * d.x - d.y * d.y)",
    "-0.5900435899266435 * d.y * (3.0 * d.x * d.x - d.y * d.y)",
    "2.890611442640554 * d.x * d.y * d.z",
    "-0.4570457994644658 * d.y * (4.0 * d.z * d.z - d.x * d.x - d.y * d.y)",
    "0.3731763325901154 * d.z * (2.0 * d.z * d.z - 3.0 * d.x * d.x - 3.0 * d.y * d.y)",
    "-0.4570457994644658 * d.x * (4.0 * d.z * d.z - d.x * d.x - d.y * d.y)",
    "1.445305721320277 * d.z * (d.x * d.x - d.y * d.y)",
    "-0.5900435899266435 * d.x * (d.x * d.x - 3.0 * d.y * d.y)",
)
#: Their derivatives by d.
_SLOPES = (
    "vec3<f32>(0.0)",
    "vec3<f32>(0.0, -0.4886025119029199, 0.0)",
    "vec3<f32>(0.0, 0.0, 0.4886025119029199)",
    "vec3<f32>(-0.4886025119029199, 0.0, 0.0)",
    "1.0925484305920792 * vec3<f32>(d.y, d.x, 0.0)",
    "-1.0925484305920792 * vec3<f32>(0.0, d.z, d.y)",
    "0.31539156525252005 * vec3<f32>(-2.0 * d.x, -2.0 * d.y, 4.0 * d.z)",
    "-1.0925484305920792 * vec3<f32>(d.z, 0.0, d.x)",
    "0.5462742152960396 * vec3<f32>(2.0 * d.x, -2.0 * d.y, 0.0)",
    "-0.5900435899266435 * vec3<f32>(6.0 * d.x * d.y, 3.0 * d.x * d.x - 3.0 * d.y * d.y, 0.0)",
    "2.890611442640554 * vec3<f32>(d.y * d.z, d.x * d.z, d.x * d.y)",
    "-0.4570457994644658 * vec3<f32>(-2.0 * d.x * d.y, 4.0 * d.z * d.z - d.x * d.x - 3.0 * d.y * d.y, 8.0 * d.y * d.z)",
    "0.3731763325901154 * vec3<f32>(-6.0 * d.x * d.z, -6.0 * d.y * d.z,"
    " 6.0 * d.z * d.z - 3.0 * d.x * d.x - 3.0 * d.y * d.y)",
    "-0.4570457994644658 * vec3<f32>(4.0 * d.z * d.z - 3.0 * d.x * d.x - d.y * d.y, -2.0 * d.x * d.y, 8.0 * d.x * d.z)",
    "1.445305721320277 * vec3<f32>(2.0 * d.x * d.z, -2.0 * d.y * d.z, d.x * d.x - d.y * d.y)",
    "-0.5900435899266435 * vec3<f32>(3.0 * d.x * d.x - 3.0 * d.y * d.y, -6.0 * d.x * d.y, 0.0)",
)
_READ = "vec3<f32>(colors[first + {0}u], colors[first + {1}u], colors[first + {2}u])"


def _coefficient(term: int) -> str:
    return _READ.format(3 * term, 3 * term + 1, 3 * term + 2)


@functools.cache
def view_color(degree: int | None) -> str:
    """Return ``fn view_color(first, d)``: the color that is seen along the unit vector d, of the harmonics that begin
    at ``colors[first]``; plain colors as they are."""
    if degree is None:
        return f"fn view_color(first: u32, d: vec3<f32>) -> vec3<f32> {{ return {_coefficient(0)}; }}"
    lines = [f"    sum += ({_TERMS[term]}) * {_coefficient(term)};" for term in range((degree + 1) ** 2)]
    body = "\n".join(["    var sum = vec3<f32>(0.5);", *lines, "    return max(sum, vec3<f32>(0.0));"])
    return f"fn view_color(first: u32, d: vec3<f32>) -> vec3<f32> {{\n{body}\n}}"


@functools.cache
def color_back(degree: int | None) -> str:
    """Return ``fn color_back(first, d, given)``: writes ``g_colors`` from the gradient of the color, and returns the
    gradient by d."""
    head = "fn color_back(first: u32, d: vec3<f32>, given: vec3<f32>) -> vec3<f32> {\n    var slope = vec3<f32>(0.0);\n"
    if degree is None:
        return f"{head}{_write(0, 'given')}\n    return slope;\n}}"
    lines = []
    for term in range((degree + 1) ** 2):
        lines.append(_write(term, f"({_TERMS[term]}) * given"))
        if term:
            lines.append(f"    slope += dot({_coefficient(term)}, given) * ({_SLOPES[term]});")
    return head + "\n".join(lines) + "\n    return slope;\n}"


def _write(term: int, value: str) -> str:
    parts = "".join(f" g_colors[first + {3 * term + at}u] = v.{axis};" for at, axis in enumerate("xyz"))
    return f"    {{ let v = {value};{parts} }}"
