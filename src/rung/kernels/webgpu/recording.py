"""Recording kernels into a command buffer by compiled code that calls the library's own functions.

``wgpu``'s methods take some 4 us for each kernel, these calls less than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from wgpu.backends.wgpu_native import _api as native

from rung.kernels.cpu.compiled import kernel
from rung.kernels.isa.scalar import call_address, numbers

#: A row of the table: handles of the pipeline and the bind group, workgroups in x and y.
WORDS = 4
_CALLS = (
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
)


@kernel(6)
def _record(encoder, table, count, set_pipeline, set_group, dispatch):
    """Record ``count`` rows of a table into a pass."""
    for number in range(count):
        row = numbers(table + 32 * number)
        call_address(set_pipeline, (encoder, row[0]))
        call_address(set_group, (encoder, 0, row[1], 0, 0))
        call_address(dispatch, (encoder, row[2], row[3], 1))


def table_of(kernels: Sequence[tuple[int, int, int, int]], rows: int) -> npt.NDArray[np.int64]:
    """Return the table of kernels for so many rows of activations; 0 workgroups are one for each row."""
    table = np.array(kernels, np.int64).reshape(-1, WORDS)
    table[table == 0] = rows
    return table


def record(work: Any, table: npt.NDArray[np.int64]) -> None:
    """Record a table into a compute pass of ``wgpu``."""
    calls = [int(native.ffi.cast("intptr_t", native.ffi.addressof(native.lib, name))) for name in _CALLS]
    _record.call(handle(work), table.ctypes.data, len(table), *calls)


def handle(part: Any) -> int:
    """Return the address by which the library knows an object of ``wgpu``."""
    return int(native.ffi.cast("intptr_t", part._internal))
