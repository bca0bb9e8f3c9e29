"""From roles to the names that tensors have in each kind of file, and what becomes of their values on the way."""

from __future__ import annotations

from collections.abc import Mapping

from rung.conversion.gguf_keys import architecture_of, config_of
from rung.core.errors import UnknownArchitecture
from rung.models import architectures
from rung.models.card import ModelCard, Tensor
from rung.models.roles import layer_of
from rung.models.settings import Settings

_GGUF = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_FOLDER = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
#: Rows of these rotate, and stand in another order in GGUF files of Llama.
_ROTATED = ("q", "k", "q_bias", "k_bias")


def gguf_names(card: ModelCard) -> dict[str, str]:
    """The name in a GGUF file of each of the card's tensors, by role."""
    return _named(card, _GGUF, architecture_of(card).gguf_names, "blk")


def folder_names(card: ModelCard, config: Settings | None = None) -> dict[str, str]:
    """The name in a folder of each of the card's tensors, by role; ``config`` is the new one of a GGUF file.

    Raises ``UnknownArchitecture`` for tensors that transformers stores in another way (q, k and v fused).
    """
    if config is None:
        return {tensor.role: tensor.name for tensor in card.tensors}
    return _named(card, _FOLDER, architectures.MODEL_TYPES[card.decoder.model_type].names(config), "model.layers")


def _named(card: ModelCard, outside: Mapping[str, str], inside: Mapping[str, str], layers: str) -> dict[str, str]:
    by_role = {role: name for name, role in inside.items()}
    found = {}
    for tensor in card.tensors:
        role = tensor.role.rpartition(".")[2]
        layer = layer_of(tensor.role)
        if layer is None:
            found[tensor.role] = outside[role]
        elif role in by_role:
            found[tensor.role] = f"{layers}.{layer}.{by_role[role]}"
        else:
            raise UnknownArchitecture(f"{card.name}: the new file has no place for {tensor.name}")
    return found


def aliases(card: ModelCard, tensor: Tensor) -> tuple[str, ...]:
    """All names that a person may give a tensor: its role, its name in GGUF and in a folder; of a tied head both."""
    config = config_of(card) if card.kind == "folder" else Settings({"attention_bias": True, "mlp_bias": True}, "")
    roles = [tensor.role] + (["head"] if tensor.role == "embed" and card.decoder.tied_head else [])
    found = [*roles, tensor.name]
    for role in roles:
        layer, last = layer_of(role), role.rpartition(".")[2]
        if layer is None:
            found += [_GGUF[role], _FOLDER[role]]
            continue
        gguf = {r: name for name, r in architecture_of(card).gguf_names.items()}
        folder = {r: name for name, r in architectures.MODEL_TYPES[card.decoder.model_type].names(config).items()}
        found += [f"blk.{layer}.{gguf[last]}"] if last in gguf else []
        found += [f"model.layers.{layer}.{folder[last]}"] if last in folder else []
    return tuple(name.removesuffix(".weight") for name in found)


def heads_of(card: ModelCard, tensor: Tensor) -> int:
    """The heads whose rows stand in another order in the other kind of file; 0 where none do."""
    role = tensor.role.rpartition(".")[2]
    if architecture_of(card).gguf != "llama" or role not in _ROTATED:
        return 0
    return card.decoder.heads if role.startswith("q") else card.decoder.kv_heads


def shift_of(card: ModelCard, tensor: Tensor) -> float:
    """Return the number to add to a norm in the other kind of file: Gemma's folders store it less one."""
    role = tensor.role.rpartition(".")[2]
    if not card.decoder.model_type.startswith("gemma") or not role.endswith("norm"):
        return 0.0
    return 1.0 if card.kind == "folder" else -1.0
