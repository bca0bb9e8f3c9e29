"""The language in which a model's tensors are described: a walk through its modules that names each weight.

A description says what the ``__init__`` of the module says, in the same order and words:

    block = parts.block(index)                    # layers.0., in names and in roles
    block.linear("self_attn.q_proj", hidden, heads * width, bias=False, role="q")
    block.norm("input_layernorm", hidden, bias=False)

so one can be laid beside the source of transformers or diffusers.
"""

from __future__ import annotations

from collections.abc import Iterator

from rung import formats
from rung.core.errors import BadFile
from rung.core.types import Format
from rung.models.card import Tensor

#: More tensors than any model has whose experts are stacked; a configuration that asks for more is absurd.
MOST_TENSORS = 2**16
#: Bytes of a weight in formats that checkpoints have and rung does not decode, by the name in safetensors files.
FOREIGN = {"F8_E4M3": 1}


class Parts:
    """The tensors of a module and of those below it; children share one list.

    ``name`` stands before the names of tensors, ``role`` before their roles, ``format`` is how weights are stored.
    """

    def __init__(self, where: str, format: str) -> None:
        self.where = where
        self.format = format
        self.name = ""
        self.role = ""
        self._tensors: list[Tensor] = []

    def __truediv__(self, name: str) -> Parts:
        """The child module ``name``."""
        return self._child(f"{self.name}{name}.", self.role)

    def _child(self, name: str, role: str) -> Parts:
        child = Parts(self.where, self.format)
        child.name, child.role, child._tensors = name, role, self._tensors
        return child

    def blocks(self, name: str, count: int, first: int = 0) -> Iterator[Parts]:
        """The repeated modules ``name.0``, ``name.1`` ...: tensors have roles ``layers.N.``, N from ``first``."""
        for index in range(count):
            yield self._child(f"{self.name}{name}.{index}.", f"{self.role}layers.{first + index}.")

    def side(self, role: str) -> Parts:
        """The same module with ``role.`` before its roles: the encoder or the decoder of a model that has both."""
        return self._child(self.name, f"{self.role}{role}.")

    def tensor(self, name: str, role: str, *shape: int, format: str | None = None) -> None:
        """A tensor as it is named in a checkpoint. Raises ``BadFile`` when there are too many."""
        if len(self._tensors) >= MOST_TENSORS:
            raise BadFile(f"{self.where} describes more than {MOST_TENSORS:,} tensors")
        stored = format or self.format
        size = tensor_bytes(stored, shape)
        self._tensors.append(Tensor(self.role + role, self.name + name, shape, stored, 0, 0, size))

    def linear(self, name: str, inner: int, outer: int, *, bias: bool = True, role: str = "linear") -> None:
        """``nn.Linear(inner, outer)``: weight [outer, inner]."""
        self.tensor(f"{name}.weight", role, outer, inner)
        if bias:
            self.tensor(f"{name}.bias", "bias" if role == "linear" else f"{role}_bias", outer)

    def conv(self, name: str, inner: int, outer: int, *kernel: int, bias: bool = True) -> None:
        """``nn.Conv1d``, ``Conv2d`` or ``Conv3d`` by the length of ``kernel``: weight [outer, inner, *kernel]."""
        self.tensor(f"{name}.weight", "conv", outer, inner, *kernel)
        if bias:
            self.tensor(f"{name}.bias", "bias", outer)

    def norm(self, name: str, width: int, *, bias: bool = True, role: str = "norm") -> None:
        """``nn.LayerNorm`` or ``GroupNorm`` with weights, or, without the bias, an RMS norm."""
        self.tensor(f"{name}.weight", role, width)
        if bias:
            self.tensor(f"{name}.bias", "norm_bias", width)

    def table(self, name: str, rows: int, width: int, role: str = "embed") -> None:
        """``nn.Embedding(rows, width)``."""
        self.tensor(f"{name}.weight", role, rows, width)

    def all(self) -> tuple[Tensor, ...]:
        """Every tensor described so far."""
        return tuple(self._tensors)


def tensor_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in a format of rung, or in one of ``FOREIGN``."""
    if format in FOREIGN:
        count = FOREIGN[format]
        for length in shape:
            count *= length
        return count
    found: Format = formats.get(format)
    return found.bytes(shape)
