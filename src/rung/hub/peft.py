"""PEFT: LoRA on quantized layers, with merges that say what they cost and unmerging that is exact.

PEFT wraps rung's layers as they are (``QuantLinear`` is a ``torch.nn.Linear``): adapters train, merge and load without
anything from here. ``prepare`` adds what PEFT's own layer cannot: the way back from a merge, bit for bit, and steps
that take less memory traffic.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from rung.core.errors import UsageError
from rung.core.text import count, did_you_mean
from rung.nn import QuantEmbedding, QuantExperts, QuantLinear, QuantWeight
from rung.nn.layers import turned_back
from rung.nn.quantize import put

_log = logging.getLogger("rung")


class LoraQuantLinear(LoraLinear):
    """PEFT's LoRA layer that remembers the parts of the weight while an adapter is merged into it."""

    _kept: dict[str, Tensor] | None = None

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As PEFT's, but plain adapters are scaled where they are ``rank`` wide and not ``out``, and what they add
        has the dtype of the layer: with 256 tokens that is a twentieth of a step in bfloat16.
        """
        active = [name for name in self.active_adapters if name in self.lora_A]
        plain = not any(name in self.lora_variant or self.lora_bias.get(name) for name in active)
        if self.disable_adapters or self.merged or kwargs or not plain:
            return super().forward(x, *args, **kwargs)
        y: Tensor = self.base_layer(x, *args)
        added = None
        for name in active:
            down: Any = self.lora_A[name]
            inputs = self.lora_dropout[name](self._cast_input_dtype(x, down.weight.dtype))
            more = self.lora_B[name](down(inputs) * self.scaling[name])
            added = more if added is None else added + more
        return y if added is None else y + added.to(y.dtype)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Decodes, adds, encodes again; see PEFT for the arguments."""
        stored = self._stored()
        kept = self._kept or {name: part.clone() for name, part in stored.parts().items()}
        super().merge(safe_merge, adapter_names)
        self._kept = kept if self.merged else None

    def unmerge(self) -> None:
        """Takes the adapters out again: the weight is what it was before, to the bit."""
        kept, self._kept = self._kept, None
        super().unmerge()
        if kept is not None:
            self._stored().replace(kept)

    def _stored(self) -> QuantWeight:
        base = self.get_base_layer()
        assert isinstance(base, QuantLinear)
        return base.stored


def prepare(config: LoraConfig) -> LoraConfig:
    """The same config, with which PEFT wraps rung's linear layers in ``LoraQuantLinear``."""
    config._register_custom_module({QuantLinear: LoraQuantLinear})
    return config


def merge(model: PeftModel, dequantize: bool = False, adapter_names: list[str] | None = None) -> nn.Module:
    """Merges adapters (by default the active ones) and returns the model without PEFT.

    Layers stay in their formats, and what encoding them again has cost is logged (``cost`` has it by layer); with
    ``dequantize`` all quantized layers become plain ones, merged in f32, in the dtype of the model. Raises
    ``UsageError`` for a model without adapters and for formats that rung only reads.
    """
    if not isinstance(model, PeftModel):
        raise UsageError(f"{type(model).__name__} has no adapters: it is no PeftModel")
    for name in adapter_names or ():
        if name not in model.peft_config:
            known = list(model.peft_config)
            raise UsageError(
                f"The model has no adapter {name!r}.{did_you_mean(name, known)}",
                [f"it has {', '.join(known)}"],
                code="name-unknown",
            )
    if dequantize:
        return _into_plain(model, adapter_names)
    merged: nn.Module = model.merge_and_unload(safe_merge=True, adapter_names=adapter_names)
    costs = cost(merged)
    if costs:
        worst = min(costs, key=costs.__getitem__)
        _log.warning(
            "merged into %s, which were encoded again: %.1f dB on average, %.1f dB in %s",
            *(count(len(costs), "layer"), sum(costs.values()) / len(costs), costs[worst], worst),
        )
    return merged


def cost(model: nn.Module) -> dict[str, float]:
    """By name of a layer, the SQNR in dB of the values that were last put into it, where any were."""
    return {
        name.removesuffix(".stored"): weight.assigned_db
        for name, weight in model.named_modules()
        if isinstance(weight, QuantWeight) and weight.assigned_db is not None
    }


def _into_plain(model: PeftModel, adapter_names: list[str] | None) -> nn.Module:
    dtypes: dict[int, torch.dtype] = {}
    kinds: dict[int, type[nn.Module] | None] = {}
    for layer in model.modules():
        base = getattr(layer, "base_layer", None)
        if isinstance(layer, BaseTunerLayer) and isinstance(base, QuantLinear | QuantEmbedding):
            holder: Any = layer
            plain = base.linear() if isinstance(base, QuantLinear) else base.dequantize()
            holder.base_layer = plain.float()
            dtypes[id(plain)] = base.stored.dtype
            kinds[id(plain)] = getattr(base, "turned", None)
    merged: Any = model.merge_and_unload(safe_merge=True, adapter_names=adapter_names)
    for name, layer in list(merged.named_modules()):
        if id(layer) in dtypes:
            layer.to(dtypes[id(layer)])
            if (kind := kinds[id(layer)]) is not None:
                put(merged, name, turned_back(layer, kind))
        elif isinstance(layer, QuantLinear | QuantEmbedding | QuantExperts):
            put(merged, name, layer.dequantize())
    quantizer = getattr(merged, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(merged)
    result: nn.Module = merged
    return result
