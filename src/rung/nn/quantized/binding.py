"""Weights of layers bound to rungs of ``linear`` and ``embedding``, outside of the layers.

A layer holds nothing but its parts. What a rung packs privately is kept here for as long as those parts live, and made
again when they have been moved or changed: so neither copies nor state dictionaries, casts or moves can see it.
"""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rung import formats
from rung.core.errors import UnknownDevice, UsageError
from rung.core.types import Device, Format, Level, Proof, StepDown
from rung.formats import Encoded
from rung.hardware import detect
from rung.kernels.gpu import decoders
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.kernels.gpu.stored import Stored
from rung.kernels.webgpu import is_webgpu
from rung.run.binding import Attention, Binder, Embedding, Linear, Rasterizer
from rung.run.journal import Journal
from rung.run.probe import probe
from rung.run.torch_device import STANDING_IN, torch_name
from rung.simulation.context import current

Shape = tuple[int, int]
#: Where something computes: torch's device, or the id of one of WebGPU (``rung.run.torch_private.location``).
Location = torch.device | str
#: What rungs compute in, by torch's dtype.
_SIZES = {"scale", "absmax", "nested_absmax", "nested_offset"}

_lock = threading.RLock()
states: WeakIdKeyDictionary = WeakIdKeyDictionary()
_log = logging.getLogger("rung")


def _say(step: StepDown) -> None:
    warnings.warn(
        f"{step.op}: {step.rung} is not used on {step.device} ({step.step}: {step.reason}); {step.to} is",
        RuntimeWarning,
        stacklevel=2,
    )


journal = Journal(on_step=_say, on_note=_log.info)


@dataclass(eq=False)
class State:
    """A weight as rungs see it: ``stored`` shares memory with the parts, ``linears`` and ``rows`` are bound to rungs.

    ``key`` tells whether the parts are still the same. Not ``packed``: rungs must read it as it is stored.
    """

    key: tuple[tuple[int, int], ...]
    stored: Stored
    packed: bool = True
    linears: dict[torch.dtype, Linear] = field(default_factory=dict)
    rows: Embedding | None = None


