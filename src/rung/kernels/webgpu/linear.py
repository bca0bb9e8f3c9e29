"""Products of rows of activations with weights, with what surrounds them folded in.

A workgroup computes ``TALL`` rows of weights for all rows of activations, or for ``blocks`` of them: other
workgroups compute the others. Each thread of it has some units of columns.
A norm before a product costs no kernel: y = (W (g x)) / rms(x), so squares are added up in the same loop. What comes
after it happens where the result is: what an adapter adds, the bias, the activation of the gate, the residual. A norm
behind a product belongs to the next one, whose activations are x + norm(added): each of its workgroups adds up the
squares of ``added`` first, and the first one writes the sum for those that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import INFO, SELECTED, declare
from rung.kernels.webgpu.layouts import UNIT, GpuLayout, address, reader

#: Rows of weights that a workgroup computes.
TALL = 4
#: Workgroups of a line; a driver takes 65,535.
_LINE = 32768
_KEEP = "if (keeps) { kept[(from_row + b) * @VECTORS@u + 8u * unit + i] = v; }"


@dataclass(frozen=True)
class Segment:
    """One weight of those that a kernel multiplies with.

    ``base`` is the word at which it begins; it may be the rows from ``first`` on of a weight of ``whole`` rows.
    ``bias`` is where the bias lies in ``gains`` (-1: none). An adapter adds ``rank`` products of ``changes`` from
    ``up`` on with ``low`` from ``low`` on; then factors at ``factor`` (-1: none).
    """

    layout: GpuLayout
    rows: int
    base: int = 0
    first: int = 0
    whole: int = 0
    bias: int = -1
    rank: int = 0
    up: int = 0
    low: int = 0
    factor: int = -1


@dataclass(frozen=True)
class Product:
    """A product of ``blocks`` times ``rows`` rows of activations [blocks * rows, columns].

    ``gain``: where the gain of a norm before it lies in ``gains`` (-1: none). ``activation`` (silu, gelu_tanh) makes
    one row of rows of the first and the second segment. ``residual`` adds the result to what is there. ``selected``:
    rows of activations are those that ``info`` names. ``gains``, ``changes`` and ``low`` are float32 in these buffers,
    of ``low`` in a row. The result is written from ``start`` on of rows of ``stride`` numbers (0: it is whole rows).
    ``post``: where in ``gains`` the gain lies of a norm of ``added``, which activations are increased by (-1: none);
    ``keeps`` writes these sums.
    """

    segments: tuple[Segment, ...]
    columns: int
    rows: int
    gains: int
    gain: int = -1
    epsilon: float = 0.0
    activation: str = ""
    residual: bool = False
    softcap: float | None = None
    selected: bool = False
    changes: int = 0
    low: int = 0
    start: int = 0
    stride: int = 0
    post: int = -1
    keeps: bool = False
    blocks: int = 1

    @property
    def threads(self) -> int:
        """Return the threads of a workgroup."""
        return 64 if self.rows <= 4 else 32

    @property
    def height(self) -> int:
        """Return the rows of each segment that a workgroup computes."""
        return TALL // 2 if self.activation else TALL

    @property
    def most(self) -> int:
        """Return the rows that a thread computes, of all segments."""
        return TALL

    @property
    def out(self) -> int:
        """Return the numbers of a row of the result."""
        return self.segments[0].rows if self.activation else sum(each.rows for each in self.segments)

    @property
    def width(self) -> int:
        """Return the numbers of a row of y."""
        return self.stride or self.out

    @property
    def quads(self) -> list[int]:
        """Return the workgroups of each segment."""
        counted = self.segments[:1] if self.activation else self.segments
        return [-(-each.rows // self.height) for each in counted]

    @property
    def grid(self) -> tuple[int, int]:
        """Return the workgroups."""
        count, line = sum(self.quads), _LINE // self.blocks
        return self.blocks * min(count, line), -(-count // line)

    @property
    def all_rows(self) -> int:
        """Return the rows of activations of all blocks."""
        return self.blocks * self.rows

    def _begin(self) -> str:
        """Return the WGSL of which rows a workgroup computes, of the weight and of activations."""
        line = _LINE // self.blocks
        own = f"from_row = id.x % {self.blocks}u * {self.rows}u;" if self.blocks > 1 else ""
        return f"""{own}
    let group = id.x / {self.blocks}u + {line}u * id.y;
    if (group >= {sum(self.quads)}u) {{ return; }}"""

    @property
    def _from_row(self) -> str:
        return "var<private> from_row: u32;" if self.blocks > 1 else "const from_row = 0u;"

    def kernel(self) -> Kernel:
        """Return the shader; its buffers are words, words, gains, info, x, y, with ranks changes and low, with a norm
        behind the product before ``added``, and where it ``keeps`` the sums where they go."""
        words = max(s.base + s.layout.sections(s.whole or s.rows, self.columns).words for s in self.segments)
        sizes = [4 * words, 4 * words, 4 * self.gains, 4 * INFO]
        activations = 4 * self.all_rows * self.columns
        sizes += [activations, 4 * self.all_rows * self.width]
        writes = [False, False, False, False, False, True]
        if self.changes:
            sizes += [4 * self.changes, 4 * self.all_rows * self.low]
            writes += [False, False]
        if self.post >= 0:
            sizes += [activations] * (1 + self.keeps)
            writes += [False, True][: 1 + self.keeps]
        memory = 4 * self._partials * self.threads + 4 * self.rows * (self.post >= 0)
        return Kernel("\n".join(self._code()), tuple(writes), tuple(sizes), memory)

    @property
    def _partials(self) -> int:
        return TALL * self.rows + (self.rows if self.gain >= 0 else 0)

    def _code(self) -> Iterator[str]:
        kinds = ["vectors: array<vec4<u32>>", "words: array<u32>", "gains: array<vec4<f32>>", "info: array<u32>"]
        kinds += ["x: array<vec4<f32>>", "y: array<f32>"]
        kinds += ["changes: array<f32>", "low: array<f32>"] if self.changes else []
        if self.post >= 0:
            kinds += ["added: array<vec4<f32>>", "kept: array<vec4<f32>>"][: 1 + self.keeps]
        yield declare(kinds, writes=(5, len(kinds) - 1) if self.keeps else (5,))
        yield f"var<workgroup> partial: array<f32, {self._partials * self.threads}>;"
        yield "var<private> keeps: bool;" if self.keeps else ""
        yield self._from_row
        yield self._activations()
        layouts = list(dict.fromkeys(each.layout for each in self.segments))
        for number, layout in enumerate(layouts):
            yield reader(f"read_{number}", layout, self.columns)
        for call in dict.fromkeys(self._calls(layouts)):
            yield self._multiply(*call)
        for number, segment in enumerate(self.segments):
            yield self._finish(number, segment)
        yield self._main(layouts)

    def _calls(self, layouts: Sequence[GpuLayout]) -> Iterator[tuple[int, int, int]]:
        """Yield (layout, first, count) of the functions that multiply: which of the rows of a workgroup."""
        if self.activation and len(layouts) == 2:
            yield from ((0, 0, self.most // 2), (1, self.most // 2, self.most // 2))
            return
        for number in range(len(layouts)):
            yield number, 0, self.most

    def _multiply(self, layout: int, first: int, count: int) -> str:
        """Return a function that adds the products of some rows of a workgroup to its sums."""
        sums = f"ptr<function, array<f32, {self._partials}>>"
        head = f"fn multiply_{layout}_{first}(one: vec4<u32>, two: vec4<u32>, at: u32, thread: u32, sums: {sums}) {{"
        row = f"at + r % {self.most // 2}u" if self.activation else "at + r"
        where = f"select(one, two, vec4<bool>(r >= {self.most // 2}u))" if self.activation else "one"
        adds = any(each.layout.adds for each in self.segments)
        rows = range(first, first + count)
        body = self._one_row(adds, first == 0) if self.rows == 1 else self._many_rows(first == 0, rows)
        values = {
            "R": self.rows, "ROW": row, "WHERE": where, "READ": f"read_{layout}", "FIRST": first, "END": first + count,
            "UNITS": self.columns // UNIT, "THREADS": self.threads, "VECTORS": self.columns // 4, "TALL": self.most,
            "GAIN": self.gain // 4,
        }  # fmt: skip
        for name, value in values.items():
            body = body.replace(f"@{name}@", str(value))
        return f"{head}\n{body}}}"

    def _activations(self) -> str:
        """Return the function of four numbers of a row of activations, and what it needs to be computed before."""
        vectors, row = self.columns // 4, f"info[{SELECTED}u + from_row + b]" if self.selected else "(from_row + b)"
        if self.post < 0:
            return f"fn activations(b: u32, i: u32) -> vec4<f32> {{ return x[{row} * {vectors}u + i]; }}"
        return f"""var<workgroup> scales: array<f32, {self.rows}>;
