"""The options that several commands share, and what they mean for loading and answering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.core.settings import MOST_THREADS

if TYPE_CHECKING:
    from rung.planning.request import Typed


Model = Annotated[
    str | None,
    typer.Argument(
        help="A GGUF file, a Hugging Face folder, demo, or a hub name: ORG/REPO, ORG/REPO:Q4_K_M.", show_default=False
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Store the weights in this format (rung formats lists them).", show_default=False),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="Use this device (rung devices lists them); sim:p2200 simulates a card.", show_default=False
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", help="Budget, kept to the full context: 4.6GB, or cuda:0=4GB,cpu=8GB.", show_default=False
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", min=1, help="Tokens that prompt and answer may have together.", show_default=False),
]
Parallel = Annotated[
    int | None,
    typer.Option("--parallel", min=1, help="Sequences that have room for the whole context.", show_default=False),
]
PrefixCache = Annotated[
    str | None,
    typer.Option(
        "--prefix-cache",
        metavar="DIR[:SIZE]",
        help="Keep what prompts computed in a folder of up to 4GB, or SIZE, so that later runs begin faster.",
        show_default=False,
    ),
]
CacheType = Annotated[
    str | None,
    typer.Option(
        "--cache-type",
        metavar="f32|f16|q8_0|q5_1|q4_0|auto",
        help="Store keys and values in this; auto is f16, or q8_0 where only that fits.",
        show_default=False,
    ),
]
MaxKl = Annotated[
    float | None,
    typer.Option(
        "--max-kl",
        help="Take the cache and inputs of the least memory within this KL, in nats a token: 0.01; measured once.",
        show_default=False,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="MODEL",
        help="Smaller model of the same vocabulary that guesses tokens: faster, and the same answer.",
        show_default=False,
    ),
]
Adapter = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        help="Add a LoRA while running: a PEFT folder or a GGUF file; DIR:0.5 for half of it; may be given several"
        " times.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=MOST_THREADS, help="Threads to compute with.", show_default=False)
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Fetch a starter that is not here yet without asking; accepts its terms.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Never ask the model hub.")]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a hub model.", show_default=False)
]
Software = Annotated[
    str | None,
    typer.Option(
        "--software",
        help='Releases that a card of the catalog has: "torch 1.10+cu102", "torch 2.3, bitsandbytes 0.42".',
        show_default=False,
    ),
]
Reasoned = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Use this device: one that is here, or one of the catalog that need not be (rung devices --catalog).",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option("--host", help="Serve clients on this address.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Serve clients on this port; 0: any free one.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", help="Answer only requests with this key; may be given several times.", show_default=False),
]
NoKey = Annotated[bool, typer.Option("--no-key", help="Need no key on an address that other machines reach.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page to this file, too.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


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
