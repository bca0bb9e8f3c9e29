"""transformers: checkpoints of bitsandbytes, GPTQ, AWQ, compressed-tensors, fp8, MXFP4 and HQQ on any device.

``install()`` puts rung in the place of transformers' own quantizers for these methods, ``uninstall()`` puts them back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import Concatenate, ConversionOps, MergeModulelist, WeightConverter
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rung import formats
from rung.core.errors import BadFile, UsageError
from rung.core.types import Format
from rung.formats import Encoded
from rung.hub.mmap_pages import give_back
from rung.hub.quantizer import QuantizationConfig, Quantizer, tagged
from rung.hub.tensor_conversions import Operation, whole_names
from rung.models import checkpoints
from rung.models.checkpoints import Header, Raw
from rung.models.checkpoints.bitsandbytes import OUTLIERS
from rung.nn import QuantLinear, QuantWeight
from rung.nn.experts import NAMES, QuantExperts, computable, recognized
from rung.nn.quantize import kind_of, put, replacement, turned

#: transformers' names of the methods -> those of ``rung.models.checkpoints``.
_NAMES = {"bitsandbytes_4bit": "bitsandbytes", "bitsandbytes_8bit": "bitsandbytes"} | {
    name: name for name in checkpoints.METHODS if name != "bitsandbytes"
}
_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint8": "U8",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",  # which torch has from 2.7 on
}
_AS_INTEGERS = {1: torch.uint8, 2: torch.uint16}
_theirs: dict[str, tuple[Any, Any]] = {}


def install() -> None:
    """From now on rung loads checkpoints of these methods in this process; a second call changes nothing."""
    for name in _NAMES:
        if name not in _theirs:
            config = auto.AUTO_QUANTIZATION_CONFIG_MAPPING[name]
            _theirs[name] = (config, auto.AUTO_QUANTIZER_MAPPING[name])
            if _NAMES[name] != "bitsandbytes":  # which needs no package, and which programs give themselves
                auto.AUTO_QUANTIZATION_CONFIG_MAPPING[name] = type(config.__name__, (StoredConfig,), {})
            auto.AUTO_QUANTIZER_MAPPING[name] = _choose(name)


def uninstall() -> None:
    """Puts transformers' own quantizers back; models that are loaded stay as they are."""
    while _theirs:
        name, (config, quantizer) = _theirs.popitem()
        auto.AUTO_QUANTIZATION_CONFIG_MAPPING[name], auto.AUTO_QUANTIZER_MAPPING[name] = config, quantizer


def _choose(name: str) -> Any:
    """Return a factory of quantizers: rung's for checkpoints and for bitsandbytes' 4 and 8 bits, else transformers'
    own."""

    def make(config: Any, **options: Any) -> HfQuantizer:
        if options.get("pre_quantized", True):
            return Loader(config, method=_NAMES[name], **options)
        if _NAMES[name] == "bitsandbytes":
            return Quantizer(_as_rungs(config), **options)
        quantizer: HfQuantizer = _theirs[name][1](config, **options)
        return quantizer

    return make


def _as_rungs(config: Any) -> QuantizationConfig:
    """Translate a ``BitsAndBytesConfig``. Raises ``UsageError`` for options that would change nothing."""
    if config.load_in_8bit and config.llm_int8_has_fp16_weight:
        raise UsageError(
            "llm_int8_has_fp16_weight keeps the weights in 16 bits, and rung stores them in 8",
            ["they take half of the memory, and have no gradient"],
            ["leave llm_int8_has_fp16_weight out", "train adapters on the model in 8 bits"],
        )
    if config.load_in_8bit:
        skip = config.llm_int8_skip_modules or ()
        return QuantizationConfig("llm_int8", skip=skip, threshold=config.llm_int8_threshold)
    nested = ":nested" if config.bnb_4bit_use_double_quant else ""
    return QuantizationConfig(
        f"{config.bnb_4bit_quant_type}:64{nested}",
        skip=config.llm_int8_skip_modules or (),
        compute_dtype=config.bnb_4bit_compute_dtype,
    )


class StoredConfig(QuantizationConfigMixin):
    """A quantization config as a checkpoint has it, whatever its keys; reading it needs no package of the method."""

    def __init__(self, quant_method: str, **values: Any) -> None:
        self.quant_method: Any = quant_method
        self.__dict__.update(values)


