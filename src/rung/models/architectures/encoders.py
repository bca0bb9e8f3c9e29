"""Define what architectures of encoders have in common: the tables of names, and how their sizes are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rung.models.card import Encoder
from rung.models.settings import Settings


@dataclass(frozen=True)
class EncoderArchitecture:
    """How one model type is read.

    ``names`` maps the names of a Hugging Face checkpoint to roles: those inside a layer, which begin with ``layer``
    and its number, and all others. ``bases`` are what may stand before all of them, ``skipped`` how names begin that
    are not used. ``gguf`` is the architecture of its GGUF files and ``gguf_names`` the same for these.
    """

    model_type: str
    bases: tuple[str, ...]
    layer: str
    names: Mapping[str, str]
    skipped: tuple[str, ...]
    from_config: Callable[[Settings], Encoder]
    gguf: str
    gguf_names: Mapping[str, str]
    from_gguf: Callable[[Settings], Encoder]


#: Roles outside of layers.
OUTSIDE = ("embed", "positions", "types", "embed_norm", "embed_norm_bias")


def shapes(encoder: Encoder) -> dict[str, tuple[int, ...]]:
    """Return the shape [out, in], or [n] of norms and biases, of each role that an encoder has."""
    hidden, wide = encoder.hidden, encoder.feed_forward
    found: dict[str, tuple[int, ...]] = {
        "embed": (encoder.vocabulary, hidden),
        "positions": (encoder.context, hidden),
        "types": (encoder.types, hidden),
        "embed_norm": (hidden,),
        "embed_norm_bias": (hidden,),
    }
    matrices = {"q": (hidden, hidden), "k": (hidden, hidden), "v": (hidden, hidden), "o": (hidden, hidden)}
    matrices |= {"up": (wide, hidden), "down": (hidden, wide)}
    for layer in range(encoder.layers):
        for role, shape in matrices.items():
            found[f"layers.{layer}.{role}"] = shape
            found[f"layers.{layer}.{role}_bias"] = shape[:1]
        for norm in ("attn_norm", "mlp_norm"):
            found[f"layers.{layer}.{norm}"] = found[f"layers.{layer}.{norm}_bias"] = (hidden,)
    return found
