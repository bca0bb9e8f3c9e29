"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.core.settings import MOST_THREADS

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
        metavar="f32|f16|q8_0|q4_0|auto",
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
