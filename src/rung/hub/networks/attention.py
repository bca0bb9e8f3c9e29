"""How networks of transformers attend to what they have read, on a processor: without copying it for every token."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from rung.nn.quantized.binding import attention
from rung.ops.attention.ref import visible

#: The name that transformers knows ``attend`` by.
NAME = "rung"


class Rows(DynamicLayer):
    """Keys and values of a layer, written into memory for the whole context; transformers' own layer copies all that it
    has for every token."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self._context = context

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Takes on [batch, heads, T, size] of both and returns all that are held, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._room = tuple(
                new.new_empty(*new.shape[:2], self._context, new.shape[3]) for new in (key_states, value_states)
            )
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self.keys, self.values = (room[:, :, :end] for room in self._room)
        return self.keys, self.values


def with_rows(cache: Cache, context: int) -> Cache:
    """The cache with ``Rows`` in the place of layers that grow; windows and states stay as they are."""
    cache.layers = [Rows(context) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def mask(
    *args: Any,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    **named: Any,
) -> Tensor | None:
    """The mask as transformers asks for it; none where each token sees all before it, which ``attend`` knows."""
    plain = mask_function is causal_mask_function and attention_mask is None
    if plain and named.get("allow_is_causal_skip", True):
        return None
    named |= {"mask_function": mask_function, "attention_mask": attention_mask}
    found: Tensor | None = sdpa_mask(*args, **named)
    return found


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query [1, heads, T, size], keys and values [1, kv_heads, S, size].

    Queries that see all before them go through the ladder: for one, torch's own kernel takes 3 to 15 times as long in
    16 bits, for many up to twice. All else is torch's.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    tokens, keys = query.shape[2], key.shape[2]
    causal_only = attention_mask is None and (causal or tokens == 1)
    if causal_only and len(query) == 1 and key.shape == value.shape and not _more(options):
        return climbed(query, key, value, scaling), None
    if causal_only and 1 < tokens < keys:  # torch would take the first keys for all of them
        attention_mask = visible(tokens, keys, keys - tokens, None, query.device)[None, None]
    found: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **options
    )
    return found


def _more(options: dict[str, Any]) -> bool:
    """Return whether transformers asks for what the ladder does not compute."""
    tensors = any(options.get(name) is not None for name in ("position_bias", "s_aux", "cache"))
    return tensors or bool(options.get("dropout") or options.get("softcap"))


def climbed(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Return the attention that the ladder climbs to."""
    _, heads, tokens, size = query.shape
    bound = attention(query.device, heads, key.shape[1], size, key.dtype)
    q, keys, values = (each[0].transpose(0, 1) for each in (query.float(), key, value))
    scale = size**-0.5 if scaling is None else scaling
    mixed = bound(q, keys, values, start=len(keys) - tokens, scale=scale, window=None, softcap=None)
    return mixed[None].to(query.dtype)


def use(network: nn.Module) -> None:
    """Let a network of transformers attend so, where it attends with torch's kernel and can be told; transformers logs
    a warning where it cannot."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)
    configured: Any = network
    if configured.config._attn_implementation == "sdpa":
        configured.set_attn_implementation(NAME)