def _key(tensors: Iterable[Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)


def parts_of(format: Format, shape: Shape) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of each part of a weight [rows, columns], as ``rung.formats.encode`` makes them."""
    return {part: (size, getattr(torch, dtype)) for part, (size, dtype) in formats.parts(format, shape).items()}


def state(parts: dict[str, Tensor], format: Format, shape: Shape) -> State:
    """The state of a weight; a new one when its parts are not those of the last call.

    Raises ``UsageError`` for parts in another dtype than the format's: a cast has destroyed the scales.
    """
    codes, key = parts["data"], _key(parts.values())
    found: State | None = states.get(codes)
    if found is None or found.key != key:
        with _lock:
            found = states[codes] = State(key, _stored(parts, format, shape))
    return found


def forget(codes: Tensor) -> None:
    """Let go of the state of the weight with these codes, which weak references to them belong to: torch exchanges no
    tensor that has one, and in-place changes under ``torch.inference_mode`` have no version to tell them by."""
    with _lock:
        states.pop(codes, None)


def foreign(
    owner: Tensor, tensors: Iterable[Tensor], parts: Callable[[], dict[str, Tensor]], format: Format, shape: Any
) -> State:
    """The state of another program's weight, which lives as long as ``owner`` and is never packed.

    It is made anew, of ``parts()``, when one of ``tensors`` has moved or changed.
    """
    key = _key(tensors)
    found: State | None = states.get(owner)
    if found is None or found.key != key or found.stored.shape != shape or found.stored.encoded.format != format:
        with _lock:
            found = states[owner] = State(key, _stored(parts(), format, shape), packed=False)
    return found


def _stored(parts: dict[str, Tensor], format: Format, shape: Shape) -> Stored:
    for name, (size, dtype) in parts_of(format, shape).items():
        if parts[name].dtype != dtype or tuple(parts[name].shape) != size:
            raise UsageError(
                f"The part {name} of a weight in {format.name} is {list(parts[name].shape)} in {parts[name].dtype}"
                f" and should be {list(size)} in {dtype}",
                ["something has cast or replaced the scales behind the layer's back"],
                ["with FSDP leave param_dtype of MixedPrecisionPolicy at None and cast the model instead"],
            )
    device = parts["data"].device
    if device.type == "cpu" and torch.distributed.is_available() and torch.distributed.is_initialized():
        # FSDP frees and refills the memory of parameters, which arrays that look into it forbid
        parts = {name: part.detach().clone() for name, part in parts.items()}
    whole = device.type == "cpu" or decoders.find(format) is None
    host = {name: part.detach().cpu().numpy() for name, part in parts.items() if whole or name in _SIZES}
    here = {name: part.detach() for name, part in parts.items()}
    return Stored(Encoded(format, shape, host), "f32", torch.get_num_threads(), {str(device): here})


def linear(bound: State, x: Tensor) -> Linear:
    """The weight bound for activations like ``x``. What one dtype has packed, all of them share."""
    found = bound.linears.get(x.dtype)
    if found is not None:
        return found
    with _lock:
        shared = next((other for other in bound.linears.values() if other.packing != "stored"), None)
        bound.linears[x.dtype] = shared or bind(bound, x)
        return bound.linears[x.dtype]


def decoded(bound: State, x: Tensor, first: int, last: int) -> Tensor:
    """The rows [first, last) in the dtype of x and where it lies, to be read only: on a GPU by the kernel of the rung
    that multiplies them, where there is one."""
    if x.device.type == "cuda" and x.dtype in DTYPE_NAME:
        return linear(bound, x).decode(first, last, x.device, x.dtype)
    return bound.stored.read(first, last, x.device, x.dtype)


def pack(encoded: Encoded, location: torch.device, dtype: str, threads: int) -> Linear:
    """Bind a weight for activations in ``dtype``, apart from those that ``linear`` keeps: several threads may pack
    at once."""
    return _binder_of(device_of(location), dtype, threads, True).linear(encoded)


def bind(bound: State, x: Tensor) -> Linear:
    """Return the linear of a weight, bound for what it is multiplied with."""
    linear = _binder(x.device, DTYPE_NAME[x.dtype], bound.packed).linear(_whole(bound))
    if isinstance(linear.state, Stored):
        linear.state.parts.update(bound.stored.parts)
    return linear


def embedding(bound: State, ids: Tensor) -> Embedding:
    """The weight bound for looking rows up; read as it is stored."""
    with _lock:
        if bound.rows is None:
            bound.rows = Embedding(_binder(ids.device, "f32"), encoded=_whole(bound))
            if isinstance(bound.rows.state, Stored):
                bound.rows.state.parts.update(bound.stored.parts)
        return bound.rows


def _whole(bound: State) -> Encoded:
    """The weight on the host, its codes too."""
    encoded = bound.stored.encoded
    if "data" in encoded.parts:
        return encoded
    (parts,) = bound.stored.parts.values()
    return Encoded(encoded.format, encoded.shape, {name: part.cpu().numpy() for name, part in parts.items()})


def attention(location: torch.device, heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> Attention:
    """The attention of a layer there, over keys and values in ``dtype``."""
    return _attention_of(_binder(location, "f32"), heads, kv_heads, size, DTYPE_NAME[dtype])


@functools.cache
def _attention_of(binder: Binder, heads: int, kv_heads: int, size: int, dtype: str) -> Attention:
    return binder.attention(heads, kv_heads, size, dtype)


def rasterizer(location: Location, degree: int | None, antialiased: bool) -> Rasterizer:
    """Splats to pictures there."""
    return rasterizer_of(str(location), current(), degree, antialiased)


def _drawing(location: Location) -> Device:
    """Return the device of a place. Raises ``UnknownDevice`` for one of WebGPU that is not there."""
    return _webgpu_device(str(location)) if is_webgpu(str(location)) else device_of(torch.device(location))


@functools.cache
def _webgpu_device(name: str) -> Device:
    found = next((device for device in detect.devices(software_adapters=True) if device.id == name), None)
    if found is None:
        raise UnknownDevice(f"{name} is not in this machine.", ["no adapter has that number"], ["rung devices"])
    return _probed(found)


@functools.cache
def rasterizer_of(location: str, card: Device | None, degree: int | None, antialiased: bool) -> Rasterizer:
    """``card`` is the simulated one, if any."""
    binder = Binder(_drawing(location), journal, threads=torch.get_num_threads())
    return binder.rasterizer(degree=degree, antialiased=antialiased)


def distrust_rasterizer(location: Location, degree: int | None, antialiased: bool, reason: str) -> None:
    """Leaves the rung that draws splats there for the one below, for all degrees."""
    rasterizer(location, degree, antialiased).distrust(reason)
    rasterizer_of.cache_clear()


def left_rasterizers(location: Location) -> dict[str, str]:
    """Why rungs that draw splats there are not used any more in this process, by name."""
    return journal.left(_drawing(location).id, "rasterize")


def leave_rasterizers(location: Location, degree: int | None, antialiased: bool, left: dict[str, str]) -> None:
    """Leaves the rungs that another process has left there."""
    while (name := rasterizer(location, degree, antialiased).rung.name) in left:
        distrust_rasterizer(location, degree, antialiased, left[name])


def multiplies(location: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a probe proved that matrices are multiplied there in that dtype at a speed worth having."""
    if dtype in (torch.float32, torch.float64):
        return True
    return (
        device_of(location).capability(f"matmul.{DTYPE_NAME[dtype]}").level is Level.NATIVE
        if dtype in DTYPE_NAME
        else False
    )


def _binder(location: torch.device, dtype: str, packed: bool = True) -> Binder:
    device = device_of(location)
    return _binder_of(device, dtype, torch.get_num_threads(), packed and device.kind == "cpu")


@functools.cache
def _binder_of(device: Device, dtype: str, threads: int, packed: bool) -> Binder:
    return Binder(device, journal, dtype=dtype, threads=threads, packed=packed)


def device_of(location: torch.device) -> Device:
    return _device_of(STANDING_IN.get(location.type, location.type), location.index or 0, current())


@functools.cache
def _device_of(kind: str, index: int, card: Device | None) -> Device:
    """The device that torch means, probed now where no probe has been before; ``card`` is the simulated one, if any."""
    alike = []
    for device in detect.devices():
        if not device.torch_computes:
            continue
        named = torch.device(torch_name(device.id))
        if named.type == kind:
            alike.append(device)
            if (named.index or 0) == index:
                break
    return _probed(alike[-1])


def _probed(device: Device) -> Device:
    """Return the device with what it can do, found out now where no probe has been before."""
    proved = any(c.proof is Proof.PROBE for c in device.capabilities.values())
    if device.real and not proved and device.capability("matmul.f32").level is not Level.ABSENT:
        _log.info("Finding out what %s can do: about 10 seconds, once.", device.name)
        device = probe(device)
    return device
