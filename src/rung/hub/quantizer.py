"""Quantize models of transformers while they are loaded: ``quantization_config=rung.QuantizationConfig(format="nf4")``.

Weights are encoded one after the other. What is saved loads again without naming a config, once ``rung`` has been
imported: ``rung.hub.register`` imports this module as soon as transformers' table of quantizers is there.
"""

from __future__ import annotations

import copy
import sys
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rung import formats
from rung.core.errors import BadFile, DoesNotFit, RungError, UsageError
from rung.core.text import count
from rung.formats.choice import Choice, kept, means
from rung.hub.error_budget import Rounding, answers_numbers, check_budget, choose
from rung.hub.networks.modules import component_of
from rung.hub.output_error import choose_by_output
from rung.hub.register import TABLE
from rung.hub.tensor_conversions import Operation, whole_names
from rung.models.networks.values import plain
from rung.nn import QuantEmbedding, QuantExperts, QuantLinear, QuantWeight
from rung.nn.quantize import (
    TargetLayer,
    check_computing,
    check_shapes,
    check_values,
    put,
    replacement,
    target_layers,
    tell_left,
    turned,
)
from rung.nn.quantized import binding
from rung.nn.quantized.weight import encode
from rung.planning.check import check
from rung.planning.check_result import Question

METHOD = "rung"
#: The format that asks the plan for the device that the model is loaded to.
AUTO = "auto"
#: The format of a config that names none.
DEFAULT = "nf4"
_OF_BUDGET = ("max_kl", "size", "text", "expected_kl")


class Method(StrEnum):
    """The name of the method; an enumeration, because diffusers reads its ``value``."""

    RUNG = METHOD


