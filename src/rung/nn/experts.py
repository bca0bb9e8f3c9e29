"""The experts of a mixture, whose weights transformers keeps as two tensors with three dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rung.core.types import YES, Verdict, no
from rung.nn.quantized import matmul
from rung.nn.quantized.weight import QuantWeight

#: The tensors [experts, out, in] of such a module.
NAMES = ("gate_up_proj", "down_proj")


def recognized(module: nn.Module) -> bool:
    """Return whether a module looks like fused experts: it holds both tensors itself."""
    parameters = dict(module.named_parameters(recurse=False))
    return all(name in parameters and parameters[name].ndim == 3 for name in NAMES)


def computable(module: nn.Module) -> Verdict:
    """Return whether ``QuantExperts`` computes what that module does: [experts, out, in], gate beside up, nothing
    else."""
    kind = type(module).__name__
    if any(parameter.ndim != 3 for parameter in module.parameters(recurse=False)) or getattr(module, "has_bias", False):
        return no(f"the experts of {kind} have biases or tensors of their own")
    if getattr(module, "is_transposed", False):
        return no(f"{kind} keeps its experts as [experts, in, out]")
    if not getattr(module, "is_concatenated", True) or not getattr(module, "has_gate", True):
        return no(f"{kind} interleaves gate and up, or has no gate")
    if getattr(module, "has_post_expert_norm", False) or not hasattr(module, "act_fn"):
        return no(f"{kind} does more with an expert than gate, up, act_fn and down")
    return YES


class QuantExperts(nn.Module):
    """Experts y = down(act(gate x) * up x), each weight in a format; takes the place of transformers' fused experts.

    Biases (``gate_up_proj_bias``, ``down_proj_bias``), and a gate that lies between the rows of up, are the module's.

    ``experts`` is the module that they come from, without its two tensors: it keeps what else it has and applies the
    gate. ``gate_up_proj`` and ``down_proj`` hold a weight for each expert, so that only those that are met are packed.
    """

    def __init__(
        self,
        experts: nn.Module,
        gate_up_proj: list[QuantWeight],
        down_proj: list[QuantWeight],
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name in NAMES:
            if name in experts._parameters:
                del experts._parameters[name]
        self.experts = experts
        self.gate_up_proj, self.down_proj = nn.ModuleList(gate_up_proj), nn.ModuleList(down_proj)
        self.compute_dtype = compute_dtype

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[T, hidden], the experts of each token [T, k] and their weights [T, k] -> [T, hidden]."""
        x = hidden_states
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        x = x if self.compute_dtype is None else x.to(self.compute_dtype)
        if len(x) == 1 and not x.is_meta:
            return self._one(x, top_k_index[0].tolist(), top_k_weights[0]).to(hidden_states.dtype)
        result = torch.zeros_like(hidden_states)
        for expert in torch.unique(top_k_index).tolist():
            if expert >= len(self.down_proj):  # transformers' mark for a place that another device fills
                continue
            token, slot = torch.where(top_k_index == expert)
            y = self._down(self._gated(x[token], expert), expert) * top_k_weights[token, slot, None]
            result = result.index_add(0, token, y.to(result.dtype))
        return result

    def _one(self, x: Tensor, experts: list[int], weights: Tensor) -> Tensor:
        """The same of a single token, whose rows need no picking."""
        met = [(slot, expert) for slot, expert in enumerate(experts) if expert < len(self.down_proj)]
        each = [self._down(self._gated(x, expert), expert) * weights[slot] for slot, expert in met]
        return torch.stack(each).sum(dim=0) if each else torch.zeros_like(x)

    def _gated(self, x: Tensor, expert: int) -> Tensor:
        both = self._product(x, 0, expert)
        own: Any = getattr(self.experts, "_apply_gate", None)
        if own is not None:
            gated: Tensor = own(both)
            return gated
        gate, up = both.chunk(2, dim=-1)
        act: Any = self.experts.act_fn
        result: Tensor = act(gate) * up
        return result

    def _down(self, x: Tensor, expert: int) -> Tensor:
        return self._product(x, 1, expert)

    def _product(self, x: Tensor, which: int, expert: int) -> Tensor:
        y = matmul.linear(x, self._weight((self.gate_up_proj, self.down_proj)[which], expert), exact=self.training)
        bias = getattr(self.experts, f"{NAMES[which]}_bias", None)  # gpt-oss has them
        return y if bias is None else y + bias[expert].to(y.dtype)

    @staticmethod
    def _weight(weights: nn.ModuleList, expert: int) -> QuantWeight:
        weight = weights[expert]
        assert isinstance(weight, QuantWeight)
        return weight

    def dequantize(self) -> nn.Module:
        """The module that they came from, with the decoded tensors [experts, out, in]."""
        for name, weights in zip(NAMES, (self.gate_up_proj, self.down_proj), strict=True):
            whole = torch.stack([self._weight(weights, i).decode() for i in range(len(weights))])
            transposed = getattr(self.experts, "is_transposed", False)
            setattr(self.experts, name, nn.Parameter(whole.transpose(1, 2).contiguous() if transposed else whole))
        return self.experts.train(self.training)