class Loader(Quantizer):
    """Loads what another quantizer has stored: each weight as soon as all of its parts have been read.

    ``weight_formats`` has formats of weights, by the names of their parameters, that do not stay as stored.
    """

    def __init__(
        self, quantization_config: Any, method: str, weight_formats: Mapping[str, Format] | None = None, **options: Any
    ) -> None:
        HfQuantizer.__init__(self, quantization_config, **options)
        self.method, self._weight_formats = method, weight_formats or {}
        self.settings: Mapping[str, Any] = quantization_config.to_dict()
        self._own: dict[int, Any] = {}  # transformers' conversion by the one that takes its place
        self._taken: dict[str, dict[str, list[Encoded]]] = {}  # experts by module and parameter
        self.plain: set[str] = set()  #: modules whose experts are decoded

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> nn.Module:
        self.files = bool(kwargs.get("checkpoint_files"))
        result: nn.Module = model
        return result

    def update_weight_conversions(self, weight_conversions: Any, model: Any) -> list[Any]:
        """transformers' own conversions, which hold experts or get decoded weights, and those that make layers."""
        parts = checkpoints.suffixes(self.method)
        own = []
        for converter in weight_conversions:
            sources = getattr(converter, "_original_source_patterns", [])
            if isinstance(converter, WeightConverter) and all(source.endswith(".weight") for source in sources):
                stems = [source.removesuffix(".weight") for source in sources]
                names = {
                    f"{stem}{re.escape(end)}$": (f"{stem}{re.escape(next(iter(parts)))}$", part)
                    for stem in stems
                    for end, part in parts.items()
                }
                fusing = [_Fuse(self, names, converter.operations)]
                own.append(converter.copy(list(names), converter._original_target_patterns, operations=fusing))
                self._own[id(own[-1])] = whole_names(converter)
            else:
                own.append(converter)
        return own + self.get_weight_conversions()

    def get_weight_conversions(self) -> list[Any]:
        """From the parts of a weight to its layer."""
        parts = checkpoints.suffixes(self.method)
        if self.method == "mxfp4":
            return [
                WeightConverter(
                    [f"{name}{end}$" for end in parts],
                    name,
                    [_Insert(self, {f"{name}{e}$": p for e, p in parts.items()})],
                )
                for name in NAMES
            ]
        names = {f"{re.escape(end)}$": part for end, part in parts.items()}
        return [WeightConverter(list(names), ".weight", [_Insert(self, names)])]

    def encoded(self, name: str, tensors: Mapping[str, Tensor]) -> Encoded | None:
        """The weight of those parts; None where it is stored as it is. Raises ``BadFile``."""
        raws = {part: _raw(tensor) for part, tensor in tensors.items()}
        headers = {part: Header(f"{name} ({part})", tuple(t.shape), raws[part].dtype) for part, t in tensors.items()}
        stored = checkpoints.describe(self.method, self.settings, name, headers, raws.__getitem__)
        if stored is None and "weight" not in tensors:
            raise BadFile(
                f"{name} lacks its codes", [f"the checkpoint has {', '.join(tensors)} of it"], code="model-incomplete"
            )
        return None if stored is None else checkpoints.read(self.method, stored, raws, name)

    def insert(self, model: Any, name: str, encoded: Encoded, device: torch.device) -> dict[str, Tensor]:
        """Puts the layer of a weight into the model; returns its parts by their names there."""
        stem, _, parameter = name.rpartition(".")
        module = model.get_submodule(stem)
        if parameter in NAMES:  # of gpt-oss, whose experts are stored as one
            rows = encoded.shape[0] // len(module.down_proj)
            starts = range(0, encoded.shape[0], rows)
            return self.insert_experts(model, name, [_rows(encoded, at, at + rows) for at in starts], device)
        dtype = module.weight.dtype
        shape = tuple(module.weight.shape)[:: -1 if turned(module) else 1]
        if shape != encoded.shape:
            raise BadFile(f"{name} is {list(encoded.shape)} in the checkpoint, and {list(shape)} in the model")
        if kind_of(module) != "linear":
            return {name: torch.from_numpy(formats.decode(encoded)).to(device, dtype)}
        encoded = self._converted_weight(name, encoded)
        eight = encoded.format.name == "llm_int8"
        threshold = float(self.settings.get("llm_int8_threshold", OUTLIERS)) if eight else 0.0
        stored = QuantWeight.of(encoded, dtype, device)
        return self._put(model, stem, replacement(module, [stored], None, threshold), [stored])

    def insert_experts(self, model: Any, name: str, experts: list[Encoded], device: torch.device) -> dict[str, Tensor]:
        """Puts the layer of a weight for each expert into the model, once both of its tensors are there."""
        stem, _, parameter = name.rpartition(".")
        taken = self._taken.setdefault(stem, {})
        taken[parameter] = [self._converted_weight(name, each) for each in experts]
        if len(taken) < len(NAMES):
            return {}
        fmt = formats.alike([*taken[NAMES[0]], *taken[NAMES[1]]])
        if len({each.format for each in fmt}) > 1:  # a saved config has one format for a layer
            del taken[parameter]
            return self.plain_experts(model, name, device) | {name: _decoded(experts, model, name, device)}
        weights = [QuantWeight.of(each, model.get_parameter(name).dtype, device) for each in fmt]
        layer = QuantExperts(model.get_submodule(stem), weights[: len(fmt) // 2], weights[len(fmt) // 2 :])
        return self._put(model, stem, layer, weights)

    def plain_experts(self, model: Any, name: str, device: torch.device) -> dict[str, Tensor]:
        """Notes that one tensor of those experts is decoded; returns the other one, decoded, if it was held."""
        stem = name.rpartition(".")[0]
        taken = self._taken.pop(stem, {})
        self.plain.add(stem)
        return {
            f"{stem}.{other}": _decoded(experts, model, f"{stem}.{other}", device) for other, experts in taken.items()
        }

    def _converted_weight(self, name: str, encoded: Encoded) -> Encoded:
        """The weight in the format that is asked for; as it is stored where none is."""
        return formats.convert(encoded, self._weight_formats.get(name, encoded.format), name, torch.get_num_threads())

    @staticmethod
    def _put(model: Any, stem: str, layer: nn.Module, weights: list[Any]) -> dict[str, Tensor]:
        for each in layer.modules():
            each._is_hf_initialized = True  # type: ignore[assignment]  # or transformers would fill the weights
        put(model, stem, layer)
        ids = {id(part) for weight in weights for part in weight.parameters()}
        return {f"{stem}.{name}": part for name, part in layer.named_parameters() if id(part) in ids}

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> nn.Module:
        self.raise_refusal()
        if self.files:
            give_back(model.parameters())
        model._weight_conversions = [self._own.get(id(each), each) for each in model._weight_conversions]
        model._weight_conversions = [each for each in model._weight_conversions if not _places(each)]
        config = _config_of(model)
        if config is None:
            result: nn.Module = model
            return result
        self.quantization_config = model.config.quantization_config = config  # saved, it is rung's
        return tagged(model)


def fuses(model: nn.Module, name: str, operations: Sequence[ConversionOps]) -> bool:
    """Return whether operations of transformers' make a parameter of experts that a layer of rung's can hold one by
    one."""
    stem, _, parameter = name.rpartition(".")
    merged = [type(each) for each in operations] in ([MergeModulelist], [MergeModulelist, Concatenate])
    module = model.get_submodule(stem)
    return merged and parameter in NAMES and recognized(module) and bool(computable(module))


def _config_of(model: nn.Module) -> QuantizationConfig | None:
    """The config of rung with which a saved copy of a loaded model is read; None where all was decoded."""
    plain, formats_by_name, threshold = [], {}, 0.0
    for name, layer in model.named_modules():
        if isinstance(layer, QuantLinear):
            formats_by_name[name], threshold = layer.stored.format.name, max(threshold, layer.threshold)
        elif isinstance(layer, QuantExperts):
            formats_by_name[name] = next(
                weight.format.name for weight in layer.modules() if isinstance(weight, QuantWeight)
            )
        elif kind_of(layer) in ("linear", "experts"):
            plain.append(name)
    names = list(formats_by_name.values())
    if not names:
        return None
    most = max(set(names), key=names.count)
    heads = ("lm_head", "embed_out")
    keep = {
        name: chosen for name, chosen in formats_by_name.items() if chosen != most or name.rpartition(".")[2] in heads
    }
    return QuantizationConfig(most, skip=plain, keep=keep, threshold=threshold)


def _places(conversion: Any) -> bool:
    return any(isinstance(operation, _Insert) for operation in getattr(conversion, "operations", ()))


def _rows(encoded: Encoded, first: int, last: int) -> Encoded:
    return Encoded(encoded.format, (last - first, encoded.shape[1]), {"data": encoded.parts["data"][first:last]})


def _decoded(experts: list[Encoded], model: Any, name: str, device: torch.device) -> Tensor:
    whole = torch.stack([torch.from_numpy(formats.decode(each)) for each in experts])
    return whole.to(device, model.get_parameter(name).dtype)


def _raw(tensor: Tensor) -> Raw:
    here = tensor.detach().cpu().contiguous()
    narrow = here.is_floating_point() and here.element_size() < 4
    values = here.view(_AS_INTEGERS[here.element_size()]) if narrow else here
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise BadFile(f"A quantized weight has a part of {tensor.dtype}, which no method uses")
    return Raw(_DTYPES[dtype], values.numpy())


def _one(value: Any) -> Tensor:
    found: Tensor = value[0] if isinstance(value, list) else value
    return found


class _Insert(Operation):
    """The parts of a weight become a layer; a weight that is stored as it is gets the dtype of the model."""

    hf_quantizer: Loader

    def __init__(self, hf_quantizer: Loader, parts: Mapping[str, str]) -> None:
        super().__init__(hf_quantizer)
        self.parts = parts

    def converted(self, tensors: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        """The parts of the layer by name."""
        name, model = context["full_layer_name"], context["model"]
        own = {self.parts[pattern]: _one(value) for pattern, value in tensors.items()}
        encoded = self.hf_quantizer.encoded(name, own)
        if encoded is None:
            return {name: own["weight"].to(model.get_parameter_or_buffer(name).dtype)}
        inserted = self.hf_quantizer.insert(model, name, encoded, next(iter(own.values())).device)
        if name not in inserted:
            context["missing_keys"].discard(name)
        return inserted


class _Fuse(Operation):
    """Weights that a conversion of transformers puts together: experts stay as they are stored, others are decoded.

    ``parts``: from a pattern of the conversion to the one that stands for the whole weight afterwards, and the part;
    in the order in which the conversion takes them.
    """

    hf_quantizer: Loader

    def __init__(
        self, hf_quantizer: Loader, parts: Mapping[str, tuple[str, str]], own: Sequence[ConversionOps]
    ) -> None:
        super().__init__(hf_quantizer)
        self.parts, self.own = parts, own

    def converted(self, tensors: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        """The parts of the experts by name; or what the operations of transformers make of decoded weights."""
        name, model = context["full_layer_name"], context["model"]
        found = self._found(name, tensors)
        device = next(tensor for value in tensors.values() for tensor in value).device
        if (experts := self._experts(model, name, found)) is not None:
            context["missing_keys"].discard(name)
            return self.hf_quantizer.insert_experts(model, name, experts, device)
        dtype = model.get_parameter_or_buffer(name).dtype
        fused: Any = {
            target: [
                (each if isinstance(each, Tensor) else torch.from_numpy(formats.decode(each))).to(device, dtype)
                for each in weights
            ]
            for target, weights in found.items()
        }
        for operation in self.own:
            fused = operation.convert(fused, **context)
        if name.endswith(NAMES):
            (whole,) = fused.values()
            fused = {name: whole, **self.hf_quantizer.plain_experts(model, name, device)}
        result: dict[str, Any] = fused
        return result

    def _found(self, name: str, tensors: Mapping[str, Any]) -> dict[str, list[Encoded | Tensor]]:
        """By the pattern of the whole weight: what of each is stored, encoded or as it is. Raises ``BadFile``."""
        parts: dict[str, dict[str, list[Tensor]]] = {}
        for pattern, (target, part) in self.parts.items():
            if (value := tensors.get(pattern)) is not None:
                parts.setdefault(target, {})[part] = value if isinstance(value, list) else [value]
        found: dict[str, list[Encoded | Tensor]] = {}
        for target, lists in parts.items():
            counts = {part: len(values) for part, values in lists.items()}
            if len(set(counts.values())) > 1:
                have = ", ".join(f"{count} of {part}" for part, count in counts.items())
                raise BadFile(f"{name}: some of its weights lack a part", [f"the checkpoint has {have}"])
            for index in range(next(iter(counts.values()))):
                one = {part: values[index] for part, values in lists.items()}
                encoded = self.hf_quantizer.encoded(f"{name}[{index}]", one)
                found.setdefault(target, []).append(one["weight"] if encoded is None else encoded)
        return found

    def _experts(self, model: Any, name: str, found: Mapping[str, list[Encoded | Tensor]]) -> list[Encoded] | None:
        """A weight for each expert, gate above up; None where a layer of rung cannot hold them."""
        stem = name.rpartition(".")[0]
        if not fuses(model, name, self.own):
            return None
        encoded: list[Encoded] = []
        for several in zip(*found.values(), strict=True):
            one = [each for each in several if isinstance(each, Encoded)]
            whole = formats.stacked(one) if len(one) == len(several) else None
            if whole is None or stem in self.hf_quantizer.plain:
                return None
            encoded.append(whole)
        have, want = [len(encoded), *encoded[0].shape], list(model.get_parameter(name).shape)
        if have != want:
            raise BadFile(f"{name} is {have} in the checkpoint, and {want} in the model")
        return encoded
