"""Fills a network with the weights of a folder, a tensor at a time, in the formats of a plan."""

from __future__ import annotations

import functools
import io
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rung.core.errors import BadFile
from rung.core.text import count
from rung.hub.diffusers.pipelines import kept_in_f32
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.models.files.safetensors import weight_files
from rung.models.files.tensors import FileTensor
from rung.models.outline import stem_of
from rung.nn import QuantWeight
from rung.nn.quantize import check_values, kind_of, put, replacement
from rung.nn.quantized.weight import encode
from rung.planning.pipeline import Network, NetworkStorage, Part, layer_format

#: What safetensors calls the types that are no format of rung's.
_OTHERS = {"F64": torch.float64, "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
#: How a processor convolves without a copy of what it convolves, by the dimensions of a weight: results are laid out
#: as the weight is. Otherwise oneDNN lays each input out anew, which made the largest decoding a quarter larger.
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: A layer of a repeated block. What stands before and behind the blocks is small, and the result depends on it most.
_REPEATED = re.compile(r"\.\d+\.")
_SIXTEEN = (torch.float16, torch.bfloat16)
#: Bytes of a tensor that are read at once where it is converted.
_PIECE = 32 << 20
#: (bytes done, bytes in all)
Progress = Callable[[int, int], None]


def quantizable(network: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers in the repeated blocks of a network, by name; those that its authors want in f32 are not.

    But T5's ``wo`` is: what overflows in f16 are its sums, which stay in f32, not its weights.
    """
    kept = set(kept_in_f32(network)) - {"wo"}
    return {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and kind_of(layer) == "linear"
        and _REPEATED.search(name) and not kept & set(name.split("."))
    }  # fmt: skip


def tables(network: nn.Module) -> set[str]:
    """The names of the weight from which an encoder takes a row for each token of a text."""
    embeds: Any = getattr(network, "get_input_embeddings", lambda: None)()
    same = [] if embeds is None else network.named_parameters(remove_duplicate=False)
    return {name for name, value in same if value is embeds.weight}


def network_of(
    module: nn.Module, name: str, phase: str, activations: tuple[int, int], batch: int, results: int
) -> Network:
    """Describe a network for planning."""
    kept = set(kept_in_f32(module))
    layers = {f"{each}.weight" for each in quantizable(module)} if phase != "decode" else set()
    looked_up = tables(module)
    parts = []
    for key, value in module.named_parameters():
        columns = value.shape[-1] if value.dim() else 1
        in_f32 = bool(kept & set(key.split(".")))
        parts.append(Part(value.numel() // columns, columns, key in layers, in_f32, key in looked_up))
    buffers = sum(value.nbytes for value in module.buffers())
    return Network(name, phase, tuple(parts), buffers, *activations, batch, results)


def cast(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """An empty network in a dtype, but for what its authors want in f32, as ``fill`` leaves it."""
    kept = set(kept_in_f32(network))
    for name, value in _state(network):
        if value.is_floating_point() and not kept & set(name.split(".")):
            value.data = value.data.to(dtype)
    return network


def check_files(network: nn.Module, folder: Path) -> tuple[dict[Path, tuple[FileTensor, ...]], dict[str, str]]:
    """The files of an empty network with their tensors, and its own names by those in the files; headers are read.

    Raises ``BadFile`` for tensors that are missing or have other shapes, ``UnsafeFile`` where there are only pickles,
    ``ModelNotFound`` where there is nothing.
    """
    state = dict(_state(network))
    files = weight_files(folder, stem_of(folder))
    tensors = list(itertools.chain.from_iterable(files.values()))
    names = _names(network, [stored.name for stored in tensors], set(state))
    for stored in tensors:
        name = names.get(stored.name)
        if name is not None and tuple(stored.shape) != tuple(state[name].shape):
            there, expected = list(stored.shape), list(state[name].shape)
            raise BadFile(f"{name} of {folder.name} has the shape {there}, not {expected}")
    found = {id(state[name]) for name in names.values()}  # a weight that is there twice is in the file once
    missing = [name for name, value in state.items() if value.is_meta and id(value) not in found]
    if missing:
        raise _lacks(folder, missing)
    return files, names


def fill(
    network: nn.Module, folder: Path, stored_as: NetworkStorage, device: torch.device, progress: Progress
) -> nn.Module:
    """Gives an empty network its weights and moves it to the device. Returns it.

    Layers of repeated blocks are held in ``held.format``, everything else in ``held.dtype``, or in f32 where the
    network's authors want that; but beside quantized layers a table of tokens is held in 16 bits, and its rows are
    widened. Raises what ``check_files`` does, and ``CannotEncode`` for NaN.
    """
    dtype, kept = TORCH_DTYPE[stored_as.dtype], set(kept_in_f32(network))
    layers, narrow = (quantizable(network), tables(network)) if stored_as.quantized else ({}, set())
    files, names = check_files(network, folder)
    total, done = sum(stored.bytes for tensors in files.values() for stored in tensors), 0
    for stored, read in _read(files):
        name = names.get(stored.name)
        if name is not None:
            own = torch.float32 if kept & set(name.split(".")) else dtype
            layer = layers.get(name.removesuffix(".weight"))
            if layer is not None and name.endswith(".weight"):
                _quantize(network, name, layer, read(None), stored_as.format, own, device)
            else:
                _assign(network, name, read(_narrow(stored, own) if name in narrow else own), device)
        done += stored.bytes
        progress(done, total)
    _tie(network)
    _widen(network, narrow, dtype)
    if left := [name for name, value in _state(network) if value.is_meta]:
        raise _lacks(folder, left)
    for owner in network.modules():  # buffers that no file has
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = buffer.to(device, dtype if buffer.is_floating_point() else None)
    return network.requires_grad_(False)


def fill_buffers(network: nn.Module, folder: Path) -> None:
    """Gives an empty network the buffers that its file has: pipelines read statistics from there."""
    buffers = {name for name, _ in network.named_buffers()}
    stem = stem_of(folder)
    if buffers and stem:
        files = weight_files(folder, stem)
        chosen = {path: tuple(one for one in stored if one.name in buffers) for path, stored in files.items()}
        for stored, read in _read(chosen):
            _assign(network, stored.name, read(None), torch.device("cpu"))


def _lacks(folder: Path, missing: list[str]) -> BadFile:
    return BadFile(
        f"{folder.name} lacks {count(len(missing), 'tensor')}",
        [f"missing: {', '.join(missing[:8])}"],
        code="model-incomplete",
    )


def _state(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers()


#: Reads a tensor, converted where it has floating-point numbers and a dtype is given.
_Reader = Callable[[torch.dtype | None], Tensor]


def _read(files: dict[Path, tuple[FileTensor, ...]]) -> Iterator[tuple[FileTensor, _Reader]]:
    """The tensors in the order in which they lie in their files; none is mapped, so that none stays in memory."""
    for path, tensors in files.items():
        with open(path, "rb") as file:
            for stored in sorted(tensors, key=lambda one: one.offset):
                yield stored, functools.partial(_values, file, path, stored)


def _values(file: io.BufferedReader, path: Path, stored: FileTensor, target: torch.dtype | None) -> Tensor:
    """A tensor; what is converted is read in pieces, so that it is not there twice."""
    dtype = _stored_dtype(stored)
    if dtype is None:
        raise BadFile(f"{stored.name} in {path.name} is stored in {stored.format}, which rung does not read")
    if target is None or not dtype.is_floating_point:
        target = dtype
    values = torch.empty(math.prod(stored.shape), dtype=target)
    step = max(len(values), 1) if target == dtype else _PIECE // dtype.itemsize
    file.seek(stored.offset)
    for first in range(0, len(values), step):
        part = values[first : first + step]
        data = part if target == dtype else torch.empty(len(part), dtype=dtype)
        if file.readinto(data.view(torch.uint8).numpy().data) != data.nbytes:
            raise BadFile(f"{path.name} has become shorter while it was read", code="file-truncated")
        if data is not part:
            part.copy_(data)
    return values.reshape(stored.shape)


def _stored_dtype(stored: FileTensor) -> torch.dtype | None:
    return TORCH_DTYPE.get(stored.format) or _OTHERS.get(stored.format)


def _narrow(stored: FileTensor, own: torch.dtype) -> torch.dtype:
    """The 16 bits of a table: those it is stored in, else those that have the range of f32."""
    found = _stored_dtype(stored)
    return own if own in _SIXTEEN else found if found in _SIXTEEN else torch.bfloat16


def _widen(network: nn.Module, narrow: set[str], dtype: torch.dtype) -> None:
    """Has the rows of those tables given in the dtype that the network computes in."""
    for name in narrow:
        owner = network.get_submodule(name.rpartition(".")[0])
        owner.register_forward_hook(lambda module, inputs, rows: rows.to(dtype))


def _names(network: Any, stored: list[str], expected: set[str]) -> dict[str, str]:
    """The network's own names by those in its file, which may be of an older version, or have a prefix."""
    table = {name: name for name in stored}
    if fix := getattr(network, "_fix_state_dict_keys_on_load", None):
        fix(table)
    found = {}
    for own, name in table.items():
        while own not in expected and "." in own:
            own = own.partition(".")[2]
        if own in expected:
            found[name] = own
    return found


def _quantize(
    network: nn.Module, name: str, layer: nn.Linear, values: Tensor, format: str, dtype: torch.dtype,
    device: torch.device,
) -> None:  # fmt: skip
    check_values(name, values)
    encoded = encode(values, layer_format(format, values.shape[1]), name)
    layer_of_format: Any = replacement(layer, [QuantWeight.of(encoded, dtype, device)], None)
    layer_of_format.exact = True
    put(network, name.removesuffix(".weight"), layer_of_format)


def _assign(network: nn.Module, name: str, values: Tensor, device: torch.device) -> None:
    """Makes the values the parameter or buffer of that name."""
    owner, _, last = name.rpartition(".")
    module = network.get_submodule(owner)
    moved = laid_out(values.to(device))
    if last in module._buffers:
        module._buffers[last] = moved
    else:
        module._parameters[last] = nn.Parameter(moved, requires_grad=False)


def laid_out(values: Tensor) -> Tensor:
    """A weight as its device convolves with it."""
    layout = _LAYOUTS.get(values.dim()) if values.device.type == "cpu" else None
    return values if layout is None else values.contiguous(memory_format=layout)


def _tie(network: Any) -> None:
    """Weights that the file has once and the network twice."""
    if hasattr(network, "tie_weights"):
        network.tie_weights()
