"""``rung.quantize``: the layers of a module are replaced by layers whose weights are held in a format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rung import formats
from rung.core.errors import CannotEncode, UsageError
from rung.core.text import count, did_you_mean, matches
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.choice import Choice
from rung.nn import experts
from rung.nn.experts import QuantExperts
from rung.nn.layers import QuantEmbedding, QuantLinear
from rung.nn.quantized.weight import QuantWeight, encode, written_instead

#: Subclasses of ``nn.Linear`` with a forward of their own that computes the same.
_SAME = ("FalconLinear",)
#: Names of output heads, for modules that do not say which layer it is.
_HEADS = ("lm_head", "embed_out")
_log = logging.getLogger("rung")


@dataclass(frozen=True)
class TargetLayer:
    """A layer that is to be held in a format: its name, and its weights [rows, columns] with theirs."""

    name: str
    module: nn.Module
    format: Format
    weights: tuple[tuple[str, Tensor], ...]


def quantize(
    module: nn.Module,
    format: str,
    skip: Iterable[str] = (),
    embeddings: str | None = None,
    compute_dtype: torch.dtype | None = None,
    keep: Mapping[str, str] | None = None,
    threshold: float = 0.0,
    samples: Iterable[Any] = (),
) -> nn.Module:
    """Replaces the linear layers and fused experts of a module by ones that hold their weights in ``format``.

    Embeddings and the output head stay as they are, unless ``embeddings`` names a format for them; a head tied to an
    embedding then shares its weight. ``skip`` are names, whole parts of names, or patterns with ``*`` and ``?``:
    ``lm_head``, ``layers.0``, ``*_proj``; the whole name of a layer means that one alone. ``keep`` gives the layers
    that such a pattern means a format of their own. Layers compute in the dtype of their input, or in
    ``compute_dtype``; ``threshold`` is LLM.int8()'s (see ``QuantLinear``). Subclasses of ``nn.Linear`` with a forward
    of their own are left as they are, with a warning. ``samples`` are what the module is called with: a tensor, a tuple
    of arguments, or a mapping of keyword arguments each. The weights of linear layers are then rounded so that their
    errors cancel on what these layers met (error feedback, arXiv:2210.17323).
    Returns the module, which is changed in place: wholly or, when something is raised, not at all. A single
    ``nn.Linear`` or ``nn.Embedding`` is not changed; its replacement is returned.

    Raises ``UnknownFormat``; ``UsageError`` for a pattern that matches nothing, for what is quantized already, weights
    on the meta device, rows that the format does not divide, layers of size zero, nothing to quantize, a negative
    threshold, a dtype that nothing computes in; ``CannotEncode`` for NaN and Inf, with the tensor's name.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"rung.quantize takes a torch.nn.Module, not {type(module).__name__}",
            (),
            ["rung quantize SRC DST --format F   # quantizes files"],
        )
    check_computing(compute_dtype, threshold)
    targets = target_layers(module, Choice.named(format, skip, embeddings, keep))
    for each in targets:
        check(each)
    round_for = rounding_for(module, targets, samples)
    weights: dict[int, QuantWeight] = {}  # by the tensor that is replaced: tied layers share one weight
    for each in targets:
        for name, weight in each.weights:
            if id(weight) not in weights:
                encoded = round_for(each, weight, name)
                weights[id(weight)] = QuantWeight.of(encoded, weight.dtype, weight.device)
    replacements: dict[int, nn.Module] = {}
    for each in targets:
        if id(each.module) not in replacements:
            mine = [weights[id(weight)] for _, weight in each.weights]
            replacements[id(each.module)] = replacement(each.module, mine, compute_dtype, threshold)
        if not each.name:
            return replacements[id(each.module)]
        put(module, each.name, replacements[id(each.module)])
    tell_left(module)
    return module


