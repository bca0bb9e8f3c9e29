"""Make a component from a configuration and the stored tensors: its type, its roles, and what is quantized."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.registry import Registry, module_names
from rung.core.text import count as counted
from rung.core.types import EMPTY
from rung.formats.choice import Choice
from rung.models import architectures
from rung.models.card import Source, Tensor
from rung.models.checkpoints import OWN, StoredWeight, rung_folder
from rung.models.files.tensors import FileTensor
from rung.models.networks import diffusion, encoders, text
from rung.models.networks.describing import Description, Parts, tensor_bytes
from rung.models.networks.pipeline import working
from rung.models.networks.text import dense
from rung.models.networks.values import GENERATES, OTHER, TABLES, Component, shape_of_decoder
from rung.models.settings import Settings

__all__ = ["DESCRIPTIONS", "Description"]


def _found(package: ModuleType) -> Iterator[Description]:
    """Yield ``DESCRIPTIONS`` of each module of a folder, by name."""
    for name in module_names(package.__path__):
        yield from getattr(importlib.import_module(f"{package.__name__}.{name}"), "DESCRIPTIONS", ())


class _Descriptions(Registry[Description]):
    """The folders' descriptions, imported when one is looked up: decoders that rung runs need none of them."""

    def _complete(self) -> None:
        if not self._items:  # filled at once: another thread may look one up meanwhile
            found = Registry[Description]("description")
            for package in (text, encoders, diffusion):
                for description in _found(package):
                    found.register(description.model_type, description)
            self._items = dict(found)


#: By ``model_type`` (transformers) or ``_class_name`` (diffusers), without those of ``rung.models.architectures``.
DESCRIPTIONS = _Descriptions("description")

_WHOLE = (*TABLES, "head", "router", "shared_router")
#: What no layer of rung's holds.
_PLAIN = ("router", "shared_router", "conv", "table")


def stored(tensors: tuple[Tensor, ...], config: Settings, role: str) -> tuple[Tensor, ...]:
    """The tensors of a component of that role as the checkpoint stores them.

    Raises ``UnknownArchitecture`` for other ways of quantizing, ``BadFile`` for values that cannot be.
    """
    found = config.raw("quantization_config") or config.raw("compression_config")
    if not found:
        return tensors
    if not isinstance(found, Mapping):
        raise config.bad("quantization_config", found, "an object")
    method = str(found.get("quant_method", ""))
    if method == "mxfp4":
        return tuple(_mxfp4(tensor, config.where) for tensor in tensors)
    if method == "fp8":
        block = found.get("weight_block_size")
        if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
            raise config.bad("weight_block_size", block, "two whole numbers")
        return tuple(part for tensor in tensors for part in _fp8(tensor, block[0], block[1]))
    if method == OWN and role in GENERATES:
        return _own(tensors, rung_folder.quantization_choice(found, config.where))
    raise UnknownArchitecture(
        f"{config.where} is quantized" + (f" with {method[:40]}" if method else ""),
        ["from a configuration alone rung knows how fp8 (in blocks), mxfp4 and its own checkpoints are stored"],
        ["rung plan FOLDER   # where transformers builds the network", "name the unquantized version of the model"],
        code="quantization-unknown",
    )


def _last(tensor: Tensor) -> str:
    return tensor.role.rsplit(".", 1)[-1]


def _mxfp4(tensor: Tensor, where: str) -> Tensor:
    """Experts [count, in, out] are stored [count, out, in], in blocks of 32 along ``in``."""
    if _last(tensor) not in ("experts_gate_up", "experts_down"):
        return tensor
    count, inner, outer = tensor.shape
    if inner % 32:
        raise BadFile(
            f"{where}: mxfp4 cannot store {tensor.name}: its blocks of 32 do not divide rows of {inner}",
            code="format-does-not-suit",
        )
    shape = (count, outer, inner)
    return replace(tensor, shape=shape, format="mxfp4", bytes=tensor_bytes("mxfp4", shape))


