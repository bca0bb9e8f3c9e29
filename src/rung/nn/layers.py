"""Layers whose weights are held in a format: what torch's layers compute with the decoded weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rung.core.errors import UsageError
from rung.nn.quantized import matmul
from rung.nn.quantized.weight import Decoded, QuantWeight


class QuantLinear(nn.Linear):
    """``y = x W^T + b`` with W [out, in] in a format; takes the place of ``torch.nn.Linear``.

    ``weight`` shows decoded values (see ``Decoded``); the parts are the parameters of ``stored``. Computes in the
    dtype of x, or in ``compute_dtype``. In training, and wherever a gradient to x is asked for, it computes what a
    plain layer with the decoded weight does; otherwise the rung of the ladder may quantize activations. ``threshold``
    above 0: columns of x with a larger magnitude than that are left out of this (LLM.int8(), arXiv:2208.07339).
    ``exact``: never quantizes activations, nor keeps a packing of the weight; for layers that see many rows.
    """

    exact = False
    #: The class whose place it takes where that keeps its weight as [in, out] (transformers' ``Conv1D``).
    turned: type[nn.Module] | None = None

    def __init__(
        self,
        stored: QuantWeight,
        bias: Tensor | None = None,
        compute_dtype: torch.dtype | None = None,
        threshold: float = 0.0,
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = stored.shape
        self.stored = stored
        self.compute_dtype, self.threshold = compute_dtype, threshold
        self.register_parameter("bias", _bias(bias))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The decoded weight [out, in]; only its use decodes it."""
        return Decoded(self.stored)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ``UsageError`` for another ``weight``: values can be put into this one, and it has no second place."""
        if name == "weight":
            _check_own(self, value)  # it may be handed back, as PEFT does
        else:
            super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        inputs = x if self.compute_dtype is None or not x.is_floating_point() else x.to(self.compute_dtype)
        outliers = self.threshold > 0 and not self.training and not x.is_meta
        y = _with_outliers(inputs, self) if outliers else self._product(inputs)
        bias = self.bias  # looked up once: a parameter costs half a microsecond
        if bias is not None:
            y = y + bias.to(y.dtype)
        return y if y.dtype == x.dtype else y.to(x.dtype)

    def _product(self, x: Tensor) -> Tensor:
        return matmul.linear(x, self.stored, exact=self.training or self.exact)

    def dequantize(self) -> nn.Module:
        """The plain layer whose place it takes, with the decoded weight and the same bias."""
        return self.linear() if self.turned is None else turned_back(self.linear(), self.turned)

    def linear(self) -> nn.Linear:
        """The same as an ``nn.Linear``, whatever it takes the place of."""
        bias = self.bias is not None
        plain = nn.Linear(self.in_features, self.out_features, bias, device="meta", dtype=self.stored.dtype)
        plain.weight = nn.Parameter(self.stored.decode())
        if bias:
            plain.bias = self.bias
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """Shown between the brackets."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _check_own(layer: QuantLinear | QuantEmbedding, weight: Any) -> None:
    if isinstance(weight, Decoded) and weight._weight is layer.stored:
        return
    raise UsageError(
        f"The weight of a {type(layer).__name__} cannot be another tensor: it is stored in {layer.stored.format.name}",
        ["so it cannot be tied to a plain one either"],
        ["layer.weight.data = values   # encodes them", "layer.dequantize()   # is a plain layer"],
    )


def turned_back(layer: nn.Linear, kind: type[nn.Module]) -> nn.Module:
    """A layer as one of that kind, which keeps its weight as [in, out]."""
    with torch.device("meta"):
        linear = kind(layer.out_features, layer.in_features)
    linear.weight, linear.bias = nn.Parameter(layer.weight.detach().T.contiguous()), layer.bias
    return linear.train(layer.training)


def _with_outliers(x: Tensor, layer: QuantLinear) -> Tensor:
    """Columns of x that hold a magnitude above the threshold are multiplied as they are, the others as always."""
    columns = (x.abs() > layer.threshold).reshape(-1, x.shape[-1]).any(dim=0).nonzero()[:, 0]
    if not len(columns):
        return layer._product(x)
    apart = nn.functional.linear(x[..., columns], layer.stored.columns(columns, x.dtype))
    return layer._product(x.index_fill(-1, columns, 0)) + apart


def _bias(bias: Tensor | None) -> nn.Parameter | None:
    if bias is None or isinstance(bias, nn.Parameter):
        return bias
    return nn.Parameter(bias)


class QuantEmbedding(nn.Embedding):
    """Rows of a weight [vocabulary, hidden] in a format; takes the place of ``torch.nn.Embedding``.

    A tied head shares ``stored``. The result has the dtype of the weight, or ``compute_dtype``; ``embed_scale`` is
    what rows are multiplied with (Gemma's embeddings).
    """

    def __init__(
        self,
        stored: QuantWeight,
        padding_idx: int | None = None,
        compute_dtype: torch.dtype | None = None,
        embed_scale: float | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = stored.shape
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, None, 2.0
        self.scale_grad_by_freq = self.sparse = False
        self.stored, self.compute_dtype, self.embed_scale = stored, compute_dtype, embed_scale

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The decoded weight [vocabulary, hidden]; only its use decodes it."""
        return Decoded(self.stored)

    def __setattr__(self, name: str, value: Any) -> None:
        """See ``QuantLinear``."""
        if name == "weight":
            _check_own(self, value)  # it may be handed back, as PEFT does
        else:
            super().__setattr__(name, value)

    def forward(self, ids: Tensor) -> Tensor:
        """int [...] -> [..., hidden]. Raises ``UsageError`` for an id outside of the vocabulary."""
        if not matmul.recorded(ids) and not matmul.transformed() and ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.num_embeddings:
                raise UsageError(
                    f"Id {low if low < 0 else high} is outside of the vocabulary of {self.num_embeddings}",
                    ["tokenizer and model do not belong together, or padding has an id of its own"],
                    code="value-out-of-range",
                )
        rows = matmul.look_up(ids.long(), self.stored).to(self.compute_dtype or self.stored.dtype)
        return rows if self.embed_scale is None else _scaled(rows, self.embed_scale)

    def dequantize(self) -> nn.Embedding:
        """A plain embedding with the decoded weight, which multiplies by ``embed_scale`` where there is one."""
        shape = (self.num_embeddings, self.embedding_dim, self.padding_idx)
        if self.embed_scale is None:
            plain = nn.Embedding(*shape, device="meta", dtype=self.stored.dtype)
        else:
            plain = ScaledEmbedding(*shape, embed_scale=self.embed_scale, device="meta", dtype=self.stored.dtype)
        plain.weight = nn.Parameter(self.stored.decode())
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """Shown between the brackets."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


class ScaledEmbedding(nn.Embedding):
    """An embedding whose rows are multiplied by ``embed_scale``."""

    def __init__(self, *shape: Any, embed_scale: float, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.embed_scale = embed_scale

    def forward(self, input: Tensor) -> Tensor:
        """int [...] -> [..., hidden]"""
        return _scaled(super().forward(input), self.embed_scale)


def _scaled(rows: Tensor, scale: float) -> Tensor:
    """Times the scale, which is rounded to the dtype of the rows first, as Gemma's models do."""
    return rows * torch.tensor(scale, dtype=rows.dtype, device=rows.device)