def rounding_for(
    module: nn.Module, targets: Iterable[TargetLayer], samples: Iterable[Any]
) -> Callable[[TargetLayer, Tensor, str], Encoded]:
    """Return a function that encodes the weight [rows, columns] of a layer, rounded for what it meets of ``samples``.

    What no sample reaches, embeddings, experts, and formats without levels to choose from are encoded plainly.
    """
    listed = list(samples)
    if not listed:
        return lambda target, weight, name: encode(weight, target.format, name)
    from rung.formats import grids
    from rung.nn import rounding  # which loads compiled kernels

    met = second_moments(module, targets, listed)

    def rounded(target: TargetLayer, weight: Tensor, name: str) -> Encoded:
        moments = met.get(id(target.module))
        if moments is None or not grids.has_grid(target.format, weight.shape[1]):
            return encode(weight, target.format, name)
        values = weight.detach().to("cpu", torch.float32).contiguous().numpy()
        metric, threads = rounding.Metric(moments.cpu().numpy()), torch.get_num_threads()
        return rounding.round_weight(values, target.format, metric, threads, name)

    return rounded


def second_moments(module: nn.Module, targets: Iterable[TargetLayer], samples: Iterable[Any]) -> dict[int, Tensor]:
    """Return the mean of x x^T [in, in] f32 of the inputs x of linear layers, by the id of the layer.

    The module computes as in evaluation: without dropout, and averages of its norms stay as they are. Raises
    ``CannotEncode`` for inputs with NaN or Inf.
    """
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def add(layer: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        values = inputs[0] if inputs else next(iter(named.values()))
        x = values.detach().reshape(-1, values.shape[-1]).float()
        if not len(x):
            return
        moments = x.T @ x
        sums[id(layer)] = sums[id(layer)].add_(moments) if id(layer) in sums else moments
        counts[id(layer)] = counts.get(id(layer), 0) + len(x)

    linears = {id(each.module): each for each in targets if kind_of(each.module) == "linear"}
    hooks = [each.module.register_forward_pre_hook(add, with_kwargs=True) for each in linears.values()]
    try:
        _call_in_evaluation(module, samples)
    finally:
        for hook in hooks:
            hook.remove()
    for key, moments in sums.items():
        if not bool(torch.isfinite(moments).all()):
            raise CannotEncode(
                f"What {linears[key].name or 'the layer'} meets of the samples holds NaN or Inf",
                [f"{counts[key]} inputs"],
                ["leave out samples"],
            )
    return {key: moments / counts[key] for key, moments in sums.items()}


def _call_in_evaluation(module: nn.Module, samples: Iterable[Any]) -> None:
    """Call a module with samples as in evaluation, and leave its modes as they are."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            for sample in samples:
                if isinstance(sample, Mapping):
                    module(**sample)
                else:
                    module(*(sample if isinstance(sample, tuple) else (sample,)))
    finally:
        for each, training in modes:
            each.training = training


def target_layers(module: nn.Module, choice: Choice) -> list[TargetLayer]:
    """The layers to quantize, in order.

    Raises ``UsageError`` for a pattern that matches no layer, for a layer that is quantized already, and where there
    is none to quantize.
    """
    named = [(name, layer) for name, layer in module.named_modules(remove_duplicate=False) if kind_of(layer)]
    heads, names = _heads(module, named), {name for name, _ in named}
    found: list[TargetLayer] = []
    for name, layer in named:
        kind = kind_of(layer)
        chosen = choice.of((name,), bool(name) and (kind == "embedding" or name in heads), names)
        if chosen is not None and kind == "quantized":
            raise _already(name or type(layer).__name__, layer)
        if chosen is not None:
            found.append(TargetLayer(name, layer, chosen, _weights(name, layer, kind)))
    known = [name for name, _ in named]
    for argument, pattern in [*(("skip", each) for each in choice.skip), *(("keep", each) for each in choice.keep)]:
        if not any(matches(name, pattern) for name in known):
            raise UsageError(
                f"{argument}: {pattern!r} matches no layer.{did_you_mean(pattern, known)}",
                [f"{count(len(known), 'layer')}, {', '.join(known[:3])} among them"] if known else [],
                ["write a name, whole parts of one, or a pattern with * and ?"],
                code="name-unknown",
            )
    if not found:
        raise _nothing(type(module).__name__, known, choice.skip)
    return found


def tell_left(module: nn.Module) -> None:
    """Warns of subclasses of ``nn.Linear`` that were left as they are, because nobody knows what their forward does."""
    left: dict[str, list[str]] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and not kind_of(layer):
            left.setdefault(type(layer).__name__, []).append(name)
    for kind, names in left.items():
        _log.warning("left as they are, for %s computes in its own way: %s", kind, ", ".join(names[:3]))


def kind_of(layer: nn.Module) -> str:
    """``linear``, ``embedding``, ``experts``, ``quantized``, or nothing."""
    if isinstance(layer, QuantLinear | QuantEmbedding | QuantExperts):
        return "quantized"
    if isinstance(layer, nn.Linear):
        plain = type(layer).forward is nn.Linear.forward or type(layer).__name__ in _SAME
        weight = layer._parameters.get("weight")  # none where it is computed of others (weight_norm)
        return "linear" if plain and weight is not None and not is_lazy(weight) else ""
    if turned(layer):
        return "linear"
    if type(layer) is nn.Embedding or (isinstance(layer, nn.Embedding) and hasattr(layer, "embed_scale")):
        return "embedding"
    return "experts" if experts.recognized(layer) else ""


def turned(layer: nn.Module) -> bool:
    """Return whether a layer is transformers' ``Conv1D`` (GPT-2), a linear one that keeps its weight as [in, out]."""
    return f"{type(layer).__module__}.{type(layer).__name__}" == "transformers.pytorch_utils.Conv1D"


def _already(name: str, layer: nn.Module) -> UsageError:
    format_names = sorted({weight.format.name for weight in layer.modules() if isinstance(weight, QuantWeight)})
    return UsageError(
        f"{name} is quantized already, to {', '.join(format_names)}",
        ["quantizing twice would lose twice"],
        ["begin with the model that it was made from, or leave it out with skip"],
        code="already-quantized",
    )


def _nothing(name: str, known: list[str], skip: tuple[str, ...]) -> UsageError:
    if skip:
        reason, way = "skip leaves none", "leave out a pattern of skip"
    elif known:
        reason, way = "its embeddings and its head stay as they are", 'embeddings="int8" quantizes them too'
    else:
        reason, way = "neither linear layers nor fused experts", "quantize the module that has them"
    facts = [f"left out: {', '.join(known[:3])}{' ...' if len(known) > 3 else ''}"] if known else []
    return UsageError(f"{name} has no layer to quantize: {reason}", facts, [way])


def _heads(module: nn.Module, named: list[tuple[str, nn.Module]]) -> set[str]:
    """Names of output heads: what the module says, layers that share an embedding's weight, and usual names."""
    ask: Callable[[], nn.Module | None] = getattr(module, "get_output_embeddings", lambda: None)
    head = ask()
    tied = {id(layer.weight) for _, layer in named if kind_of(layer) == "embedding"}
    return {
        name
        for name, layer in named
        if kind_of(layer) == "linear"
        and (layer is head or id(layer.weight) in tied or name.rpartition(".")[2] in _HEADS)
    }


def _weights(name: str, layer: nn.Module, kind: str) -> tuple[tuple[str, Tensor], ...]:
    """The weights of a layer with their names: one, or two for each expert."""
    if kind != "experts":
        weight = layer.weight
        assert isinstance(weight, Tensor)
        return ((f"{name}.weight".lstrip("."), weight.T if turned(layer) else weight),)
    return tuple(
        (f"{name}.{part}[{number}]".lstrip("."), weight)
        for part in experts.NAMES
        for number, weight in enumerate(getattr(layer, part))
    )


def check_computing(dtype: torch.dtype | None, threshold: float) -> None:
    """Raises ``UsageError`` for a dtype that layers do not compute in, and a threshold that is no magnitude."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1):
        raise UsageError(
            f"compute_dtype is {dtype!r}; it is torch.float32, torch.bfloat16 or torch.float16",
            ["layers multiply decoded weights; how those are stored is the format"],
            ["leave it out: layers compute in the dtype of their input"],
        )
    if not (isinstance(threshold, (int, float)) and threshold >= 0.0):
        raise UsageError(
            f"threshold is {threshold!r}; it is a number that is not negative",
            ["it is the magnitude above which columns of the input are left in 16 bits (LLM.int8())"],
            ["threshold=6.0", "leave it out: there is none"],
            code="value-out-of-range",
        )


def check(target: TargetLayer) -> None:
    """Raises what ``quantize`` says for a layer that cannot be quantized."""
    for name, weight in target.weights:
        if weight.is_meta:
            raise UsageError(
                f"{name} is on the meta device: it has a shape and no values",
                [f"its shape is {list(weight.shape)}"],
                ["load the weights first", "of a model of transformers: from_pretrained(quantization_config=...)"],
            )
    check_shapes(target)
    for name, weight in target.weights:
        check_values(name, weight)


def check_shapes(target: TargetLayer) -> None:
    """Raises ``UsageError`` where a layer can be seen not to fit without looking at its values."""
    format = target.format
    leave_out = f"leave it out:  skip=[{target.name!r}]" if target.name else "leave this layer as it is"
    if not format.encodes:
        better = written_instead(format, target.weights[0][1].shape[1])
        ways = [f"quantize to {better}, which it writes", "rung formats   # says which are written"]
        raise UsageError(
            f"rung reads {format.name} and does not write it",
            [f"asked for {target.name or 'it'}"],
            ways,
            code="format-not-writable",
        )
    if kind_of(target.module) == "experts" and not (able := experts.computable(target.module)):
        raise UsageError(f"{target.name} cannot be quantized: {able.reason}", (), [leave_out])
    if getattr(target.module, "max_norm", None) is not None:
        raise UsageError(f"{target.name} scales its rows while it reads them (max_norm)", (), [leave_out])
    for name, weight in target.weights:
        if weight.numel() == 0:
            raise UsageError(f"{name} has no weights: its shape is {list(weight.shape)}", (), [leave_out])
        if not format.divides(weight.shape[1]):
            other = formats.next_better(format, weight.shape[1]).name
            raise UsageError(
                f"{format.name} cannot store {name}: its blocks of {format.block} do not divide rows of"
                f" {weight.shape[1]}",
                (),
                [leave_out, f"quantize to {other}, the next better format that divides it"],
                code="format-does-not-suit",
            )


def check_values(name: str, weight: Tensor) -> None:
    """Raises ``CannotEncode`` for a weight with NaN or Inf."""
    # The two ends tell: copies beside the weight would leave holes in the heap, which count as memory.
    if weight.numel() and not all(bool(end.isfinite()) for end in weight.detach().aminmax()):
        row, column = torch.nonzero(~torch.isfinite(weight.detach()))[0].tolist()
        raise CannotEncode(
            f"Row {row} of {name} holds {'NaN' if bool(weight[row, column].isnan()) else 'Inf'}",
            [f"first met at column {column}"],
            ["load the weights again: they are damaged, or were saved after a training run had diverged"],
        )


def replacement(
    layer: nn.Module, weights: list[QuantWeight], compute_dtype: torch.dtype | None, threshold: float = 0.0
) -> nn.Module:
    """The layer that takes the place of ``layer``, with those weights and everything else as it is there."""
    replaced: nn.Module
    if kind_of(layer) == "linear":
        bias: Any = layer.bias
        replaced = QuantLinear(weights[0], bias, compute_dtype, threshold)
        replaced.turned = type(layer) if turned(layer) else None
    elif isinstance(layer, nn.Embedding):
        replaced = QuantEmbedding(weights[0], layer.padding_idx, compute_dtype, _scale_of(layer))
    else:
        middle = len(weights) // 2
        replaced = QuantExperts(layer, weights[:middle], weights[middle:], compute_dtype)
    return replaced.train(layer.training)


def _scale_of(layer: nn.Embedding) -> float | None:
    """Return the factor of Gemma's embeddings, or None; ``scalar_embed_scale`` has its value on the meta device too."""
    scale = getattr(layer, "scalar_embed_scale", getattr(layer, "embed_scale", None))
    return None if scale is None else float(scale)


def put(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Makes ``layer`` the submodule of that name."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)