def _fp8(tensor: Tensor, rows: int, columns: int) -> tuple[Tensor, ...]:
    if len(tensor.shape) < 2 or _last(tensor) in _WHOLE:
        return (tensor,)
    *stack, outer, inner = tensor.shape
    scales = (*stack, -(-outer // rows), -(-inner // columns))
    return (
        replace(tensor, format="F8_E4M3", bytes=tensor_bytes("F8_E4M3", tensor.shape)),
        Tensor(f"{tensor.role}_scale", f"{tensor.name}_scale_inv", scales, "f32", 0, 0, tensor_bytes("f32", scales)),
    )


def _own(tensors: tuple[Tensor, ...], choice: Choice) -> tuple[Tensor, ...]:
    """Each matrix in the format that its layer was given."""
    matrices = (tensor for tensor in tensors if 2 <= len(tensor.shape) <= 3 and _last(tensor) not in _PLAIN)
    layers = {tensor.name: _layer(tensor) for tensor in matrices}
    names = set(layers.values())
    weights = []
    for tensor in tensors:
        layer = layers.get(tensor.name)
        chosen = layer and choice.of((layer,), _last(tensor) in (*TABLES, "head"), names)
        if chosen and chosen.divides(tensor.shape[-1]):
            size = math.prod(tensor.shape[:-2]) * chosen.bytes(tensor.shape[-2:])
            source = Source(OWN, StoredWeight(tensor.shape, chosen.name, EMPTY), ())
            tensor = replace(tensor, format=chosen.name, bytes=size, source=source)
        weights.append(tensor)
    return tuple(weights)


def _layer(tensor: Tensor) -> str:
    """The name of the layer that a weight is of; two tensors are one layer of experts."""
    return tensor.name.removesuffix(".weight") if len(tensor.shape) == 2 else tensor.name.rpartition(".")[0]


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


_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def describe(config: Mapping[str, Any], where: str, name: str = "model") -> Component:
    """The component that a configuration describes, in its ``dtype`` (absent: f32); ``where`` names it in messages.

    Raises ``BadFile`` for values that cannot be, ``UnknownArchitecture`` for a type that nobody described.
    """
    settings = Settings(config, where)
    parts = Parts(where, _dtype(settings))
    found = _decoder(settings, parts, name) or _described(settings, parts, name)
    component = replace(found, tensors=stored(parts.all(), settings, found.role))
    if not component.tensors:
        raise BadFile(f"{where} describes a model without a tensor")
    return component


def kind_of(config: Settings) -> str:
    """``model_type``, or the class of a part of a diffusers pipeline. Raises ``BadFile`` where there is neither."""
    for key in ("model_type", "_class_name"):
        if key in config:
            return config.text(key)
    raise BadFile(f"{config.where} has neither a model_type nor a _class_name, so nothing says what it describes")


def known() -> list[str]:
    """The types that can be described."""
    return sorted([*dense.model_types(), *DESCRIPTIONS])


def _decoder(top: Settings, parts: Parts, name: str) -> Component | None:
    """A decoder that ``rung run`` builds, or None."""
    kind, config, prefix = kind_of(top), top, "model."
    if kind == "gemma3":
        kind, config, prefix = "gemma3_text", Settings(top.table("text_config"), top.where), "model.language_model."
    if kind not in architectures.MODEL_TYPES:
        return None
    model = architectures.MODEL_TYPES[kind]
    decoder = dense.decoder_of(model, top, config)
    dense.describe(model, config, decoder, parts, prefix)
    return Component(name, kind, "decoder", (), shape_of_decoder(decoder), decoder)


def _described(config: Settings, parts: Parts, name: str) -> Component:
    kind = kind_of(config)
    if kind not in DESCRIPTIONS:
        raise UnknownArchitecture(
            f"{config.where} is of the type {kind[:60]!r}, whose tensors rung does not know",
            [f"known: {', '.join(known())}"],
            ["rung check MODEL --trace   # builds its module without weights, and counts"],
        )
    description = DESCRIPTIONS[kind]
    settings = description.settings(config)
    role = description.role if isinstance(description.role, str) else description.role(settings)
    if role == "decoder":
        dense.check_measures(config)
    shape = working(kind, settings.values, description.describe(settings, parts))
    return Component(name, kind, role, (), shape)


def _dtype(config: Settings) -> str:
    """The format in which the configuration says that weights are stored."""
    table = config.raw("text_config")
    inner = table.get("dtype") or table.get("torch_dtype") if isinstance(table, Mapping) else None
    value = config.raw("dtype") or config.raw("torch_dtype") or inner or "float32"
    word = str(value).removeprefix("torch.")
    if word not in _DTYPES:
        raise config.bad("dtype", value, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[word]


def as_stored(component: Component, files: Sequence[Sequence[FileTensor]], where: str) -> Component:
    """The component with the tensors of its files instead of those that were described, which give them their roles.

    Raises ``BadFile`` where a described tensor is missing or has another shape: the two belong to different models.
    """
    roles, tensors = Roles(component), []
    for number, stored in enumerate(files):
        for item in joined(stored):
            role, shape = roles.take(item.name)
            if shape is not None and item.shape != shape:
                raise BadFile(
                    f"{where} contradicts its tensors: {item.name} has the shape {list(item.shape)}",
                    [f"its config.json says {list(shape)}"],
                )
            tensors.append(Tensor(role, item.name, item.shape, item.format, number, item.offset, item.bytes))
    if roles.missing:
        names = list(roles.missing)
        raise BadFile(
            f"{where} lacks {counted(len(names), 'tensor')} that its config.json asks for",
            [f"missing: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"],
            code="model-incomplete",
        )
    return replace(component, tensors=tuple(tensors))
