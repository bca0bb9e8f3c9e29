"""Networks that only transformers builds, from checkpoints that a quantizer wrote, another one or rung itself.

Which formats their layers will hold is known from headers; reading those of others asks for rung's loader in one call,
whatever is installed, so that nothing has to be put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key
from transformers.utils.quantization_config import QuantizationConfigMixin

from rung import formats
from rung.core.errors import BadFile, UnknownArchitecture, UsageError
from rung.core.types import EMPTY, Format
from rung.hub.quantized import Loader, StoredConfig, fuses
from rung.hub.quantizer import Method, QuantizationConfig
from rung.models.card import Piece, Source, Tensor
from rung.models.cards import folder
from rung.models.checkpoints import OWN, StoredWeight, method_of, rung_folder
from rung.models.checkpoints.values import OTHER_COPY, contradiction, shaped
from rung.models.files.tensors import FileTensor
from rung.models.roles import Found
from rung.nn import QuantWeight
from rung.nn.experts import NAMES
from rung.nn.quantize import kind_of, turned
from rung.nn.quantized.weight import parameter_of

#: The weights of a parameter, by the pattern of transformers' conversion that takes them: None where none does.
Group = dict[str | None, list[Found]]


class ReadConfig(QuantizationConfigMixin):
    """Makes one call of ``from_pretrained`` read with ``Loader`` what a quantization config describes.

    The model's own config must not hold it then; ``weight_formats``: see ``Loader``. Raises ``UnknownArchitecture``
    for a method that rung does not read.
    """

    def __init__(self, described: Mapping[str, Any], where: str, weight_formats: Mapping[str, Format]) -> None:
        self.quant_method: Any = Method.RUNG
        self.described, self.method, self.weight_formats = dict(described), method_of(described, where), weight_formats

    def quantizer(self, **options: Any) -> Loader:
        """Return the quantizer that transformers loads with."""
        stored = StoredConfig(**{**self.described, "quant_method": self.method})
        return Loader(stored, method=self.method, weight_formats=self.weight_formats)


def as_stored(
    module: Any,
    tensors: Sequence[Tensor],
    files: Mapping[Path, tuple[FileTensor, ...]],
    described: Mapping[str, Any],
    where: str,
) -> tuple[Tensor, ...]:
    """The tensors of a network, those that its files hold quantized in the formats of its layers, with a ``source``.

    The others have no source: they are floats, also those that are decoded because no layer of rung's holds them.
    ``described`` is the quantization config. Raises ``BadFile`` where tensors contradict it, each other or the
    network, and ``UnknownArchitecture`` for what rung does not read.
    """
    read = [Found("", one, number) for number, several in enumerate(files.values()) for one in several]
    if method_of(described, where) == OWN:
        return _own(module, tensors, read, described, where)
    weights = folder.joined(read, tuple(files), described, where, lambda name: None)
    groups, converters = _by_parameter(module, weights)
    names = {tensor.name for tensor in tensors}
    for name in groups.keys() - names:
        if any(item.source for item in _items(groups[name])):
            raise _unheld(f"{where}: {name} is quantized by itself, and tied to another weight of its network")
    result = {tensor.name: _as_tensor(module, tensor, groups.get(tensor.name, {})) for tensor in tensors}
    result |= _experts(module, result, groups, converters, tuple(files))
    if not any(tensor.source for tensor in result.values()):
        raise _unheld(f"{where} is quantized, and no layer of a {type(module).__name__} holds such a weight")
    return tuple(result.values())


def _unheld(cause: str) -> UnknownArchitecture:
    return UnknownArchitecture(cause, (), OTHER_COPY)


def _items(group: Group) -> list[Found]:
    return [item for items in group.values() for item in items]


def _by_parameter(module: Any, weights: Iterable[Found]) -> tuple[dict[str, Group], dict[str, WeightConverter]]:
    """The weights for each parameter, under its name in the network as transformers finds it, and its conversions by
    their patterns."""
    conversions, state = get_model_conversion_mapping(module), module.state_dict()
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    groups: dict[str, Group] = {}
    for item in sorted(weights, key=lambda item: dot_natural_key(item.stored.name)):
        name, prefix = item.stored.name, module.base_model_prefix
        key, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if key not in state and name in state:
            key, pattern = rename_source_key(name, [], [], prefix, state)
        if key in state:
            groups.setdefault(key, {}).setdefault(pattern, []).append(item)
    return groups, {pattern: each for each in converters for pattern in each.source_patterns}


def _as_tensor(module: nn.Module, tensor: Tensor, group: Group) -> Tensor:
    """The tensor as it is stored, where one stored weight is all of it, and a layer of rung's holds that."""
    if list(group) != [None]:
        return tensor
    (item, *_), (stem, _, parameter) = group[None], tensor.name.rpartition(".")
    stored, owner = item.stored, module.get_submodule(stem)
    if item.source is None:
        same = stored.known and stored.shape == tensor.shape
        return replace(tensor, format=stored.format, bytes=stored.bytes) if same else tensor
    expected = [tensor.shape]
    if parameter in NAMES:  # gpt-oss keeps its experts as [experts, in, out]
        expected.append((*tensor.shape[:1], *tensor.shape[:0:-1]))
    elif turned(owner):
        expected = [tensor.shape[::-1]]
    elif kind_of(owner) != "linear":
        return tensor
    if stored.shape not in expected:
        raise BadFile(f"{stored.name} is {list(stored.shape)} in the checkpoint, and {list(expected[0])} in the model")
    return replace(tensor, shape=stored.shape, format=stored.format, bytes=stored.bytes, source=item.source)


