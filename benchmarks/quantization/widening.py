"""Widen a Llama of transformers, so that blocks of 256 divide its rows, without changing what it computes much."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: The scale of what is written to new dimensions of the hidden states, beside the other weights of a matrix. Only the
#: norms see it at first. Without it the new dimensions would follow from the old ones, and errors could hide there.
QUIET = 0.3


def widened(model: Any, hidden: int, seed: int) -> Any:
    """Return a model with ``hidden`` dimensions and as many more heads, in f32.

    Each new dimension is written at random, read by nothing, and then rotated with an old one, so that both have some
    of both. Norms and their epsilon are scaled for a mean over more dimensions. New groups of heads repeat old ones,
    each head rotated where that changes no attention, and share their output with them.
    """
    old = model.config
    factor = hidden / old.hidden_size
    changes = {
        "hidden_size": hidden,
        "num_attention_heads": round(old.num_attention_heads * factor),
        "num_key_value_heads": round(old.num_key_value_heads * factor),
        "head_dim": model.model.layers[0].self_attn.head_dim,
        "rms_norm_eps": old.rms_norm_eps / factor,
    }
    config = type(old)(**{**old.to_dict(), **changes})
    wide = type(model)(config)
    generator = torch.Generator().manual_seed(seed)
    across = _Across(old.hidden_size, hidden, generator)
    with torch.no_grad():
        for before, after in zip(model.model.layers, wide.model.layers, strict=True):
            heads = _heads(before.self_attn, old, config, generator)
            for name, weight in heads.items():
                _set(getattr(after.self_attn, name), across.matrix(weight, name == "o_proj"))
            for name in ("gate_proj", "up_proj", "down_proj"):
                weight = getattr(before.mlp, name).weight
                _set(getattr(after.mlp, name), across.matrix(weight, name == "down_proj"))
            for name in ("input_layernorm", "post_attention_layernorm"):
                _set(getattr(after, name), across.norm(getattr(before, name).weight))
        _set(wide.model.norm, across.norm(model.model.norm.weight))
        _set(wide.model.embed_tokens, across.matrix(model.model.embed_tokens.weight.T, True).T)
        if not old.tie_word_embeddings:
            _set(wide.lm_head, across.matrix(model.lm_head.weight, False))
    wide.tie_weights()
    return wide


class _Across:
    """The new dimensions of the hidden states: where the old ones lie, and which pairs are rotated by which angle."""

    def __init__(self, old: int, new: int, generator: torch.Generator) -> None:
        self.old, self.new, self.generator = old, new, generator
        order = torch.randperm(new, generator=generator)
        self.places, self.added = order[:old].sort().values, order[old:]
        self.partners = torch.randperm(old, generator=generator)[: new - old]
        angles = torch.rand(new - old, generator=generator) * 2 * torch.pi
        self.cosine, self.sine = angles.cos(), angles.sin()

    def matrix(self, weight: Tensor, writes: bool) -> Tensor:
        """Return the matrix of an old one, whose rows (where it ``writes``) or columns are hidden dimensions."""
        lines = weight if writes else weight.T
        loud = QUIET * float(weight.std()) if writes else 0.0
        noise = loud * torch.randn((self.new - self.old, lines.shape[1]), generator=self.generator)
        found = lines.new_empty((self.new, lines.shape[1]))
        found[self.places] = lines
        paired, cosine, sine = lines[self.partners], self.cosine[:, None], self.sine[:, None]
        found[self.places[self.partners]] = cosine * paired - sine * noise
        found[self.added] = sine * paired + cosine * noise
        return (found if writes else found.T).contiguous()

    def norm(self, weight: Tensor) -> Tensor:
        """Return the weights of a norm; both of a pair have the old one's."""
        found = weight.new_empty(self.new)
        found[self.places], found[self.added] = weight, weight[self.partners]
        return found * (self.old / self.new) ** 0.5


def _heads(attention: Any, old: Any, new: Any, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the projections of an attention by name, with rows (columns of the output) for the new heads."""
    size, group = new.head_dim, old.num_attention_heads // old.num_key_value_heads
    if new.num_attention_heads != group * new.num_key_value_heads:
        raise SystemExit(f"{new.num_attention_heads} heads are no groups of {group}")
    found = {name: [getattr(attention, name).weight] for name in ("q_proj", "k_proj", "v_proj")}
    outputs = list(attention.o_proj.weight.T.reshape(old.num_key_value_heads, group, size, -1).clone())
    for number in range(new.num_key_value_heads - old.num_key_value_heads):
        source = number % old.num_key_value_heads
        turn = _turn_of_positions(size, generator)
        mix = torch.linalg.qr(torch.randn((size, size), generator=generator)).Q
        queries = found["q_proj"][0].reshape(old.num_key_value_heads, group, size, -1)[source]
        keys, values = (found[name][0].reshape(-1, size, old.hidden_size)[source] for name in ("k_proj", "v_proj"))
        found["q_proj"].append((turn @ queries).flatten(0, 1))
        found["k_proj"].append(turn @ keys)
        found["v_proj"].append(mix @ values)
        outputs[source] *= 0.5
        outputs.append(mix @ outputs[source])
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    return joined | {"o_proj": torch.stack(outputs).flatten(0, 2).T}


def _turn_of_positions(size: int, generator: torch.Generator) -> Tensor:
    """Return a rotation [size, size] of queries and keys that keeps their products at all positions.

    It turns the pairs that rotary embeddings turn, each by an angle of its own.
    """
    angles = torch.rand(size // 2, generator=generator) * 2 * torch.pi
    cosine, sine = angles.cos().diag(), angles.sin().diag()
    return torch.cat((torch.cat((cosine, -sine), 1), torch.cat((sine, cosine), 1)))


def _set(module: Any, weight: Tensor) -> None:
    assert module.weight.shape == weight.shape, (module, weight.shape)
    module.weight.data = weight.clone(memory_format=torch.contiguous_format)
