"""Where the changes of an adapter go in a model, whichever kind of file either came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.formats.codec import Floats
from rung.models import architectures
from rung.models.adapters.adapter import WITH_PEFT, Adapter, LowRank, other_base, read_adapter
from rung.models.card import Decoder, ModelCard
from rung.models.cards.folder import NetworkCard
from rung.models.cards.folder import role_of as folder_role
from rung.models.cards.gguf import role_of as gguf_role
from rung.models.roles import layer_of, shape_of
from rung.models.settings import Settings


def read_changes(names: Sequence[str], card: ModelCard) -> dict[str, tuple[LowRank, ...]]:
    """The changes of several adapters by role; ``DIR:0.5`` is the adapter DIR with half its weight.

    Raises what ``read_adapter`` and ``changes_by_role`` raise, and ``UsageError`` for two of which one is a DoRA that
    changes the same weight.
    """
    found: dict[str, tuple[LowRank, ...]] = {}
    for name in names:
        for role, change in changes_by_role(read_adapter(*path_and_weight(name)), card).items():
            found[role] = (*found.get(role, ()), change)
    _alone(found, names, card.path)
    return found


def read_network_changes(names: Sequence[str], card: NetworkCard) -> dict[str, tuple[LowRank, ...]]:
    """The same for a network that transformers builds, by the name of the layer: those of its files are PEFT's.

    Raises ``UsageError`` also for GGUF adapters, which know other names.
    """
    found: dict[str, tuple[LowRank, ...]] = {}
    shapes = {tensor.name: tensor.shape for tensor in card.component.tensors if len(tensor.shape) == 2}
    for name in names:
        adapter = read_adapter(*path_and_weight(name))
        if adapter.architecture:
            raise UsageError(
                f"{adapter.name} is a GGUF adapter, and {card.name} runs in transformers: layers have other names.",
                [card.why],
                ["take the adapter as PEFT saved it, a folder"],
            )
        if adapter.trained:
            raise _whole(adapter, card, min(adapter.trained))
        wrong = []
        for layer, change in adapter.changes.items():
            shape = shapes.get(f"{layer}.weight")
            if shape is None:
                wrong.append(f"{layer}: {card.name} has no such layer")
            elif change.shape not in (shape, shape[::-1]):  # GPT-2 keeps its weights as [in, out]
                theirs, own = (" x ".join(map(str, each)) for each in (change.shape, shape))
                wrong.append(f"{layer}: it changes {theirs} weights, {card.name} has {own} there")
            else:
                found[layer] = (*found.get(layer, ()), change)
        if wrong:
            raise other_base(adapter, card.name, wrong)
    _alone(found, names, card.path)
    return found


def _alone(found: Mapping[str, Sequence[LowRank]], names: Sequence[str], path: str) -> None:
    """Raises ``UsageError`` where a DoRA changes the same weight as another adapter."""
    for module, several in found.items():
        if len(several) > 1 and any(change.magnitude is not None for change in several):
            raise UsageError(
                f"{module} is changed by a DoRA and by another adapter, whose sum depends on their order.",
                ["a DoRA brings the rows of what it finds to a length of its own"],
                [
                    f"rung merge {quoted(path)} {quoted(path_and_weight(names[0])[0])} OUT",
                    f"rung run OUT --adapter {quoted(names[-1])}",
                ],
                code="adapter-unsupported",
            )


def read_merged(names: Sequence[str], card: ModelCard) -> tuple[dict[str, tuple[LowRank, ...]], dict[str, Floats]]:
    """For merging: the changes by role in the order of the adapters, and by role the weights that were trained whole.

    Raises as ``read_changes`` does, but for a DoRA beside others and for whole weights of a folder's tensors.
    """
    found: dict[str, tuple[LowRank, ...]] = {}
    whole: dict[str, Floats] = {}
    for name in names:
        adapter = read_adapter(*path_and_weight(name))
        whole |= _whole_by_role(adapter, card)
        for role, change in changes_by_role(replace(adapter, trained={}), card).items():
            found[role] = (*found.get(role, ()), change)
    return found, whole


def _whole_by_role(adapter: Adapter, card: ModelCard) -> dict[str, Floats]:
    """The weights that were trained whole. Raises ``UsageError`` where the model has no such tensor of its own."""
    shapes = {tensor.name: tensor for tensor in card.tensors}
    found = {}
    for name, values in adapter.trained.items():
        tensor = shapes.get(name)
        if tensor is None or tensor.shape != values.shape:
            raise UsageError(
                f"{adapter.name} has trained {name} whole, and {card.name} has no such tensor of its own.",
                ["a GGUF file has other tensors, and where the head is the embedding it has none"],
                ["merge it into the folder that it was trained on:  rung merge FOLDER ADAPTER OUT", WITH_PEFT],
                code="made-for-another-model",
            )
        found[tensor.role] = values
    return found


def path_and_weight(name: str) -> tuple[str, float]:
    """``DIR:0.5`` as a path and a weight; without a number after the last colon the weight is 1."""
    path, colon, text = name.rpartition(":")
    if not colon or Path(name).expanduser().exists():
        return name, 1.0
    try:
        weight = float(text)
    except ValueError:
        return name, 1.0
    if not math.isfinite(weight):
        raise UsageError(
            f"The weight of an adapter is {text}", (), [f"--adapter {path}:0.5"], code="adapter-unsupported"
        )
    return path, weight


def changes_by_role(adapter: Adapter, card: ModelCard) -> dict[str, LowRank]:
    """The changes of an adapter by the role of the weight (``layers.0.q``), in the order of rows of that model.

    Raises ``UsageError`` for an adapter of another model, and for one that does more than change linear layers.
    """
    decoder = card.decoder
    wrong = _resized(adapter, card)
    here, roles = {tensor.role for tensor in card.tensors}, {}
    for module, change in adapter.changes.items():
        role = _role(adapter, module, decoder)
        if role == "embed":
            raise _whole(adapter, card, module)
        is_known = role in here or (role == "head" and decoder.tied_head)
        if not is_known:
            wrong.append(f"{module}: {card.name} {_absence(role, decoder)}")
        elif change.shape != shape_of(role, decoder):
            shapes = [" x ".join(map(str, shape)) for shape in (change.shape, shape_of(role, decoder))]
            wrong.append(f"{module}: it changes {shapes[0]} weights, {card.name} has {shapes[1]} there")
        else:
            roles[role] = _in_order(role, change, adapter.architecture == "llama", decoder)
    if wrong:
        raise other_base(adapter, card.name, wrong)
    return roles


def _role(adapter: Adapter, module: str, decoder: Decoder) -> str:
    if not adapter.architecture:
        names = architectures.MODEL_TYPES[decoder.model_type].names(Settings({}, adapter.name))
        return folder_role(f"{module}.weight", names)
    model = architectures.GGUF.get(adapter.architecture)
    return gguf_role(f"{module}.weight", model) if model is not None else ""


def _absence(role: str, decoder: Decoder) -> str:
    layer = layer_of(role)
    if layer is not None and layer >= len(decoder.layers):
        return f"has {len(decoder.layers)} layers"
    return "holds q, k and v as one weight" if role.rpartition(".")[2] in ("q", "k", "v") else "has no such layer"


def _resized(adapter: Adapter, card: ModelCard) -> list[str]:
    """Return the differences between a whole tensor of the adapter and the model. Raises ``UsageError`` for one that
    was trained."""
    if adapter.trained:
        raise _whole(adapter, card, min(adapter.trained))
    rows, vocabulary = {shape[0] for shape in adapter.copies.values() if shape}, card.decoder.vocabulary
    return [f"its vocabulary has {count:,} tokens, {card.name} has {vocabulary:,}" for count in rows - {vocabulary}]


def _whole(adapter: Adapter, card: ModelCard | NetworkCard, name: str) -> UsageError:
    return UsageError(
        f"{adapter.name} trains more than linear layers: {name}.",
        ["what an adapter adds while a model runs are low-rank changes of linear layers"],
        [f"rung merge {quoted(card.path)} {quoted(adapter.name)} OUT", "rung run OUT"],
        code="adapter-unsupported",
    )


def _in_order(role: str, change: LowRank, paired: bool, decoder: Decoder) -> LowRank:
    """With the rows of q and k in the model's order: GGUF files of Llama pair neighboring dimensions of a head, and
    so do adapters that were made for them (``paired``)."""
    interleaved = decoder.ropes[0].interleaved
    heads = {"q": decoder.heads, "k": decoder.kv_heads}.get(role.rpartition(".")[2])
    if heads is None or interleaved == paired:
        return change
    halves = (heads, 2, -1) if interleaved else (heads, -1, 2)
    rows = np.arange(len(change.up)).reshape(halves).swapaxes(1, 2).reshape(-1)
    magnitude = None if change.magnitude is None else change.magnitude[rows]
    return LowRank(change.down, change.up[rows], change.scale, magnitude)
