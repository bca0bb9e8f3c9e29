"""Layouts of weights that kernels in CUDA C read: as formats store them, and those of ``kernels.webgpu``.

Stored layouts, whose sections are the parts of the format:

- nf4 and fp4: codes ``pairs``, of a byte the high nibble is the first column; scales ``float``, one a block, or
  ``nested``
- int8 and llm_int8: codes ``byte``, scales ``row``
- GGUF's types: the blocks themselves, as codes and as scales (``block_readers``)
"""

from __future__ import annotations

from dataclasses import dataclass

from rung.core.types import Format
from rung.kernels.cuda.block_readers import BLOCKS
from rung.kernels.webgpu.layouts import UNIT, GpuLayout

#: Formats whose stored parts are read as they are, beside GGUF's types (``BLOCKS``), which can also be packed.
STORED = ("nf4", "fp4", "int8", "llm_int8")
#: What weights of llm_int8 are multiplied with at last: 1 / 127 in float32.
_INT8 = 7.874015718698502e-3


@dataclass(frozen=True)
class Layout:
    """A layout of ``kernels.webgpu``, or one of the stored ones; each weight is multiplied with ``factor``.

    ``blocks`` is the type of GGUF whose blocks are read as they are, or none; ``base`` then says what is in them."""

    base: GpuLayout
    factor: float = 1.0
    blocks: str = ""

    @property
    def looks_up(self) -> bool:
        """Return whether codes index a table of float32, and activations stay what they are; else activations are
        int8 with a scale for 32."""
        return bool(self.base.table)

    @property
    def adds(self) -> bool:
        """Return whether scales come with minima."""
        return self.base.scale in ("half_min", "float_min", "u6", "u4")


def stored(format: Format) -> Layout:
    """Return the layout of a format of ``STORED``."""
    from rung.formats.families.codebook4 import CODEBOOKS  # and NumPy, which plans do without

    family = format.name.split(":")[0]
    if family in CODEBOOKS:
        scale = "nested" if format.nested else "float"
        table = tuple(map(float, CODEBOOKS[family]))
        return Layout(GpuLayout("pairs", scale, format.block, format.block, 0, table))
    if family in BLOCKS:
        return Layout(BLOCKS[family], blocks=family)
    return Layout(GpuLayout("byte", "row", UNIT, UNIT), _INT8 if family == "llm_int8" else 1.0)
