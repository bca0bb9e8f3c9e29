"""A weight of a layer, held in a format: its parts are parameters, and what others see of it are decoded values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rung import formats
from rung.core.errors import UsageError
from rung.core.types import Format
from rung.formats import Encoded
from rung.nn.quantized import binding
from rung.nn.quantized.binding import Shape, parts_of
from rung.run.binding import Linear
from rung.run.torch_private import disabled_torch_function, tree_map_only

_SIXTEEN = {torch.bfloat16: "bf16", torch.float16: "f16"}


def written_instead(format: Format, columns: int) -> str:
    """The name of a format that rung writes, in place of one that it does not, or that does not divide such rows."""
    return formats.next_better(format, columns).name if format.floor_db else "q8_0"


class QuantWeight(nn.Module):
    """A weight ``shape`` (rows, columns) in ``format``, laid out as on disk.

    Each part is a parameter without gradient in a plain dtype; the one with the codes is named after the format, so
    that a state dictionary of another format does not fit. ``dtype`` is what decoded values are given in: casting the
    module changes it and leaves the parts alone.
    """

    def __init__(self, format: Format, shape: Shape, parts: dict[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.format, self.shape, self.dtype = format, shape, dtype
        self.assigned_db: float | None = None  # the SQNR of the values that were last assigned
        self._codes = formats.part_name(format, "data")
        self._names = {part: formats.part_name(format, part) for part in parts_of(format, shape)}
        self.replace(parts)

    def replace(self, parts: dict[str, Tensor]) -> None:
        """Takes other parts, by the names of ``Encoded.parts``."""
        for part, name in self._names.items():
            setattr(self, name, nn.Parameter(parts[part], requires_grad=False))

    @classmethod
    def of(cls, encoded: Encoded, dtype: torch.dtype, device: torch.device | str = "cpu") -> QuantWeight:
        """The weight that ``rung.formats.encode`` made."""
        return cls(encoded.format, encoded.shape, tensors(encoded, device), dtype)

    @classmethod
    def empty(
        cls, format: Format, shape: Shape, dtype: torch.dtype, device: torch.device | str = "meta"
    ) -> QuantWeight:
        """Parts whose values are still to come, from a state dictionary."""
        parts = {
            part: torch.empty(size, dtype=kind, device=device) for part, (size, kind) in parts_of(format, shape).items()
        }
        return cls(format, shape, parts, dtype)

    def parts(self) -> dict[str, Tensor]:
        """The parts as tensors, by the names of ``Encoded.parts``."""
        parameters: dict[str, Any] = self._parameters  # the attributes of replicas and FSDP1 take longer
        return {
            part: parameters[name] if name in parameters else getattr(self, name) for part, name in self._names.items()
        }

    @property
    def codes(self) -> Tensor:
        """The part with the codes."""
        found: Tensor = getattr(self, self._codes)
        return found

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return self.codes.device

    def linear(self, x: Tensor) -> Linear:
        """The weight bound to rungs for activations like x [T, columns]."""
        return binding.linear(binding.state(self.parts(), self.format, self.shape), x)

    def encoded(self) -> Encoded:
        """The weight as a value of ``rung.formats``; looks into the same memory on a CPU."""
        return Encoded(self.format, self.shape, {part: _array(tensor) for part, tensor in self.parts().items()})

    def decode(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the decoded weight [rows, columns], by default in ``dtype``; a new tensor."""
        state = binding.state(self.parts(), self.format, self.shape)
        return state.stored.decode(0, self.shape[0], self.device, dtype or self.dtype)

    def columns(self, indexes: Tensor, dtype: torch.dtype) -> Tensor:
        """The columns ``indexes`` int64 [n] of the decoded weight: [rows, n]; no other is decoded where rows have a
        scale each."""
        if self.format.layout != "row_scale":
            return self.decode(dtype)[:, indexes]
        parts = {**self.parts(), "data": self.codes[:, indexes]}
        return QuantWeight(self.format, (self.shape[0], len(indexes)), parts, dtype).decode()

    @torch.no_grad()
    def assign(self, values: Tensor, name: str = "weight") -> None:
        """Encodes new values [rows, columns]. Where they equal the decoded ones nothing changes, not even a bit.

        Rows (or, in nf4 and fp4, blocks) without a change keep their codes. Raises ``CannotEncode``, and
        ``UsageError`` for another shape or a format that rung does not write.
        """
        if tuple(values.shape) != self.shape:
            raise UsageError(
                f"{name} has the shape {list(self.shape)}; the new values have {list(values.shape)}",
                [f"it is stored in {self.format.name}, whose layout goes by the shape"],
                ["give a table its new size first, and quantize it then", "layer.dequantize()   # is a plain layer"],
            )
        changed = values.to(self.device) != self.decode(values.dtype)
        if not bool(changed.any()):
            return
        if not self.format.encodes:
            better = written_instead(self.format, self.shape[1])
            raise UsageError(
                f"{name} is stored in {self.format.name}, which rung reads and does not write.",
                ["new values, a merged adapter's say, cannot be put back into it"],
                [
                    "merge into plain layers:  rung.hub.peft.merge(model, dequantize=True)",
                    f"quantize the decoded layer to another format, {better} say:  layer.dequantize()",
                ],
                code="format-not-writable",
            )
        exact = torch.where(changed, values.to(self.device, torch.float32), self.decode(torch.float32))
        new = tensors(encode(exact, self.format, name), self.device)
        if self.format.layout != "flat":
            kept = ~changed.any(dim=1)
            for part, tensor in self.parts().items():
                new[part][kept] = tensor[kept]
        self.replace(new)
        error = (self.decode(torch.float32) - exact).norm()
        self.assigned_db = 20 * math.log10(float(exact.norm() / error)) if error > 0 else math.inf

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantWeight:
        def keep(part: Tensor) -> Tensor:
            moved = fn(part)
            return moved if moved.dtype == part.dtype else part.to(moved.device)

        if torch.__future__.get_swap_module_params_on_conversion():
            self._forget()
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        applied: QuantWeight = super()._apply(keep, recurse)
        return applied

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)

    def _forget(self) -> None:
        binding.forget(self.codes)

    def extra_repr(self) -> str:
        """Shown between the brackets of the layer."""
        return f"{self.format.name}, {self.shape[0]} x {self.shape[1]}, {self.dtype}"


