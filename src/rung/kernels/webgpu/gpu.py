"""A GPU through ``wgpu``: its buffers, pipelines and command buffers.

Shaders go through the trusted entry of wgpu-native, without checks of each access: with them no loop is unrolled. That
an access lies within its buffer is decided here before: a kernel says how much of each buffer it reaches
(``Kernel.reaches``), and ``Gpu.bind`` refuses less.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import wgpu
from wgpu.backends.wgpu_native import _api as native

from rung.core.errors import DeviceError, DeviceLost, OutOfMemory
from rung.hardware import detect
from rung.hardware.families.webgpu import open_adapter
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


#: Storage buffers that one kernel has at most.
BINDINGS = 10
_WAYS = ("rung devices --probe", "rung run MODEL --device cpu")


class Kernel(NamedTuple):
    """A compute shader: its code, the threads of a workgroup, and for each binding whether it is written and how many
    bytes of its buffer are reached."""

    code: str
    writes: tuple[bool, ...]
    reaches: tuple[int, ...]
    workgroup_bytes: int = 0


class Dispatch(NamedTuple):
    """A kernel with its buffers, which live as long, and its row in a table of ``recording``."""

    pipeline: Any
    group: Any
    row: tuple[int, int, int, int]


@dataclass(frozen=True)
class Limits:
    """Most bytes of a buffer, a binding and a workgroup's memory; most bindings of a kernel and workgroups."""

    buffer: int
    binding: int
    workgroup: int
    bindings: int
    groups: int


