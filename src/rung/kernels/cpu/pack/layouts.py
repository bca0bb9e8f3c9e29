"""How weights lie in memory for the CPU kernels ("r16"): pure data, neither numpy nor Numba.

Sixteen rows make a group. Of a group, a *unit* holds 32 columns: vectors of 64 bytes with four consecutive
columns of each of the 16 rows, so that sums of four products with broadcast activations fill 16 int32. Units
follow each other along the row; before each stands what belongs to it alone (``unit_header``), before each
``block`` of columns what belongs to the block (``block_header``), before all what belongs to the rows.

- ``nibble``: 4 vectors; of a byte the low nibble is a column of the unit's first half, the high one of its second.
- ``six``: the same for the low four bits, then 2 vectors with the high two bits of 4 columns a byte.
- ``five``: the same, then 1 vector with the fifth bits of 8 columns a byte, that of vector i at bit i.
- ``byte``: 8 vectors; a whole byte is 128 above the weight's own, but on ARM, where bytes are signed.
- ``flipped``: for a processor that multiplies magnitudes only, in a cache for a while: for each part 16 int32 that
  flipped bits take from a sum, then for each of 8 vectors the magnitudes of its codes, and which of them are negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rung.core.types import Format

#: Bytes of a huge page; a mapping of its own is as many of them as it needs.
HUGE = 2 << 20
ROWS = 16
UNIT = 32
_CODE_BYTES = {"nibble": 256, "five": 320, "six": 384, "byte": 512}
_SCALE_BYTES = {"f16": 0, "f32": 64, "u6": 16, "i8": 16, "none": 0}


@dataclass(frozen=True)
class Layout:
    """One way to lay weights out; see the module.

    ``codes`` are nibble, five, six or byte; ``table``: they index a codebook of 16 signed bytes. ``scale`` says how the
    scales of ``group`` columns are stored: f16 (one a block, with a minimum behind it), f32, u6 and i8 (integers times
    an f16 of the block), f32 of the block, or none (one f32 a row). ``minimum``: an offset is added to each group.
    ``offset`` is what the unsigned codes are above the weights' own; ``largest`` is the largest code where codes do not
    fill their bits.
    """

    name: str
    codes: str
    scale: str
    group: int = 32
    block: int = 32
    offset: int = 0
    minimum: bool = False
    table: bool = False
    largest: int = 0

    @property
    def parts(self) -> int:
        """Groups in a unit: 1, or 2 when a scale covers 16 columns."""
        return 2 if self.group == 16 else 1

    @property
    def bytewide(self) -> bool:
        """Return whether codes take a whole byte when they are multiplied."""
        return self.table or self.codes == "flipped" or (self.codes == "byte" and not self.largest)

    @property
    def largest_code(self) -> int:
        """The largest magnitude of a code that is multiplied; a whole byte stands for -128 to 127."""
        return 128 if self.bytewide else self.largest or {"nibble": 15, "six": 63}[self.codes]

    @property
    def row_header(self) -> int:
        """Bytes before a group of rows: its row scales."""
        return 64 if self.scale == "none" else 0

    @property
    def block_header(self) -> int:
        """Bytes before a block of a group of rows."""
        if self.scale in ("u6", "i8", "f16"):
            return 64 if self.minimum else 32
        return 64 if self.scale == "f32" and self.group > UNIT else 0

    @property
    def unit_header(self) -> int:
        """Bytes before the codes of a unit."""
        if self.group > UNIT:
            return 0
        return _SCALE_BYTES[self.scale] * self.parts * (2 if self.minimum else 1)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of a group of rows."""
        if self.codes == "flipped":
            return self.unit_header + 64 * self.parts + 1024
        return self.unit_header + _CODE_BYTES[self.codes]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of a group of rows."""
        return self.block_header + self.block // UNIT * self.unit_bytes

    def group_bytes(self, columns: int) -> int:
        """Bytes of 16 rows of that many columns."""
        return self.row_header + columns // self.block * self.block_bytes

    @property
    def activations(self) -> tuple[int, int]:
        """Return the preparation of activations: (offset, sums a unit); equal pairs can share them."""
        return self.offset, self.parts


Q4_0 = Layout("q4_0", "nibble", "f16", offset=8)
Q8_0 = Layout("q8_0", "byte", "f16", offset=128)
Q4_K = Layout("q4_k", "nibble", "u6", block=256, minimum=True)
Q6_K = Layout("q6_k", "six", "i8", group=16, block=256, offset=32)
INT8 = Layout("int8", "byte", "none", offset=128)


def _generic(codes: str, group: int, minimum: bool) -> Layout:
    table = codes == "nibble"
    name = f"{codes}{group}{'_min' if minimum else ''}"
    offset = 0 if minimum else 128
    return Layout(name, codes, "f32", group, offset=offset, minimum=minimum, table=table and not minimum)


#: The exact layouts of the formats without one of their own: codes, f32 scales and minima of 16 or 32 columns.
_GENERIC = {
    (codes, group, minimum): _generic(codes, group, minimum)
    for codes in ("nibble", "byte")
    for group in (16, 32)
    for minimum in (False, True)
}

#: Scales and minima that stay integers, half as many bytes as float32 ones.
Q2_K = Layout("q2_k", "nibble", "u6", group=16, block=256, minimum=True, largest=3)
Q5_K = Layout("q5_k", "byte", "u6", block=256, minimum=True, largest=31)
#: Codes are 1 above the weights' own, -1 to 2: int16 hold all products of a unit, and nothing is looked up.
TERNARY = Layout("ternary", "nibble", "f32", offset=1, largest=3)
#: Formats whose layout serves them better than a generic one; there is no way back from it either.
_SPECIAL = {"q2_k": Q2_K, "q5_k": Q5_K, "tq1_0": TERNARY, "tq2_0": TERNARY}

_NATIVE = {layout.name: layout for layout in (Q4_0, Q8_0, Q4_K, Q6_K, INT8)} | {"llm_int8": INT8}

#: Formats in a generic layout: how many bits their codes need, columns a scale, and whether they have minima.
GENERIC: dict[str, tuple[str, int, bool]] = {
    "q4_1": ("nibble", 32, True),
    "q5_0": ("byte", 32, False),
    "q5_1": ("byte", 32, True),
    "q3_k": ("nibble", 16, False),
    "iq4_nl": ("nibble", 32, False),
    "iq4_xs": ("nibble", 32, False),
    "mxfp4": ("nibble", 32, False),
    "nvfp4": ("nibble", 16, False),
    "iq2_xxs": ("nibble", 32, False),
    "iq2_xs": ("nibble", 16, False),
    "iq2_s": ("nibble", 16, False),
    "iq3_xxs": ("nibble", 32, False),
    "iq3_s": ("nibble", 32, False),
    "iq1_s": ("nibble", 32, False),
    "iq1_m": ("nibble", 16, False),
    "u2": ("nibble", 32, True),
    "u4": ("nibble", 32, True),
    "u8": ("byte", 32, True),
}

#: All formats (without their options) that have a layout.
FORMATS = (*_NATIVE, "nf4", "fp4", *_SPECIAL, *GENERIC)

#: Formats that can be multiplied as a file stores them: rows of blocks, with all that belongs to each.
MAPPED = ("q4_0", "q8_0", "q4_k", "q6_k", *_SPECIAL, *(name for name in GENERIC if name not in ("u2", "u4", "u8")))

#: The layouts by name; ``codebook64`` ... for nf4 and fp4, whose scales cover a block of that many columns.
LAYOUTS: dict[str, Layout] = {
    **_NATIVE,
    **{layout.name: layout for layout in _SPECIAL.values()},
    **{layout.name: layout for layout in _GENERIC.values()},
    **{
        f"codebook{block}": Layout(f"codebook{block}", "nibble", "f32", block, block, offset=128, table=True)
        for block in (64, 128, 256, 512, 1024, 2048, 4096)
    },
}

#: Keys of a cache, 16 positions of a head as rows; no weights lie so.
LAYOUTS["cache_q5_1"] = Layout("cache_q5_1", "five", "f16", minimum=True, largest=31)


def stays_stored(format: Format) -> bool:
    """Return whether kernels can multiply it as a file stores it."""
    return format.name in MAPPED


LAYOUTS |= {
    f"{name}_flipped": replace(layout, name=f"{name}_flipped", codes="flipped")
    for name, layout in LAYOUTS.items()
    if layout.bytewide
}


def is_generic(format: Format) -> bool:
    """Return whether there is no way back from its layout, so that the stored weight is kept."""
    return format.name.split(":")[0] in (*GENERIC, *_SPECIAL)


def layout_of(format: Format) -> Layout:
    """The layout of a format of ``FORMATS``."""
    family = format.name.split(":")[0]
    if family in GENERIC:
        return _GENERIC[GENERIC[family]]
    if family in _SPECIAL:
        return _SPECIAL[family]
    return LAYOUTS[family if family in LAYOUTS else f"codebook{format.block}"]


def packed_bytes(format: Format, shape: tuple[int, ...]) -> int:
    """Bytes of a weight as the row and tile kernels hold it.

    Nested scales of nf4 and fp4, and the largest values of llm_int8, are held beside the scales that the kernels read,
    for the exact way back; of ordered formats the column of the activations that each column meets.
    """
    columns = shape[-1]
    groups = -(-math.prod(shape[:-1]) // ROWS)
    size = groups * layout_of(format).group_bytes(columns)
    if format.nested:
        size += format.bytes(shape) - -(-math.prod(shape) // 2)
    if format.name == "llm_int8":
        size += 4 * math.prod(shape[:-1])
    if format.layout == "ordered":
        size += 8 * columns
    return size


def divides(format: Format, columns: int) -> bool:
    """Return whether rows of that many columns can be packed: units and blocks must divide them.

    Of what other quantizers write, blocks must hold whole units.
    """
    if format.family == "grouped" and format.block % UNIT:
        return False
    return columns % max(UNIT, format.block) == 0
