"""How a model is loaded and how its tokens are chosen, as the options of a command say; None leaves it to rung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rung.planning.request import Typed


@dataclass(frozen=True)
class LoadOptions:
    """The options of ``rung run`` that ``rung.engine.load.load`` takes under the same names."""

    format: str | None = None
    device: str | None = None
    memory: str | None = None
    context: int | None = None
    threads: int | None = None
    offline: bool = False
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    prefix_cache: str | None = None
    cache_type: str | None = None
    typed: Typed | None = None
    notes: tuple[str, ...] = ()

    def keywords(self) -> dict[str, Any]:
        """Return them as keyword arguments."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class SamplingOptions:
    """The options that ``rung.engine.sampling.Sampling`` takes under the same names."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True)
class GenerationOptions(SamplingOptions):
    """The options that ``Model.generate`` and ``Model.chat`` take under the same names."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None

    def keywords(self) -> dict[str, Any]:
        """Return those that are set as keyword arguments."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), {})}


def parse_biases(pairs: Iterable[str]) -> dict[int, float]:
    """Return biases by token id from texts ``ID=BIAS``. Raises ``ValueError`` with the text that is none."""
    found: dict[int, float] = {}
    for each in pairs:
        token, _, bias = each.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            raise ValueError(each) from None
    return found
