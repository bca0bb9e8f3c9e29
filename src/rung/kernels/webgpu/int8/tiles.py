"""Products with activations as signed bytes, and results that become such for the next product.

A workgroup computes 32 rows of weights, a unit of the next product's activations: whole, so that the thread that has
them quantizes them once for all that read them. Codes that are integers, or stand for some in a table, are multiplied
with the units of activations, four at a time; floats, and tables of fractions (nf4, fp4), take the activations as
float32. Where a norm follows a product, no workgroup has the whole sum. For one row every workgroup of the next product
makes all units in its own memory; for several rows a kernel makes them (``glue.add_normed``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import SELECTED, declare
from rung.kernels.webgpu.int8.units import NEAR, VECTORS, lanes, making_bytes, quantize, units_bytes
from rung.kernels.webgpu.layouts import (
    CODES,
    PAIRS_BYTES,
    UNIT,
    GpuLayout,
    has_integers,
    integer_offset,
    integer_step,
    integers,
    looks_up,
    pairs,
    reader,
)
from rung.kernels.webgpu.linear import TALL, Product

#: Rows of activations whose sums lie in the memory of a workgroup at once.
_AT_ONCE = 8
#: Bytes of a unit of activations that a workgroup has made itself: codes, scale and squares.
_NEAR_BYTES = 40
_NUMBERS = "vec4<f32>(values[at], values[at + 1u], values[at + 2u], values[at + 3u])"
#: The WGSL of a unit that a workgroup has made itself, and of the sums of its codes.
_NEAR = """let x = vec4<u32>(near[8u * unit], near[8u * unit + 1u], near[8u * unit + 2u], near[8u * unit + 3u]);
        let z = vec4<u32>(near[8u * unit + 4u], near[8u * unit + 5u], near[8u * unit + 6u], near[8u * unit + 7u]);
        let scale = scales[unit].x;
        let halves = vec2<i32>(@);""".replace(
    "@", ", ".join(" + ".join(f"dot4I8Packed({half}.{k}, 0x01010101u)" for k in "xyzw") for half in "xz")
)


@dataclass(frozen=True)
class Tile(Product):
    """See ``Product``. ``units``: activations are there as units too. ``makes`` writes the units of the result, times
    the gain that lies at ``after`` in ``gains`` (-1: none)."""

    units: bool = False
    makes: bool = False
    after: int = -1

    @property
    def quantizes(self) -> bool:
        """Return whether a workgroup makes the units of the one row of activations itself."""
        return self.post >= 0 and any(has_integers(each.layout) for each in self.segments)

    @property
    def threads(self) -> int:
        """Return the threads of a workgroup."""
        return 256 if self.rows == 1 else 128 if self.rows <= 4 else 64

    @property
    def height(self) -> int:
        """Return the rows of each segment that a workgroup computes."""
        return UNIT

    @property
    def tall(self) -> int:
        """Return the rows of each segment that a thread computes."""
        return self.most // 2 if self.activation else self.most

    @property
    def most(self) -> int:
        """Return the rows that a thread computes, of all segments: half where decoded floats share registers with
        the sums of several rows of activations."""
        decoded = not all(map(self._multiplies_integers, self._layouts))
        return TALL // 2 if decoded and self.rows > 1 else TALL

    @property
    def lanes(self) -> int:
        """Return the threads that share a row."""
        return self.threads * self.tall // UNIT

    @property
    def _partials(self) -> int:
        return (self.most + 1) * self.rows

    def _multiplies_integers(self, layout: GpuLayout) -> bool:
        return (self.units or self.quantizes) and has_integers(layout)

    def kernel(self) -> Kernel:
        """Return the shader; its buffers are those of ``Product``, then units, and the units that it makes."""
        plain = super().kernel()
        writes, sizes = [*plain.writes], [*plain.reaches]
        if self.units:
            writes.append(False)
            sizes.append(units_bytes(self.all_rows, self.columns))
        if self.makes:
            writes.append(True)
            sizes.append(units_bytes(self.all_rows, self.width))
        memory = 4 * (self.most + 1) * min(self.rows, _AT_ONCE) * self.threads + 4 * self.rows * (UNIT + 1)
        memory += PAIRS_BYTES * len(self._looked_up) + _NEAR_BYTES * self.columns // UNIT * self.quantizes
        memory += making_bytes(self.rows) * self.makes
        return Kernel(plain.code, tuple(writes), tuple(sizes), memory)

    def _code(self) -> Iterator[str]:
        kinds = ["vectors: array<vec4<u32>>", "words: array<u32>", "gains: array<vec4<f32>>", "info: array<u32>"]
        kinds += ["x: array<vec4<f32>>", "y: array<f32>"]
        kinds += ["changes: array<f32>", "low: array<f32>"] if self.changes else []
        if self.post >= 0:
            kinds += ["added: array<vec4<f32>>", "kept: array<vec4<f32>>"][: 1 + self.keeps]
        written = [5, len(kinds) - 1] if self.keeps else [5]
        kinds += ["units: array<vec4<u32>>"] if self.units else []
        if self.makes:
            written.append(len(kinds))
            kinds.append("quantized: array<vec4<u32>>")
        yield declare(kinds, writes=written)
        count = (self.most + 1) * min(self.rows, _AT_ONCE)
        yield f"var<workgroup> partial: array<f32, {count * self.threads}>;"
        yield f"var<workgroup> values: array<f32, {self.rows * UNIT}>;"
        yield "var<private> keeps: bool;" if self.keeps else ""
        yield "var<private> last: u32;"
        yield self._from_row
        yield self._activations()
        yield self._fill() if self.quantizes else ""
        yield CODES
        yield from self._multiplications()
        yield from (self._finish(number, segment) for number, segment in enumerate(self.segments))
        gain = f"gains[{self.after // 4}u + column / 4u + i]" if self.after >= 0 else ""
        yield quantize(_NUMBERS, gain, self.rows, self.threads) if self.makes else ""
        yield self._main(self._layouts)

    @property
    def _layouts(self) -> list[GpuLayout]:
        return list(dict.fromkeys(each.layout for each in self.segments))

    @property
    def _looked_up(self) -> list[int]:
        """Return the numbers of the layouts whose codes stand for signed bytes in a table."""
        layouts = enumerate(self._layouts)
        return [number for number, each in layouts if self._multiplies_integers(each) and looks_up(each)]

    def _multiplications(self) -> Iterator[str]:
        """Yield the functions that read weights, and those that multiply."""
        for number in self._looked_up:
            yield pairs(f"read_{number}", self._layouts[number], self.threads)
        for number, layout in enumerate(self._layouts):
            read = integers if self._multiplies_integers(layout) else reader
            yield read(f"read_{number}", layout, self.columns)
        for number, first, count in dict.fromkeys(self._calls(self._layouts)):
            if self._multiplies_integers(self._layouts[number]):
                yield self._multiply_integers(number, first, count)
            else:
                yield self._multiply(number, first, count).replace("@LAST@", "last")

    def _row(self) -> str:
        return f"min(at + r % {self.tall}u, last)" if self.activation else "min(at + r, last)"

    def _multiply(self, layout: int, first: int, count: int) -> str:
        """Return the function for activations in float32, of the threads that share a row."""
        text = super()._multiply(layout, first, count)
        plain = f"at + r % {self.most // 2}u" if self.activation else "at + r"
        text = text.replace(f", {plain}, unit", f", {self._row()}, unit")
        return text.replace(f"unit += {self.threads}u", f"unit += {self.lanes}u")

    def _many_rows(self, counts: bool, rows: range) -> str:
        """Return the loop over columns for several rows of activations in float32, which are written out as integers'
        are; each is read once for all rows of the weight, which are decoded before."""
        gain = "* gains[@GAIN@u + 8u * unit + i]" if self.gain >= 0 else ""
        decode = f"""var w#: array<vec4<f32>, 8>;
        {{
            let r = #u;
            let f = @READ@(@WHERE@, @ROW@, unit, &w#);
            for (var i = 0u; i < 8u; i++) {{
                w#[i] = (select(f.x, f.y, i > 3u) * w#[i] + select(f.z, f.w, i > 3u)) {gain};
            }}
        }}
        """
        decoded = "".join(decode.replace("#", str(r)) for r in rows)
        return f"""    for (var unit = thread; unit < @UNITS@u; unit += @THREADS@u) {{
        {decoded}
        {"".join(self._row_of_floats(b, counts, rows) for b in range(self.rows))}
    }}
"""

    def _row_of_floats(self, b: int, counts: bool, rows: range) -> str:
        """Return the WGSL that multiplies a unit of one row of activations with those of some rows of the weight."""
        added = [f"s.{'xyzw'[r - rows.start]} += dot(w{r}[i], v);" for r in rows]
        stored = [f"(*sums)[{r * self.rows + b}] += s.{'xyzw'[r - rows.start]};" for r in rows]
        squares = self.gain >= 0 and counts
        return f"""{{
            var s = vec4<f32>(0.0);
            var squares = 0.0;
            for (var i = 0u; i < 8u; i++) {{
                let v = activations({b}u, 8u * unit + i);
                {"squares += dot(v, v);" if squares else ""}
                {" ".join(added)}
            }}
            {f"(*sums)[{self.most * self.rows + b}] += squares;" if squares else ""}
            {" ".join(stored)}
        }}
        """

    def _multiply_integers(self, layout: int, first: int, count: int) -> str:
        """Return the function for units of activations. Rows of these are written out: of a loop that a driver does not
        unroll, the sums would lie in memory."""
        where = f"select(one, two, vec4<bool>(r >= {self.most // 2}u))" if self.activation else "one"
        products = "\n".join(self._row_of_units(self._layouts[layout], b, first, count) for b in range(self.rows))
        return f"""fn multiply_{layout}_{first}(one: vec4<u32>, two: vec4<u32>, at: u32, thread: u32,
        sums: ptr<function, array<f32, {self._partials}>>) {{
    for (var unit = thread; unit < {self.columns // UNIT}u; unit += {self.lanes}u) {{
        var w: array<Codes, {count}>;
        for (var r = {first}u; r < {first + count}u; r++) {{
            w[r - {first}u] = read_{layout}({where}, {self._row()}, unit);
        }}
{products}
    }}
}}"""

    def _row_of_units(self, layout: GpuLayout, b: int, first: int, count: int) -> str:
        """Return the WGSL that multiplies a unit of one row of activations with those of some rows of the weight."""
        row = f"info[{SELECTED}u + from_row + {b}u]" if self.selected else f"(from_row + {b}u)"
        lines, squares = (
            [
                f"let begin = ({row} * {self.columns // UNIT}u + unit) * {VECTORS}u;",
                "let x = units[begin]; let z = units[begin + 1u]; let about = units[begin + 2u];",
                "let scale = bitcast<f32>(about.x); let halves = bitcast<vec2<i32>>(about.yz);",
            ],
            "bitcast<f32>(about.w)",
        )
        if self.quantizes:
            lines, squares = [_NEAR], "scales[unit].y"
        if self.gain >= 0 and first == 0:
            lines.append(f"(*sums)[{self.most * self.rows + b}] += {squares};")
        for r in range(count):
            sum = f"(*sums)[{(r + first) * self.rows + b}] += scale * value;"
            lines.append(f"{{ let c = w[{r}]; {_dots(layout)} {sum} }}")
        return "        {\n            " + "\n            ".join(lines) + "\n        }"

    def _main(self, layouts: Sequence[GpuLayout]) -> str:
        norm, at_once = "", min(self.rows, _AT_ONCE)
        filled = "".join(f"fill_read_{number}(thread); " for number in self._looked_up)
        filled += "workgroupBarrier();" if filled else ""
        if self.gain >= 0:
            norm = f" * inverseSqrt(total({self.most}u, b, part) / {self.columns}.0 + {self.epsilon!r}f)"
        return f"""// the sum over the lanes of a part of the workgroup: of its row k, for a row of activations
fn total(k: u32, b: u32, part: u32) -> f32 {{
    let from = (k * {at_once}u + b % {at_once}u) * {self.threads}u + part * {self.lanes}u;
    var sum = 0.0;
    for (var t = 0u; t < {self.lanes}u; t++) {{ sum += partial[from + t]; }}
    return sum;
}}

@compute @workgroup_size({self.threads})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    {self._begin()}
    var sums: array<f32, {self._partials}>;
    var first = 0u;
    let lane = thread % {self.lanes}u;
    {f"keeps = group == 0u && thread < {self.lanes}u;" if self.keeps and not self.quantizes else ""}
    {"find_scale(thread);" if self.post >= 0 else ""}
    {"fill(group == 0u, thread);" if self.quantizes else ""}
    {filled}
    {self._choose(layouts)}
    {"".join(self._results(start, norm) for start in range(0, self.rows, at_once))}
    {self._write_units() if self.makes else ""}
}}""".replace("let from", "let begin").replace("[from +", "[begin +")

    def _results(self, start: int, norm: str) -> str:
        """Return the WGSL of the results of the rows of activations from ``start`` on, as many as find room."""
        at_once = min(self.rows, _AT_ONCE)
        kept = [
            f"partial[{(k * at_once + b) * self.threads}u + thread] = sums[{k * self.rows + start + b}];"
            for k in range(self.most + 1)
            for b in range(min(at_once, self.rows - start))
        ]
        stores = "\n    ".join(kept)
        return f"""{stores}
    workgroupBarrier();
    for (var k = thread; k < {UNIT * min(at_once, self.rows - start)}u; k += {self.threads}u) {{
        let b = {start}u + k / {UNIT}u;
        let row = (group - first) * {UNIT}u + k % {UNIT}u;
        let part = k % {UNIT}u / {self.tall}u;
        let own = k % {self.tall}u;
        let norm = 1.0{norm};
        let sum = total(own, b, part) * norm;
        {self._ends(norm, "").replace("@START@", f"{start * UNIT}u")}
    }}
    workgroupBarrier();
    """

    def _activations(self) -> str:
        """Return the function of four numbers of activations, and the scale of the norm of ``added``, which all
        threads of a workgroup find."""
        if self.post < 0:
            return super()._activations()
        assert self.rows == 1, "sums of several rows are made before"
        vectors, row = self.columns // 4, f"info[{SELECTED}u]" if self.selected else "0u"
        return f"""var<private> scale: f32;