class QuantizationConfig(QuantizationConfigMixin):
    """How ``from_pretrained`` is to quantize; the arguments are those of ``rung.quantize``.

    Instead of a format (by default ``nf4``) a budget: ``max_kl``, in nats a token, or ``size``, bytes of the saved
    weights (``120_000_000`` or ``"120MB"``). A format is then chosen for each matrix as ``rung quantize`` does, by
    ``text``, a file, or one of all sorts, and weights are rounded for it; ``expected_kl`` says what is expected.
    Encoders and parts of pipelines are judged by what they answer to drawn inputs (``rung.hub.output_error``).
    ``format="auto"``: what ``rung check`` finds best for the device that the model is loaded to, and for layers that it
    does not divide the next better one; the config then says what was chosen.

    Raises ``UnknownFormat``, and ``UsageError`` for an unknown argument or dtype, a negative threshold, and a budget
    that makes no sense.
    """

    def __init__(
        self,
        format: str | None = None,
        skip: list[str] | tuple[str, ...] | str = (),
        embeddings: str | None = None,
        compute_dtype: torch.dtype | str | None = None,
        keep: dict[str, str] | None = None,
        threshold: float = 0.0,
        max_kl: float | None = None,
        size: int | str | None = None,
        text: str | None = None,
        **saved: Any,
    ) -> None:
        unknown = saved.keys() - {"quant_method", "expected_kl"}
        if unknown:
            raise UsageError(
                f"rung.QuantizationConfig has no argument {', '.join(sorted(unknown))}",
                ["it has format, skip, embeddings, compute_dtype, keep, threshold, max_kl, size and text"],
                ['rung.QuantizationConfig(format="nf4")'],
                code="name-unknown",
            )
        self.quant_method: Any = Method.RUNG
        self.max_kl, self.size, self.text = max_kl, size, text
        self.expected_kl: float | None = saved.get("expected_kl")
        if self.within_budget or text is not None:
            check_budget(format, max_kl, size, text)
        named = format or DEFAULT
        self.format = named if named == AUTO or self.within_budget else formats.get(named).name
        self.embeddings = None if embeddings is None else formats.get(embeddings).name
        self.skip = [skip] if isinstance(skip, str) else list(skip)
        self.keep = {pattern: chosen.name for pattern, chosen in kept(keep).items()}
        self.compute_dtype = None if compute_dtype is None else str(compute_dtype).removeprefix("torch.")
        check_computing(self.dtype(), threshold)
        self.threshold = float(threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that are saved, those of a budget only where they were given."""
        found: dict[str, Any] = super().to_dict()
        return {key: value for key, value in found.items() if value is not None or key not in _OF_BUDGET}

    @property
    def within_budget(self) -> bool:
        """Return whether formats are still to be chosen within a size or a KL."""
        return self.max_kl is not None or self.size is not None

    def quantizer(self, **options: Any) -> HfQuantizer:
        """Return the quantizer that transformers quantizes and loads with."""
        return Quantizer(self, **options)

    def choice(self) -> Choice:
        """Return the choice of a format for each layer; ``format`` must be one, not ``auto``."""
        return Choice.named(self.format, self.skip, self.embeddings, self.keep)

    def dtype(self) -> torch.dtype | None:
        """``compute_dtype`` as torch's."""
        found: Any = self.compute_dtype
        return None if found is None else getattr(torch, found, found)  # an unknown name is refused as it is


class Quantizer(HfQuantizer):
    """Hold what transformers asks while it loads, saves and trains."""

    requires_calibration = False
    quantization_config: QuantizationConfig
    refused: RungError | None = None  #: what stopped the conversion of a weight
    files = False  #: whether values come from files, and not from the caller

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        """Takes a copy: what is planned and left out of this model is not to be so of the next with that config."""
        super().__init__(copy.deepcopy(quantization_config), **kwargs)

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> nn.Module:
        config = self.quantization_config
        self.files = bool(kwargs.get("checkpoint_files"))
        if config.format == AUTO:
            _plan(model, config, kwargs.get("device_map"))
        rounding: Rounding = encode
        if config.within_budget and not self.pre_quantized:
            files = kwargs.get("checkpoint_files") or ()
            rounding = (choose_by_output if answers_numbers(model, files) else choose)(model, config, files)
        layers = target_layers(model, config.choice())
        for each in layers:
            # what rung does not write it may have loaded, or round for a text
            if each.format.encodes or (not self.pre_quantized and rounding is encode):
                check_shapes(each)
        self._groups = _groups(layers, model.all_tied_weights_keys, rounding)
        self._of = {key: group for group in self._groups for key in group.names()}
        if self.pre_quantized:
            for group in self._groups:
                group.put(model, group.empty(), config)
            _tie(model, self._groups)
        else:
            targets = {f"{each.name}.weight" for group in self._groups for each in group.layers}
            for name in targets & model.all_tied_weights_keys.keys():
                del model.all_tied_weights_keys[name]
            tell_left(model)
        result: nn.Module = model
        return result

    def update_weight_conversions(self, weight_conversions: Any, model: Any) -> list[Any]:
        """transformers' own conversions, which leave the parts of quantized experts alone when they are saved."""
        return [whole_names(each) for each in super().update_weight_conversions(weight_conversions, model)]

    def param_needs_quantization(self, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        """Return whether a parameter of the checkpoint is to be encoded."""
        return not self.pre_quantized and param_name in self._of

    def get_quantize_ops(self) -> ConversionOps:
        """The operation that encodes it."""
        return _Encode(self)

    def encode(self, model: Any, name: str, values: Tensor, missing: set[str]) -> dict[str, Tensor]:
        """Encodes a parameter, puts the layer in place once it is whole, and returns its parts by name."""
        group = self._of[name]
        group.take(name, values)
        missing.difference_update(group.names())
        if not group.whole():
            return {}
        return group.put(model, group.encoded, self.quantization_config)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> nn.Module:
        self.raise_refusal()
        if not self.pre_quantized:  # what the checkpoint lacks was initialized, and stays plain
            self._some_read()
            plain = [each.name for group in self._groups if not group.done for each in group.layers]
            self.quantization_config.skip += plain
            self._groups = [group for group in self._groups if group.done]
            _tie(model, self._groups)
        else:
            _complete(model)
        self._groups, self._of = [], {}  # the model holds its weights, which it may pack or exchange
        return tagged(model)

    def _some_read(self) -> None:
        """Raises ``BadFile`` where the checkpoint had no weight of the layers: nothing would be quantized."""
        if self._groups and not any(group.done for group in self._groups):
            names = [name for group in self._groups for name in group.names()]
            raise BadFile(
                f"The checkpoint has none of the {count(len(names), 'weight')} that were to be quantized",
                [f"{names[0]} is the first; the model has random values in their place"],
                ["take a checkpoint of this architecture, whose weights are in 16 or 32 bits"],
            )

    def raise_refusal(self) -> None:
        """Raises what an operation has refused."""
        if self.refused is not None:
            raise self.refused

    def is_serializable(self, **kwargs: Any) -> bool:
        """Saved as the parts are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained on top."""
        return True

    @property
    def is_compileable(self) -> bool:
        """Its layers are operators to ``torch.compile``."""
        return True

    def _dequantize(self, model: Any, dtype: torch.dtype | str | None = None) -> nn.Module:
        if isinstance(dtype, str):  # what save_pretrained leaves in the model's config
            dtype = getattr(torch, dtype)
        restored: dict[int, nn.Module] = {}
        for name, layer in list(model.named_modules(remove_duplicate=False)):
            if isinstance(layer, QuantLinear | QuantEmbedding | QuantExperts):
                plain = restored.setdefault(id(layer), layer.dequantize().to(dtype))
                put(model, name, plain)
        model.__dict__.pop("_tied_weights_keys", None)
        model.tie_weights()
        result: nn.Module = model
        return result


def _plan(model: Any, config: QuantizationConfig, device_map: Any) -> None:
    """Puts the planned format into the config. Raises ``DoesNotFit``."""
    device, name = binding.device_of(_main_device(device_map)), type(model).__name__
    answer = check(plain(name, "module", name, component_of(model)), [device], Question())
    if answer.best is None:
        refused = [f"{choice.format}: {choice.verdict.reason}" for choice in answer.choices]
        ways = ["a smaller model, or another device:  device_map", "rung check MODEL --fits"]
        raise DoesNotFit(f"{name} fits {device.name} in no format.", refused[-4:], ways)
    chosen = formats.get(answer.choices[answer.best].format)
    config.format = chosen.name
    targets = target_layers(model, Choice(chosen, tuple(config.skip)))
    names = {each.name for each in targets}
    for each in targets:
        better = max((formats.next_better(chosen, w.shape[1]) for _, w in each.weights), key=lambda f: f.bits)
        if better != chosen and not any(means(pattern, each.name, names) for pattern in config.keep):
            config.keep[each.name] = better.name


def _main_device(device_map: Any) -> torch.device:
    """Where a model is computed: the first accelerator of a device map, or of the machine where accelerate is to
    divide the model (``auto``, ``balanced`` ...); else the processor."""
    if isinstance(device_map, str):
        here = torch.accelerator  # without one torch 2.6 raises, newer ones answer None
        found = here.current_accelerator() if here.is_available() else None
        return found or torch.device("cpu")
    devices = [torch.device(each) for each in (device_map or {}).values() if each != "disk"]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


class _Encode(Operation):
    """A weight that was just read becomes the parts of a layer."""

    hf_quantizer: Quantizer

    def converted(self, tensors: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        """The tensor as parts, under the names that the layer keeps them by."""
        (value,) = tensors.values()
        values = value[0] if isinstance(value, list) else value
        return self.hf_quantizer.encode(context["model"], context["full_layer_name"], values, context["missing_keys"])


def tagged(model: Any) -> nn.Module:
    """The model, which is saved and uploaded with a page that says what it is."""
    from rung.hub import model_card

    model.add_model_tags([METHOD])
    model_card.attach(model)
    network: nn.Module = model
    return network


class _Group:
    """Layers that share their weights (a tied head and its embedding), and those weights once they are encoded."""

    def __init__(self, layers: list[TargetLayer], rounding: Rounding) -> None:
        self.layers, self.done, self._rounding = layers, False, rounding
        self.encoded: list[QuantWeight] = []
        self._taken: dict[str, list[QuantWeight]] = {}

    def _parameters(self) -> tuple[str, ...]:
        experts = len(self.layers[0].weights) > 1
        return ("gate_up_proj", "down_proj") if experts else ("weight",)

    def names(self) -> list[str]:
        """The names of their parameters in a checkpoint."""
        return [f"{each.name}.{parameter}" for each in self.layers for parameter in self._parameters()]

    def take(self, name: str, values: Tensor) -> None:
        """Encodes one of the parameters; a second one for the same place (a head beside its embedding) is ignored."""
        parameter = name.rpartition(".")[2]
        if parameter in self._taken:
            return
        values = values.T if turned(self.layers[0].module) else values
        slices = values if values.ndim == 3 else [values]
        names = [f"{name}[{index}]" if values.ndim == 3 else name for index in range(len(slices))]
        for each, weight in zip(names, slices, strict=True):
            check_values(each, weight)
        self._taken[parameter] = [
            QuantWeight.of(self._rounding(weight, self.layers[0].format, each), values.dtype, values.device)
            for each, weight in zip(names, slices, strict=True)
        ]
        if self.whole():
            self.encoded = [weight for parameter in self._parameters() for weight in self._taken[parameter]]

    def whole(self) -> bool:
        """Return whether all parameters are there."""
        return len(self._taken) == len(self._parameters())

    def empty(self) -> list[QuantWeight]:
        """Weights without values, for a checkpoint that has their parts."""
        chosen = self.layers[0].format
        return [QuantWeight.empty(chosen, (w.shape[0], w.shape[1]), w.dtype) for _, w in self.layers[0].weights]

    def put(self, model: Any, weights: list[QuantWeight], config: QuantizationConfig) -> dict[str, Tensor]:
        """Puts the layers into the model and returns the parts by their names there."""
        if self.done:
            return {}
        self.done = True
        parts: dict[str, Tensor] = {}
        for each in self.layers:
            layer: Any = replacement(each.module, weights, config.dtype(), config.threshold)
            for module in layer.modules():
                module._is_hf_initialized = True  # or transformers would fill the weights with random values
            put(model, each.name, layer)
            if each is self.layers[0]:
                ids = {id(part) for weight in weights for part in weight.parameters()}
                parts = {f"{each.name}.{n}": p for n, p in layer.named_parameters() if id(p) in ids}
        return parts


def _groups(targets: list[TargetLayer], tied: dict[str, str], rounding: Rounding) -> list[_Group]:
    """Layers by the weights they share; the embedding of a tied head comes first."""
    found: dict[str, list[TargetLayer]] = {}
    for each in targets:
        name = f"{each.name}.weight"
        found.setdefault(tied.get(name, name), []).append(each)
    return [
        _Group(sorted(layers, key=lambda each: isinstance(each.module, nn.Linear)), rounding)
        for layers in found.values()
    ]


def _tie(model: Any, groups: list[_Group]) -> None:
    """Tells transformers which parts are tied, instead of the weights that they have taken the place of."""
    names = {each.name for group in groups for each in group.layers}
    mapping = {
        target: source
        for target, source in (getattr(model, "_tied_weights_keys", None) or {}).items()
        if target.rpartition(".")[0] not in names and source.rpartition(".")[0] not in names
    }
    for group in groups:
        source, *targets = group.layers
        for target in targets:
            for part, _ in model.get_submodule(f"{source.name}.stored").named_parameters():
                mapping[f"{target.name}.stored.{part}"] = f"{source.name}.stored.{part}"
    model._tied_weights_keys = mapping
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def _complete(model: nn.Module) -> None:
    """Raises ``BadFile`` where the checkpoint lacked a part of a weight: what memory held is there."""
    lacking = [
        (name.removesuffix(".stored"), weight.format.name)
        for name, weight in model.named_modules()
        if isinstance(weight, QuantWeight)
        and any(not (part.is_meta or getattr(part, "_is_hf_initialized", False)) for part in weight.parameters())
    ]
    if lacking:
        (name, format), several = lacking[0], len(lacking)
        raise BadFile(
            f"The checkpoint has no weight of {name} in {format}, which its quantization_config says",
            [f"so it is with {count(several, 'weight')}: config.json and the weights are of different models"],
            ["take both from the same copy of the model"],
            code="model-incomplete",
        )


def register(table: Any) -> None:
    """Adds the method to transformers' table of quantizers."""
    if METHOD not in table.AUTO_QUANTIZER_MAPPING:
        table.register_quantization_config(METHOD)(QuantizationConfig)
        table.AUTO_QUANTIZER_MAPPING[METHOD] = lambda config, **options: config.quantizer(**options)


register(sys.modules[TABLE])
