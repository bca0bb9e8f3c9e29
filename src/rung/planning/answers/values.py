"""A predicted speed, with what the memory allows and what llama.cpp reaches."""

from __future__ import annotations

from dataclasses import dataclass

from rung.core.value import Value

#: llama.cpp is named as the faster one from this factor on; without a figure for the card where rung reaches less than
#: this share of what the memory allows, of which llama.cpp reached 43 to 86 % on most cards.
_FASTER, _HALF = 1.1, 0.4


@dataclass(frozen=True)
class LlamaCpp(Value):
    """llama.cpp on the same card with the same weights: the command, and the speed where published figures tell it.

    ``command`` is empty where no weights are known that the program reads. ``tokens_per_second`` follows from the share
    of the card's bandwidth that was measured with ``measured`` and published at ``source``; both are empty, and the
    speed None, for cards without a figure.
    """

    command: str
    tokens_per_second: float | None = None
    measured: str = ""
    source: str = ""


@dataclass(frozen=True)
class Speed(Value):
    """Predicted tokens per second, None where there is no such thing; ``uncertainty`` is a share of them.

    ``reason`` says why there is none where there could be one; ``bound_tokens_per_second`` is what the memory allows at
    most while decoding; ``llama_cpp`` is that program on the same card.
    """

    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    uncertainty: float
    prompt_tokens: int
    reason: str = ""
    bound_tokens_per_second: float | None = None
    llama_cpp: LlamaCpp | None = None

    @property
    def slower(self) -> bool:
        """Return whether llama.cpp is faster: by published figures, else where rung reaches less than half of the
        bound."""
        decode, beside = self.decode_tokens_per_second, self.llama_cpp
        if beside is None:
            return False
        if decode is None:
            return bool(self.reason)
        if beside.tokens_per_second is not None:
            return beside.tokens_per_second > _FASTER * decode
        return self.bound_tokens_per_second is not None and decode < self.bound_tokens_per_second * _HALF