fn find_scale(thread: u32) {{
    var sum = 0.0;
    for (var i = thread; i < {vectors}u; i += {self.threads}u) {{
        let v = added[{row} * {vectors}u + i];
        sum += dot(v, v);
    }}
    partial[thread] = sum;
    workgroupBarrier();
    if (thread < 16u) {{
        var some = 0.0;
        for (var t = 0u; t < {self.threads // 16}u; t++) {{ some += partial[16u * t + thread]; }}
        partial[{self.threads}u + thread] = some;
    }}
    workgroupBarrier();
    var whole = 0.0;
    for (var t = 0u; t < 16u; t++) {{ whole += partial[{self.threads}u + t]; }}
    scale = inverseSqrt(whole / {self.columns}.0 + {self.epsilon!r}f);
    workgroupBarrier();
}}
fn activations(b: u32, i: u32) -> vec4<f32> {{
    let at = {row} * {vectors}u + i;
    return x[at] + added[at] * scale * gains[{self.post // 4}u + i];
}}"""

    def _fill(self) -> str:
        """Return the function that makes the units of the row, eight numbers a thread: their largest lies in
        ``partial`` before the scale of 32 is known, then how much codes miss them by each of ``NEAR``. A number that is
        none has the largest bits. The first workgroup writes the sums."""
        jobs, threads = self.columns // 8, self.threads
        keep = "if (keeps) { kept[2u * at] = one; kept[2u * at + 1u] = two; }" if self.keeps else ""
        first, second = (f" * gains[{self.gain // 4}u + 2u * at{n}]" if self.gain >= 0 else "" for n in ("", " + 1u"))
        at = [f"{(2 + k) * threads}u" for k in range(len(NEAR))]
        tries = " ".join(
            f"partial[{a} + thread] = miss_of(v, w, most, {code}.0);" for a, code in zip(at, NEAR, strict=True)
        )
        pick = "let found_# = four(@ + (thread & ~3u)); if (found_# < least) { least = found_#; code = #.0; }"
        picks = " ".join(pick.replace("#", str(code)).replace("@", a) for a, code in zip(at[1:], NEAR[1:], strict=True))
        return f"""var<workgroup> near: array<u32, {2 * jobs}>;
var<workgroup> scales: array<vec2<f32>, {jobs // 4}>;
fn bits(v: vec4<f32>) -> vec4<u32> {{ return bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu); }}
fn miss_of(v: vec4<f32>, w: vec4<f32>, most: f32, code: f32) -> f32 {{
    let inverse = select(0.0, code / most, most > 1e-30);
    let one = round(v * inverse) - v * inverse;
    let two = round(w * inverse) - w * inverse;
    return (dot(one, one) + dot(two, two)) / (code * code);
}}
fn four(at: u32) -> f32 {{ return partial[at] + partial[at + 1u] + partial[at + 2u] + partial[at + 3u]; }}
fn fill(keeps: bool, thread: u32) {{
    for (var begin = 0u; begin < {jobs}u; begin += {threads}u) {{
        let at = begin + thread;
        var v = vec4<f32>(0.0);
        var w = vec4<f32>(0.0);
        var largest = 0u;
        var most = 0.0;
        if (at < {jobs}u) {{
            let one = activations(0u, 2u * at);
            let two = activations(0u, 2u * at + 1u);
            {keep}
            v = one{first};
            w = two{second};
            let each = max(bits(v), bits(w));
            partial[2u * thread] = bitcast<f32>(max(max(each.x, each.y), max(each.z, each.w)));
            partial[2u * thread + 1u] = dot(one, one) + dot(two, two);
        }}
        workgroupBarrier();
        if (at < {jobs}u) {{
            let own = 2u * (thread & ~3u);
            let left = max(bitcast<u32>(partial[own]), bitcast<u32>(partial[own + 2u]));
            let right = max(bitcast<u32>(partial[own + 4u]), bitcast<u32>(partial[own + 6u]));
            largest = max(left, right) & 0x7fffffffu;
            most = bitcast<f32>(largest);
            {tries}
        }}
        workgroupBarrier();
        if (at < {jobs}u) {{
            let own = 2u * (thread & ~3u);
            var code = {NEAR[0]}.0;
            var least = four({2 * threads}u + (thread & ~3u));
            {picks}
            let inverse = select(0.0, code / most, most > 1e-30);
            near[2u * at] = pack4xI8(vec4<i32>(round(v * inverse)));
            near[2u * at + 1u] = pack4xI8(vec4<i32>(round(w * inverse)));
            if (thread % 4u == 0u) {{
                let factor = bitcast<f32>(select(bitcast<u32>(most / code), 0x7fc00000u, largest >= 0x7f800000u));
                let squares = partial[own + 1u] + partial[own + 3u] + partial[own + 5u] + partial[own + 7u];
                scales[at / 4u] = vec2<f32>(factor, squares);
            }}
        }}
        workgroupBarrier();
    }}
}}"""

    def _store(self) -> str:
        target = f"y[(from_row + b) * {self.width}u + {self.start}u + base + row]"
        if self.residual:
            return f"let result = {target} + value; {target} = result; values[@START@ + k] = result;"
        return f"{target} = value; values[@START@ + k] = value;"

    def _write_units(self) -> str:
        """Return the WGSL that makes the units of the result: a unit of each row."""
        target = f"((from_row + own) * {self.width}u + column) / {UNIT}u * {VECTORS}u"
        return f"""let own = thread / {lanes(self.rows, self.threads)}u;
    let column = {self.start}u + group * {UNIT}u;
    quantize(own * {UNIT}u, column, {target}, thread, own < {self.rows}u);"""

    def _choose(self, layouts: Sequence[GpuLayout]) -> str:
        """Return the calls that multiply, by the segment that a workgroup belongs to."""
        places, at = self._places(), f"(group - first) * {UNIT}u + thread / {self.lanes}u * {self.tall}u"
        if self.activation:
            calls = [
                f"multiply_{n}_{first}({places[0]}, {places[1]}, {at}, lane, &sums);"
                for n, first, _ in self._calls(layouts)
            ]
            return "\n    ".join([f"last = {self.segments[0].rows - 1}u;", *calls])
        if len(layouts) == 1:
            return self._choose_address(places, at)
        lines, end = [], 0
        for number, (segment, quads) in enumerate(zip(self.segments, self.quads, strict=True)):
            call = f"multiply_{layouts.index(segment.layout)}_0({places[number]}, vec4<u32>(), {at}, lane, &sums);"
            chosen = f"first = {end}u; last = {segment.rows - 1}u; {call}"
            lines.append(f"if (group < {end + quads}u) {{ {chosen} }}")
            end += quads
        return "\n    else ".join(lines)

    def _choose_address(self, places: Sequence[str], at: str) -> str:
        """Return the one call that multiplies with weights of one layout."""
        lines, end = [f"var one = {places[0]};\n    last = {self.segments[0].rows - 1}u;"], 0
        for quads, where, segment in zip(self.quads, places[1:], self.segments[1:], strict=False):
            end += quads
            chosen = f"first = {end}u; last = {segment.rows - 1}u; one = {where};"
            lines.append(f"if (group >= {end}u) {{ {chosen} }}")
        return "\n    ".join([*lines, f"multiply_0_0(one, vec4<u32>(), {at}, lane, &sums);"])

    def _ends(self, norm: str, store: str) -> str:
        text = super()._ends(norm, self._store())
        plain = f"total(k + {self.height * self.rows}u){norm}"
        return text.replace(plain, f"total(own + {self.tall}u, b, part) * norm")


def _dots(layout: GpuLayout) -> str:
    """Return the WGSL of ``value``, the product of a unit, but for the scale of its activations."""
    offset, step = integer_offset(layout), integer_step(layout)
    adds = layout.scale in ("half_min", "float_min", "u6", "u4")
    low = " + ".join(f"dot4I8Packed(c.low.{k}, x.{k})" for k in "xyzw")
    high = " + ".join(f"dot4I8Packed(c.high.{k}, z.{k})" for k in "xyzw")
    times = "" if step == 1 else f"{step} * "
    if layout.group < UNIT:
        more = " + c.scales.z * f32(halves.x) + c.scales.w * f32(halves.y)" if adds else ""
        return f"""let left = {times}({low}) + {offset} * halves.x;
                let right = {times}({high}) + {offset} * halves.y;
                let value = c.scales.x * f32(left) + c.scales.y * f32(right){more};"""
    more = " + c.scales.z * f32(halves.x + halves.y)" if adds else ""
    return f"""let whole = {times}({low} + {high}) + {offset} * (halves.x + halves.y);
                let value = c.scales.x * f32(whole){more};"""
