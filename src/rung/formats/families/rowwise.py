"""int8: one symmetric scale a row, weight = code * scale, scale = largest magnitude / 127."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rung.core.types import Format
from rung.formats.codec import PIECE, Array, Codec, Encoded, Floats, Source, peaks
from rung.formats.table import get

#: 1 / 127 as bitsandbytes writes it.
INVERSE = np.float32(7.874015718698502e-3)


@dataclass(frozen=True)
class RowCodec(Codec):
    """Codes int8 [rows, columns] in -127 ... 127 and scales float32 [rows]."""

    format: Format

    def encode(self, source: Source) -> dict[str, Array]:
        """The parts ``data`` and ``scale``. A scale below the smallest float32 is stored as the smallest."""
        rows, columns = source.shape
        data, scale = np.zeros((rows, columns), np.int8), np.zeros(rows, np.float32)
        several = max(1, PIECE // max(columns, 1))

        def pack(first: int, piece: Floats) -> None:
            weights = piece.reshape(-1, columns)
            row = slice(first // columns, first // columns + len(weights))
            peak = peaks(weights.min(axis=1), weights.max(axis=1))
            step = np.where(peak > 0, np.maximum(peak / np.float32(127), np.float32(1e-45)), 0)
            scale[row] = self.kept(peak, step)
            divisor = np.where(peak > 0, step, np.float32(1))[:, None]
            # Dividing is right where 1 / scale would overflow or be subnormal, and costs little more.
            codes = np.rint(weights / divisor)
            data[row] = np.clip(codes, -127, 127, out=codes)

        source.each(several * max(columns, 1), pack)
        return {"data": data, "scale": scale}

    def kept(self, peak: Floats, step: Floats) -> Floats:
        """Return the stored scale of rows [n] with these largest magnitudes, for a code that is one ``step``."""
        return step

    def decode(self, encoded: Encoded, first: int, out: Floats) -> None:
        """Writes the weights from ``first`` on of the flattened tensor to ``out`` [n]."""
        data, scale = encoded.parts["data"], encoded.parts["scale"]
        columns = encoded.shape[1]
        start, end = first // columns, -(-(first + len(out)) // columns)
        if (end - start) * columns == len(out):
            np.multiply(data[start:end], scale[start:end, None], out=out.reshape(-1, columns))
            return
        whole = data[start:end] * scale[start:end, None]
        out[:] = whole.reshape(-1)[first - start * columns :][: len(out)]


class AbsmaxCodec(RowCodec):
    """Codes int8 with the largest magnitude of each row, as bitsandbytes stores and decodes them."""

    def kept(self, peak: Floats, step: Floats) -> Floats:
        """The largest magnitudes."""
        return peak

    def decode(self, encoded: Encoded, first: int, out: Floats) -> None:
        """Writes the weights from ``first`` on of the flattened tensor to ``out`` [n]; both products are rounded."""
        super().decode(encoded, first, out)
        out *= INVERSE


INT8 = RowCodec(get("int8"))
LLM_INT8 = AbsmaxCodec(get("llm_int8"))
CODECS = (INT8, LLM_INT8)
