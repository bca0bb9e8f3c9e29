"""From stored tensors to roles: every tensor gets one, and every one that a decoder needs is there in its shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rung.core.errors import BadFile
from rung.core.text import count as counted
from rung.models.card import Decoder, Source, Tensor
from rung.models.files.tensors import FileTensor

_ALTERNATIVES = ({"qkv": ("q", "k", "v")}, {"gate_up": ("gate", "up")})


@dataclass(frozen=True)
class Found:
    """A stored tensor with the role that its name gives it ("" for none) and the index of its file.

    With a ``source`` it is a weight that several stored tensors make.
    """

    role: str
    stored: FileTensor
    file: int
    source: Source | None = None


def tensors_of(found: Sequence[Found], decoder: Decoder, biases: Iterable[str], where: str) -> tuple[Tensor, ...]:
    """The card's tensors, checked against the decoder's shape. ``biases`` are those that every layer must have.

    Raises ``BadFile`` that names what has no place, is there twice, is missing, has another shape, or is stored in a
    type that rung does not read.
    """
    _refuse_strangers(found, decoder, where)
    by_role: dict[str, Found] = {}
    for item in found:
        if item.role in by_role:
            twins = f"{by_role[item.role].stored.name} and {item.stored.name}"
            raise BadFile(f"{where}: the tensors {twins} have the same place in the model")
        by_role[item.role] = item
    missing = [role for role in _needed(decoder, by_role, tuple(biases)) if role not in by_role]
    if missing:
        raise BadFile(
            f"{where} lacks {counted(len(missing), 'tensor')} that a {decoder.model_type} model of "
            f"{counted(len(decoder.layers), 'layer')} needs",
            [f"missing: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"],
            code="model-incomplete",
        )
    for item in found:
        _check_shape(item, decoder, where)
    order = {role: index for index, role in enumerate(by_role)}
    return tuple(_tensor(item) for item in sorted(found, key=lambda item: order[item.role]))


def _tensor(item: Found) -> Tensor:
    stored = item.stored
    return Tensor(
        item.role, stored.name, stored.shape, stored.format, item.file, stored.offset, stored.bytes, item.source
    )


def layer_of(role: str) -> int | None:
    """The layer in ``layers.N.role``; None for a role outside of layers."""
    parts = role.split(".")
    return int(parts[1]) if parts[0] == "layers" else None


def _refuse_strangers(found: Sequence[Found], decoder: Decoder, where: str) -> None:
    count = len(decoder.layers)
    beyond = [item for item in found if item.role and (layer_of(item.role) or 0) >= count]
    if beyond:
        raise BadFile(
            f"{where} describes {counted(count, 'layer')}, and its tensors go on: {beyond[0].stored.name}",
            ["the description and the weights belong to different models, or the file has been changed"],
        )
    strangers = [item.stored.name for item in found if not item.role]
    if strangers:
        raise BadFile(
            f"{where}: {counted(len(strangers), 'tensor')} without a place in a {decoder.model_type} model",
            [f"{', '.join(name[:100] for name in strangers[:8])}{' ...' if len(strangers) > 8 else ''}"],
        )
    for item in found:
        if not item.stored.known:
            raise BadFile(
                f"{where}: tensor {item.stored.name} is stored as {item.stored.format}",
                ["rung reads F32, F16 and BF16 from safetensors"],
            )


def _needed(decoder: Decoder, present: dict[str, Found], biases: tuple[str, ...]) -> list[str]:
    roles = ["attn_norm", "o", "mlp_norm", "down", *biases]
    roles += ["q_norm", "k_norm"] if decoder.qk_norm else []
    roles += ["attn_post_norm", "mlp_post_norm"] if decoder.post_norms else []
    needed = ["embed", "norm"] + ([] if decoder.tied_head else ["head"])
    for layer in range(len(decoder.layers)):
        needed += [f"layers.{layer}.{role}" for role in roles]
        for (whole, pieces), *_ in (alternative.items() for alternative in _ALTERNATIVES):
            fused = f"layers.{layer}.{whole}" in present
            needed += [f"layers.{layer}.{role}" for role in ((whole,) if fused else pieces)]
    return needed


def shape_of(role: str, decoder: Decoder) -> tuple[int, ...]:
    """The shape [out, in], or [n] of norms and biases, that a role has in this decoder."""
    name = role.split(".")[-1]
    hidden, wide = decoder.hidden, decoder.feed_forward
    q, kv = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    rows = {"q": q, "k": kv, "v": kv, "qkv": q + 2 * kv, "o": hidden, "gate": wide, "up": wide, "gate_up": 2 * wide}
    rows |= {"down": hidden, "embed": decoder.vocabulary, "head": decoder.vocabulary}
    if name.endswith("_bias"):
        return (rows[name.removesuffix("_bias")],)
    if name in rows:
        return rows[name], {"o": q, "down": wide}.get(name, hidden)
    return (decoder.head_dim,) if name in ("q_norm", "k_norm") else (hidden,)


def _check_shape(item: Found, decoder: Decoder, where: str) -> None:
    expected = shape_of(item.role, decoder)
    if item.stored.shape != expected:
        raise BadFile(
            f"{where} contradicts its tensors: {item.stored.name} has the shape {list(item.stored.shape)}",
            [
                f"a {decoder.model_type} model with hidden {decoder.hidden}, {decoder.heads} heads of "
                f"{decoder.head_dim}, {decoder.kv_heads} of them for keys, feed-forward {decoder.feed_forward} and "
                f"vocabulary {decoder.vocabulary} has {list(expected)} there"
            ],
        )