fn scale(thread: u32) {{
    for (var b = 0u; b < {self.rows}u; b++) {{
        var sum = 0.0;
        for (var i = thread; i < {vectors}u; i += {self.threads}u) {{
            let v = added[{row} * {vectors}u + i];
            sum += dot(v, v);
        }}
        partial[b * {self.threads}u + thread] = sum;
    }}
    workgroupBarrier();
    for (var b = thread; b < {self.rows}u; b += {self.threads}u) {{
        scales[b] = inverseSqrt(total(b) / {self.columns}.0 + {self.epsilon!r}f);
    }}
    workgroupBarrier();
}}
fn activations(b: u32, i: u32) -> vec4<f32> {{
    let at = {row} * {vectors}u + i;
    return x[at] + added[at] * scales[b] * gains[{self.post // 4}u + i];
}}"""

    def _one_row(self, adds: bool, counts: bool) -> str:
        square = "(*sums)[@TALL@] += dot(v, v);" if self.gain >= 0 and counts else ""
        gain = "v *= gains[@GAIN@u + 8u * unit + i];" if self.gain >= 0 else ""
        totals = """let ones = vec4<f32>(1.0);
        let first = dot(a[0] + a[1] + a[2] + a[3], ones);
        let second = dot(a[4] + a[5] + a[6] + a[7], ones);"""
        return f"""    let b = 0u;
    for (var unit = thread; unit < @UNITS@u; unit += @THREADS@u) {{
        var a: array<vec4<f32>, 8>;
        for (var i = 0u; i < 8u; i++) {{
            var v = activations(b, 8u * unit + i);
            {_KEEP if self.keeps and counts else ""}
            {square}
            {gain}
            a[i] = v;
        }}
        {totals if adds else ""}
        for (var r = @FIRST@u; r < @END@u; r++) {{
            var w: array<vec4<f32>, 8>;
            let f = @READ@(@WHERE@, @ROW@, unit, &w);
            let left = dot(w[0], a[0]) + dot(w[1], a[1]) + dot(w[2], a[2]) + dot(w[3], a[3]);
            let right = dot(w[4], a[4]) + dot(w[5], a[5]) + dot(w[6], a[6]) + dot(w[7], a[7]);
            (*sums)[r] += f.x * left + f.y * right{" + f.z * first + f.w * second" if adds else ""};
        }}
    }}
"""

    def _many_rows(self, counts: bool, rows: range) -> str:
        gain = "* gains[@GAIN@u + 8u * unit + i]" if self.gain >= 0 else ""
        squares = f"""for (var b = 0u; b < @R@u; b++) {{
            for (var i = 0u; i < 8u; i++) {{
                let v = activations(b, 8u * unit + i);
                {_KEEP if self.keeps else ""}
                (*sums)[@TALL@u * @R@u + b] += dot(v, v);
            }}
        }}"""
        return f"""    for (var unit = thread; unit < @UNITS@u; unit += @THREADS@u) {{
        {squares if self.gain >= 0 and counts else ""}
        for (var r = {rows.start}u; r < {rows.stop}u; r++) {{
            var w: array<vec4<f32>, 8>;
            let f = @READ@(@WHERE@, @ROW@, unit, &w);
            for (var i = 0u; i < 8u; i++) {{
                w[i] = (select(f.x, f.y, i > 3u) * w[i] + select(f.z, f.w, i > 3u)) {gain};
            }}
            for (var b = 0u; b < @R@u; b++) {{
                var sum = 0.0;
                for (var i = 0u; i < 8u; i++) {{ sum += dot(w[i], activations(b, 8u * unit + i)); }}
                (*sums)[r * @R@u + b] += sum;
            }}
        }}
    }}
"""

    def _finish(self, number: int, segment: Segment) -> str:
        """Return a function that makes the result of a row of the weight and a row of activations of its sum."""
        lines = [f"fn finish_{number}(sum: f32, row: u32, b: u32) -> f32 {{", "    var value = sum;"]
        if segment.rank:
            low, up = f"(from_row + b) * {self.low}u + {segment.low}u + j", f"{segment.up}u + row * {segment.rank}u + j"
            lines.append(f"    for (var j = 0u; j < {segment.rank}u; j++) {{ value += changes[{up}] * low[{low}]; }}")
        if segment.factor >= 0:
            lines.append(f"    value *= changes[{segment.factor}u + row];")
        if segment.bias >= 0:
            lines.append(f"    value += gains[({segment.bias}u + row) / 4u][row % 4u];")
        if self.softcap is not None:
            cap = f"{self.softcap!r}f"
            lines.append(f"    value = tanh(clamp(value / {cap}, -15.0, 15.0)) * {cap};")
        return "\n".join([*lines, "    return value;", "}"])

    def _main(self, layouts: Sequence[GpuLayout]) -> str:
        norm = ""
        if self.gain >= 0:
            square = f"total({TALL * self.rows}u + b) / {self.columns}.0 + {self.epsilon!r}f"
            norm = f" * inverseSqrt({square})"
        store = f"y[(from_row + b) * {self.width}u + {self.start}u + base + row] {'+' if self.residual else ''}= value;"
        outputs, b = self.height * self.rows, f"k % {self.rows}u"
        return f"""fn total(k: u32) -> f32 {{
    var sum = 0.0;
    for (var t = 0u; t < {self.threads}u; t++) {{ sum += partial[k * {self.threads}u + t]; }}
    return sum;
}}

@compute @workgroup_size({self.threads})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    {self._begin()}
    var sums: array<f32, {self._partials}>;
    var first = 0u;
    {"keeps = group == 0u;" if self.keeps else ""}
    {"scale(thread);" if self.post >= 0 else ""}
    {self._choose(layouts)}
    for (var k = 0u; k < {self._partials}u; k++) {{ partial[k * {self.threads}u + thread] = sums[k]; }}
    workgroupBarrier();
    for (var k = thread; k < {outputs}u; k += {self.threads}u) {{
        let b = {b};
        let row = (group - first) * {self.height}u + k / {self.rows}u;
        let sum = total(k){norm};
        {self._ends(norm, store)}
    }}
}}"""

    def _places(self) -> list[str]:
        return [address(s.layout, s.whole or s.rows, self.columns, s.base, s.first) for s in self.segments]

    def _choose(self, layouts: Sequence[GpuLayout]) -> str:
        """Return the calls that multiply, by the segment that a workgroup belongs to."""
        places, at = self._places(), f"(group - first) * {self.height}u"
        if self.activation:
            calls = [f"multiply_{n}_{first}({places[0]}, {places[1]}, {at}, thread, &sums);"
                     for n, first, _ in self._calls(layouts)]  # fmt: skip
            return "\n    ".join(calls)
        if len(layouts) == 1:
            return self._choose_address(places, at)
        lines, end = [], 0
        for number, (segment, quads) in enumerate(zip(self.segments, self.quads, strict=True)):
            call = f"multiply_{layouts.index(segment.layout)}_0({places[number]}, vec4<u32>(), {at}, thread, &sums);"
            lines.append(f"if (group < {end + quads}u) {{ first = {end}u; {call} }}")
            end += quads
        return "\n    else ".join(lines)

    def _choose_address(self, places: Sequence[str], at: str) -> str:
        """Return the one call that multiplies with weights of one layout: each further one is compiled anew."""
        lines, end = [f"var one = {places[0]};"], 0
        for quads, where in zip(self.quads, places[1:], strict=False):
            end += quads
            lines.append(f"if (group >= {end}u) {{ first = {end}u; one = {where}; }}")
        return "\n    ".join([*lines, f"multiply_0_0(one, vec4<u32>(), {at}, thread, &sums);"])

    def _ends(self, norm: str, store: str) -> str:
        if self.activation:
            gate = "gate / (1.0 + exp(-gate))"
            if self.activation == "gelu_tanh":
                inner = "clamp(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate), -15.0, 15.0)"
                gate = f"0.5 * gate * (1.0 + tanh({inner}))"
            other = f"total(k + {self.height * self.rows}u){norm}"
            return f"""if (row < {self.out}u) {{
            let base = 0u;
            let gate = finish_0(sum, row, b);
            let value = {gate} * finish_1({other}, row, b);
            {store}
        }}"""
        lines, end, base = [], 0, 0
        for number, (segment, quads) in enumerate(zip(self.segments, self.quads, strict=True)):
            inside = f"let base = {base}u; let value = finish_{number}(sum, row, b); {store}"
            lines.append(f"if (group < {end + quads}u) {{ if (row < {segment.rows}u) {{ {inside} }} }}")
            end, base = end + quads, base + segment.rows
        return "\n        else ".join(lines)
