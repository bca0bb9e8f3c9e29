"""diffusers: ``from_pretrained(..., quantization_config=rung.QuantizationConfig(format="nf4"))``, in pipelines too.

diffusers has no function to register a quantizer: its two tables are added to. Layers compute what plain ones with the
decoded weights would: denoisers see many rows, and what activations lose adds up over the steps.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

from diffusers.quantizers.base import DiffusersQuantizer
from torch import Tensor, nn

from rung.core.errors import UsageError
from rung.hub.error_budget import Rounding
from rung.hub.output_error import choose_by_output
from rung.hub.quantizer import AUTO, METHOD, QuantizationConfig
from rung.hub.register import DIFFUSERS_TABLE
from rung.nn import QuantLinear, QuantWeight
from rung.nn.quantize import TargetLayer, check_shapes, check_values, put, replacement, target_layers
from rung.nn.quantized.weight import encode


class Quantizer(DiffusersQuantizer):
    """Hold what diffusers asks while it loads and saves."""

    quantization_config: Any
    #: What a model's authors want in f32 stays so.
    use_keep_in_fp32_modules = True
    _files: Sequence[str] = ()
    _rounding: Rounding = staticmethod(encode)

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Return the keys as they are, and keep the files, which a budget reads."""
        self._files = checkpoint_files
        return loaded_keys

    def _process_model_before_weight_loading(
        self, model: Any, keep_in_fp32_modules: list[str] | None = None, **kwargs: Any
    ) -> None:
        config = self.quantization_config
        if config.format == AUTO:
            raise UsageError(
                f"format={AUTO!r} plans models of transformers; {type(model).__name__} is one part of a pipeline",
                ["what the other parts leave it on the device is not known while it is loaded"],
                ["format='int8'", "rung check MODEL   # says which format fits the whole pipeline"],
            )
        kept = [] if keep_in_fp32_modules is None else keep_in_fp32_modules
        if config.within_budget and not self.pre_quantized:  # a copy: the next model with that config chooses anew
            self.quantization_config = config = copy.deepcopy(config)
            self._rounding = choose_by_output(model, config, self._files, kept)
            model.register_to_config(quantization_config=config)
        targets = [each for each in target_layers(model, config.choice()) if not set(kept) & set(each.name.split("."))]
        if not targets:
            raise UsageError(
                f"{type(model).__name__} has no layer to quantize",
                [f"its authors want all of {', '.join(kept)} in f32"],
                ["load this part without a quantization_config"],
            )
        for each in targets:
            # what rung does not write it may have loaded, or round for drawn inputs
            if each.format.encodes or (not self.pre_quantized and self._rounding is encode):
                check_shapes(each)
        self._targets = {f"{each.name}.weight": each for each in targets}
        if self.pre_quantized:
            for each in targets:
                ((_, weight),) = each.weights
                self._put(model, each, QuantWeight.empty(each.format, (weight.shape[0], weight.shape[1]), weight.dtype))
            self._parts = {
                f"{each.name}.stored.{part}"
                for each in targets
                for part, _ in model.get_submodule(f"{each.name}.stored").named_parameters()
            }

    def _put(self, model: Any, each: TargetLayer, weight: QuantWeight) -> None:
        layer: Any = replacement(
            each.module, [weight], self.quantization_config.dtype(), self.quantization_config.threshold
        )
        if isinstance(layer, QuantLinear):
            layer.exact = True
        put(model, each.name, layer)

    def check_if_quantized_param(
        self, model: Any, param_value: Tensor, param_name: str, state_dict: dict[str, Any], **kwargs: Any
    ) -> bool:
        """Return whether a tensor of the checkpoint is to be encoded, or a part of an encoded weight."""
        return param_name in (self._parts if self.pre_quantized else self._targets)

    def create_quantized_param(self, *args: Any, **kwargs: Any) -> Any:
        """Encodes a weight and puts its layer into the model, or takes a part of one as it was stored.

        ``param_value`` has been cast to the dtype of the model, which scales must not be: ``state_dict`` has it uncast.
        """
        model, param_value, param_name, target_device, state_dict, *_ = args
        stored = state_dict[param_name]
        if self.pre_quantized:
            owner, _, part = param_name.rpartition(".")
            weight = model.get_submodule(owner)
            setattr(weight, part, nn.Parameter(stored.to(target_device), requires_grad=False))
            weight.dtype = kwargs.get("dtype") or weight.dtype
            return
        each = self._targets[param_name]
        check_values(param_name, stored)
        quantized = QuantWeight.of(self._rounding(stored, each.format, param_name), param_value.dtype, target_device)
        self._put(model, each, quantized)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        self._rounding = encode  # what a budget knew of inputs takes room on the disk
        return model

    @property
    def is_serializable(self) -> bool:
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

    def _dequantize(self, model: Any) -> Any:
        for name, layer in list(model.named_modules()):
            if isinstance(layer, QuantLinear):
                put(model, name, layer.dequantize())
        return model


def register(table: Any) -> None:
    """Adds the method to diffusers' tables of quantizers."""
    table.AUTO_QUANTIZER_MAPPING.setdefault(METHOD, Quantizer)
    table.AUTO_QUANTIZATION_CONFIG_MAPPING.setdefault(METHOD, QuantizationConfig)


register(sys.modules[DIFFUSERS_TABLE])
