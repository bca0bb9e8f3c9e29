"""Roles of stored tensors whose names differ from the described ones: prefixes by class, experts one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from rung.models.files.tensors import FileTensor
from rung.models.networks.values import OTHER, Component

#: What one class puts before the names of the weights that it shares with another.
_BASES = ("model.", "bert.", "roberta.", "distilbert.", "mpnet.", "text_model.", "vision_model.")
_EXPERT = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight(_scale_inv)?")
_EXPERT_ROLES = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up", "w2": "down", "down_proj": "down"}
_BLOCKS, _SCALES = "_blocks", "_scales"

RoleShape = tuple[str, tuple[int, ...] | None]


class Roles:
    """Where the tensors of a component's files belong; ``missing`` are the described ones that no file has had yet."""

    def __init__(self, component: Component) -> None:
        self._places: dict[str, RoleShape] = {t.name: (t.role, t.shape) for t in component.tensors}
        self._layers = component.shape.layers
        self.missing = {name: role for name, (role, _) in self._places.items() if "experts" not in role}

    def take(self, name: str) -> RoleShape:
        """The role of a stored tensor, and the shape that it must have; ``OTHER`` for one that was not described."""
        if expert := _EXPERT.fullmatch(name):
            layer, index, part, scale = expert.groups()
            if part in _EXPERT_ROLES and int(layer) < self._layers:
                return f"layers.{layer}.experts.{index}.{_EXPERT_ROLES[part]}{'_scale' if scale else ''}", None
        described = next((known for known in self._spellings(name) if known in self._places), "")
        self.missing.pop(described, None)
        return self._places.get(described, (OTHER, None))

    @staticmethod
    def _spellings(name: str) -> Iterable[str]:
        name = name.replace(".block_sparse_moe.", ".mlp.")
        yield name
        yield from (name.removeprefix(base) for base in _BASES if name.startswith(base))
        yield from (base + name for base in _BASES)


def joined(tensors: Iterable[FileTensor]) -> list[FileTensor]:
    """The tensors, blocks [..., rows, blocks, 16] and scales of mxfp4 weights as one of [..., rows, columns]."""
    found = {tensor.name: tensor for tensor in tensors}
    for name in [name for name in found if name.endswith(_BLOCKS)]:
        blocks, whole = found[name], name.removesuffix(_BLOCKS)
        scales = found.get(whole + _SCALES)
        if scales is None or blocks.format != "U8" or blocks.shape[-1:] != (16,) or blocks.shape[:-1] != scales.shape:
            continue
        del found[name], found[whole + _SCALES]
        shape = (*blocks.shape[:-2], 32 * blocks.shape[-2])
        size = blocks.bytes + scales.bytes
        found[whole] = replace(blocks, name=whole, shape=shape, format="mxfp4", known=True, bytes=size)
    return list(found.values())