class Gpu:
    """One adapter's device. Methods may be called from several threads."""

    def __init__(self, adapter: wgpu.GPUAdapter) -> None:
        self.adapter = adapter
        limits = adapter.limits
        self.device = adapter.request_device_sync()
        self.limits = Limits(
            buffer=limits["max-buffer-size"],
            binding=limits["max-storage-buffer-binding-size"],
            workgroup=limits["max-compute-workgroup-storage-size"],
            bindings=limits["max-storage-buffers-per-shader-stage"],
            groups=limits["max-compute-workgroups-per-dimension"],
        )
        #: Bytes that arrays had which were written to buffers or read from them: what crosses the bus.
        self.crossed = 0
        self._pipelines: dict[str, Any] = {}
        self._layouts: dict[tuple[bool, ...], tuple[Any, Any]] = {}
        self._lock = threading.RLock()
        #: Whether the driver has given the device up: nothing more runs there.
        self.lost = False

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Call the driver, one thread at a time. Raises ``DeviceLost`` or ``OutOfMemory`` for what the driver says of
        a device that is gone, or of memory that is full; both may show at any call after the one that caused it."""
        with self._lock:
            try:
                yield
            except (wgpu.GPUError, RuntimeError) as error:
                found = self._meaning(error)
                if found is None:
                    raise
                raise found from error

    def _meaning(self, error: Exception) -> DeviceError | None:
        """Return the error that one of the driver means; None where it is a bug."""
        name, text = self.adapter.info["device"], str(error)
        if isinstance(error, MemoryError) or "memory left" in text.lower():
            return OutOfMemory(f"The memory of {name} is full.", [_last_line(text)], _WAYS)
        if "is lost" in text or "destroyed" in text:
            self.lost = True
            return DeviceLost(f"{name} does not answer any more.", [_last_line(text)], _WAYS)
        return None

    def buffer(self, size: int) -> Any:
        """Return a buffer of so many bytes, zeros. Raises ``OutOfMemory``."""
        size = max(-(-size // 16) * 16, 16)
        if size > self.limits.buffer:
            raise OutOfMemory(
                f"A buffer of {size:,} bytes is more than {self.adapter.info['device']} takes.",
                [f"its driver allows {self.limits.buffer:,} bytes"],
            )
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        with self._calling():
            return self.device.create_buffer(size=size, usage=usage)

    def bindable(self, size: int) -> Any:
        """Return a buffer of so many bytes that a kernel can have as a whole. Raises ``OutOfMemory``."""
        if size > self.limits.binding:
            raise OutOfMemory(
                f"A kernel would need {size:,} bytes in one buffer, which is more than"
                f" {self.adapter.info['device']} lets it have.",
                [f"its driver allows {self.limits.binding:,} bytes"],
            )
        return self.buffer(size)

    def upload(self, parts: Sequence[npt.NDArray[Any]]) -> Any:
        """Return a buffer that has these arrays one after the other."""
        buffer = self.buffer(sum(part.nbytes for part in parts))
        at = 0
        for part in parts:
            self.write(buffer, at, part)
            at += part.nbytes
        return buffer

    def write(self, buffer: Any, at: int, data: npt.NDArray[Any]) -> None:
        """Put an array at a byte that four divides; its bytes, too, are a multiple of four."""
        if data.nbytes:
            with self._calling():
                self.crossed += data.nbytes
                self.device.queue.write_buffer(buffer, at, np.ascontiguousarray(data))

    def read(self, buffer: Any, at: int, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a buffer, once all that was submitted is done."""
        with self._calling():
            self.crossed += size
            return np.frombuffer(self.device.queue.read_buffer(buffer, at, size), np.uint8)

    def copy(self, moves: Sequence[tuple[Any, int, Any, int, int]]) -> None:
        """Copy between buffers: (from, at, to, at, bytes)."""
        with self._calling():
            encoder = self.device.create_command_encoder()
            for source, first, target, second, size in moves:
                if size:
                    encoder.copy_buffer_to_buffer(source, first, target, second, size)
            self.device.queue.submit([encoder.finish()])

    def bind(self, kernel: Kernel, buffers: Sequence[Any], x: int, y: int = 1) -> Dispatch:
        """Return a kernel over buffers with its workgroups (x, y); 0 is one for each row of activations."""
        assert len(buffers) == len(kernel.writes) == len(kernel.reaches) <= BINDINGS
        for buffer, reach in zip(buffers, kernel.reaches, strict=True):
            assert reach <= buffer.size, f"a kernel reaches {reach} bytes of a buffer of {buffer.size}"
            assert buffer.size <= self.limits.binding, "a buffer is larger than a binding may be"
        assert kernel.workgroup_bytes <= self.limits.workgroup, "a kernel has more memory than a workgroup"
        assert max(x, y) <= self.limits.groups, "there are more workgroups than a driver takes"
        with self._calling():
            groups, pipeline = self._pipeline(kernel)
            entries = [{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(buffers)]
            group = self.device.create_bind_group(layout=groups, entries=entries)
            return Dispatch(pipeline, group, (handle(pipeline), handle(group), x, y))

    def _pipeline(self, kernel: Kernel) -> tuple[Any, Any]:
        if kernel.writes not in self._layouts:
            kinds = [
                {"type": wgpu.BufferBindingType.storage if writes else wgpu.BufferBindingType.read_only_storage}
                for writes in kernel.writes
            ]
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": kind} for i, kind in enumerate(kinds)
            ]
            groups = self.device.create_bind_group_layout(entries=entries)
            self._layouts[kernel.writes] = groups, self.device.create_pipeline_layout(bind_group_layouts=[groups])
        groups, layout = self._layouts[kernel.writes]
        if kernel.code not in self._pipelines:
            stage = {"module": self._module(kernel.code), "entry_point": "main"}
            self._pipelines[kernel.code] = self.device.create_compute_pipeline(layout=layout, compute=stage)
        return groups, self._pipelines[kernel.code]

    def _module(self, code: str) -> Any:
        """Compile a shader without checks of each access."""
        text = native.to_c_string_view(code)
        source = native.new_struct_p("WGPUShaderSourceWGSL *", code=text)
        source[0].chain.next = native.ffi.NULL
        source[0].chain.sType = native.lib.WGPUSType_ShaderSourceWGSL
        chain = native.ffi.cast("WGPUChainedStruct *", source)
        described = native.new_struct_p(
            "WGPUShaderModuleDescriptor *", nextInChain=chain, label=native.to_c_string_view("rung")
        )
        checks = 0  # WGPUShaderRuntimeChecks: none
        module = native.libf.wgpuDeviceCreateShaderModuleTrusted(self.device._internal, described, checks)
        return native.GPUShaderModule("rung", module, self.device)

    def record(self, dispatches: Sequence[Dispatch], rows: int) -> Any:
        """Return the command buffer of kernels for some rows of activations."""
        encoder = self.device.create_command_encoder()
        work = encoder.begin_compute_pass()
        record(work, table_of([each.row for each in dispatches], rows))
        work.end()
        return encoder.finish()

    def run(self, dispatches: Sequence[Dispatch], rows: int = 1) -> None:
        """Submit kernels for some rows of activations; each kernel sees what those before it have written."""
        with self._calling():
            self.device.queue.submit([self.record(dispatches, rows)])


def _last_line(text: str) -> str:
    """Return the last line of what a driver says, which is the cause of those before it."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it says nothing more"


_opening = threading.Lock()
_opened: dict[str, Gpu] = {}


def gpu(device: str) -> Gpu:
    """Return the GPU with that id, ``webgpu:0``; opened once, and anew after it was lost. Raises ``DeviceLost`` where
    it is not there any more."""
    with _opening:
        found = _opened.get(device)
        if found is None or found.lost:
            found = _opened[device] = _open(device)
        return found


def _open(device: str) -> Gpu:
    found = next((each for each in detect.devices(software_adapters=True) if each.id == device), None)
    try:
        if found is None:
            raise LookupError(f"no adapter has the number of {device}")
        return Gpu(open_adapter(found))
    except LookupError as error:
        raise DeviceLost(f"{device} is not there any more.", [str(error)], ["rung devices --probe"]) from error