def _experts(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    groups: Mapping[str, Group],
    converters: Mapping[str, WeightConverter],
    files: Sequence[Path],
) -> dict[str, Tensor]:
    """The tensors of experts that are stored one by one and stay so: both of a layer in one format, or neither."""
    result: dict[str, Tensor] = {}
    for stem in {name.rpartition(".")[0] for name in groups if name.endswith(NAMES)}:
        names = [f"{stem}.{parameter}" for parameter in NAMES if f"{stem}.{parameter}" in tensors]
        found = [_formats(module, name, groups.get(name, {}), converters, files) for name in names]
        shared = formats.common([each for one in found for each in one]) if found and all(found) else None
        if shared is None:
            continue
        for name in names:
            shape, sources = tensors[name].shape, [item.source for item in _items(groups[name]) if item.source]
            pieces = tuple(piece for source in sources for piece in source.pieces)
            source = Source(sources[0].method, StoredWeight(shape, shared.name, EMPTY), pieces)
            size = shape[0] * shared.bytes(shape[1:])
            result[name] = replace(tensors[name], format=shared.name, bytes=size, source=source)
    return result


def _formats(
    module: nn.Module, name: str, group: Group, converters: Mapping[str, WeightConverter], files: Sequence[Path]
) -> list[Format]:
    """The format of each expert, gate above up; none where one of them is no one weight."""
    converter = converters.get(next(iter(group), None) or "")
    if converter is None or not fuses(module, name, converter.operations):
        return []
    found: list[Format] = []
    for several in zip(*group.values(), strict=False):  # reading tells of experts that are missing
        apart = [(formats.get(item.stored.format), item.stored.shape) for item in several if item.source]
        fmt = formats.stacked_format(apart) if len(apart) == len(several) else None
        if fmt is None or (fmt.layout == "ordered" and len({_order(item, files) for item in several}) > 1):
            return []
        found.append(fmt)
    return found


def _order(item: Found, files: Sequence[Path]) -> bytes:
    """Return the stored groups of the columns of a weight, which give their order."""
    assert item.source is not None
    (piece,) = (piece for piece in item.source.pieces if piece.part == "g_idx")
    with open(files[piece.file], "rb") as file:
        file.seek(piece.offset)
        return file.read(piece.bytes)


# ---- rung's own folders


def _own(
    module: Any, tensors: Sequence[Tensor], read: Sequence[Found], described: Mapping[str, Any], where: str
) -> tuple[Tensor, ...]:
    """The tensors of a folder of rung's own, as the layers hold them that its config asks for; changes the module."""
    rung_folder.quantization_choice(described, where)
    try:
        QuantizationConfig(**described).quantizer()._process_model_before_weight_loading(module)
    except UsageError as error:
        raise BadFile(
            f"{where}: quantization_config does not belong to a {type(module).__name__}", [error.cause, *error.facts]
        ) from error
    groups, _ = _by_parameter(module, read)
    names: dict[QuantWeight, list[str]] = {}  # several where a head is its embedding
    for layer_name, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, QuantWeight):
            names.setdefault(layer, []).append(layer_name)
    found_pieces: dict[str, list[tuple[QuantWeight, tuple[Piece, ...]]]] = {}
    for weight, several in names.items():
        pieces = _pieces(weight, several, groups)
        for layer_name in several:
            found_pieces.setdefault(parameter_of(layer_name), []).append((weight, pieces))
    return tuple(
        _with_parts(tensor, found_pieces[tensor.name])
        if tensor.name in found_pieces
        else _as_tensor(module, tensor, groups.get(tensor.name, {}))
        for tensor in tensors
    )


def _pieces(weight: QuantWeight, names: Sequence[str], groups: Mapping[str, Group]) -> tuple[Piece, ...]:
    """The stored parts of a weight that lies there in its network. Raises ``BadFile``."""
    found = []
    for part, (shape, dtype) in formats.parts(weight.format, weight.shape).items():
        name = formats.part_name(weight.format, part)
        items = [item for layer_name in names for item in _items(groups.get(f"{layer_name}.{name}", {}))]
        if not items:
            raise contradiction(names[0], f"expected: {weight.format.name}", f"there is no {names[0]}.{name}")
        shaped(names[0], folder.header_of(items[0].stored), shape, (rung_folder.DTYPES[dtype],))
        found.append(folder.piece_of(part, items[0]))
    return tuple(found)


def _with_parts(tensor: Tensor, with_pieces: Sequence[tuple[QuantWeight, tuple[Piece, ...]]]) -> Tensor:
    """The tensor as those weights together hold it."""
    format = with_pieces[0][0].format
    shape = with_pieces[0][0].shape if len(tensor.shape) == 2 else tensor.shape  # GPT-2's own is turned
    source = Source(
        OWN, StoredWeight(shape, format.name, EMPTY), tuple(piece for _, pieces in with_pieces for piece in pieces)
    )
    size = sum(format.bytes(weight.shape) for weight, _ in with_pieces)
    return replace(tensor, shape=shape, format=format.name, bytes=size, source=source)