def encode(values: Tensor, format: Format, name: str) -> Encoded:
    """The values [rows, columns] in a format, with torch's threads; raises as ``rung.formats.encode`` does.

    16-bit values are widened a piece at a time: a float32 copy of the whole would raise the peak of loading.
    """
    on_cpu, threads = values.detach().to("cpu"), torch.get_num_threads()
    stored = _SIXTEEN.get(on_cpu.dtype)
    if stored is None or on_cpu.ndim != 2 or format.family == "floats":
        return formats.encode(on_cpu.to(torch.float32).numpy(), format, name, threads)
    data = on_cpu.contiguous().view(torch.uint8).numpy()
    return formats.convert(
        Encoded(formats.get(stored), (len(on_cpu), on_cpu.shape[1]), {"data": data}), format, name, threads
    )


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def tensors(encoded: Encoded, device: torch.device | str) -> dict[str, Tensor]:
    """Its parts as tensors of their own there."""
    return {name: torch.from_numpy(np.array(part)).to(device) for name, part in encoded.parts.items()}


class Decoded(Tensor):
    """The weight of a layer as a tensor [rows, columns]: whatever is done with it is done with the decoded values.

    Looking at shape, dtype or device decodes nothing. Setting ``data``, and functions that change a tensor in place,
    encode the new values.
    """

    _weight: QuantWeight
    _is_hf_initialized = True  # transformers' mark; without it a model that is loaded would fill it with random values
    __torch_function__ = disabled_torch_function

    @staticmethod
    def __new__(cls, weight: QuantWeight) -> Decoded:
        tensor: Decoded = Tensor._make_wrapper_subclass(
            cls, torch.Size(weight.shape), dtype=weight.dtype, device=weight.device
        )
        tensor._weight = weight
        return tensor

    @property
    def data(self) -> Tensor:
        """The decoded values, a new tensor."""
        return self._weight.decode()

    @data.setter
    def data(self, values: Tensor) -> None:
        self._weight.assign(values)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Decoded({self._weight.extra_repr()})"

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self._weight.decode()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._weight.decode().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        plain = tree_map_only(Decoded, lambda weight: weight._weight.decode(), (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        if func._schema.is_mutable and args and isinstance(args[0], Decoded):
            args[0]._weight.assign(plain[0][0])
            return args[0]
        return result


def parameter_of(location: str) -> str:
    """The parameter of a plain network in whose place the ``QuantWeight`` of that name is."""
    stem, _, last = location.rpartition(".")
    return f"{stem}.weight" if last == "stored" else stem  # else the number of an expert
