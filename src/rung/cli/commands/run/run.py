"""``rung run [MODEL] [PROMPT]``: a language model, answering; chats on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import fetching, options
from rung.cli.options import GenerationOptions, LoadOptions, parse_biases
from rung.cli.views.output import note
from rung.core.errors import UsageError
from rung.core.text import quoted

if TYPE_CHECKING:
    from rung.engine.generation import Generation
    from rung.engine.model import Model

_Max = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Stop after this many tokens.", show_default=False)
]
_Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        help="How freely tokens are drawn; 0 takes the likeliest each time.",
        show_default=False,
    ),
]
_TopK = Annotated[
    int | None, typer.Option("--top-k", min=0, help="Choose among this many tokens; 0: all.", show_default=False)
]
_TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        min=0.0,
        max=1.0,
        help="Choose among the likeliest tokens that have this share of the probability together.",
        show_default=False,
    ),
]
_MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        min=0.0,
        max=1.0,
        help="Drop tokens whose probability is below this share of the best one's.",
        show_default=False,
    ),
]
_Penalty = Annotated[
    float | None,
    typer.Option(
        "--repeat-penalty",
        min=0.01,
        help="Above 1: make tokens that stand in the text already less likely.",
        show_default=False,
    ),
]
_TypicalP = Annotated[
    float | None,
    typer.Option(
        "--typical-p",
        min=0.0,
        max=1.0,
        help="Choose among the tokens that are about as surprising as expected and have this share together.",
        show_default=False,
    ),
]
_Presence = Annotated[
    float | None,
    typer.Option(
        "--presence-penalty",
        min=-2.0,
        max=2.0,
        help="Above 0: make tokens that stand in the answer already less likely.",
        show_default=False,
    ),
]
_Frequency = Annotated[
    float | None,
    typer.Option(
        "--frequency-penalty",
        min=-2.0,
        max=2.0,
        help="The same, as often as they stand there.",
        show_default=False,
    ),
]
_Bias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        help="Add to the logit of a token: ID=BIAS, from -100 (never) to 100; may be given several times.",
        show_default=False,
    ),
]
_Logprobs = Annotated[
    int | None,
    typer.Option(
        "--top-logprobs",
        min=0,
        max=100,
        help="Log probability of each token, and of so many of the likeliest ones; with --json.",
        show_default=False,
    ),
]
_Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same text.", show_default=False)]
_Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Stop before this text; may be given several times.", show_default=False),
]
_System = Annotated[
    str | None,
    typer.Option(
        "--system", help="System prompt: instructions for the model before the conversation.", show_default=False
    ),
]
_Raw = Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but the answer.")]


@dataclass(frozen=True)
class RunOptions:
    """Hold what the command line asks for. ``starter`` is set where no model was named and a starter answers;
    ``example``: the model is asked its own question."""

    model: str
    prompt: str | None
    load: LoadOptions
    generation: GenerationOptions
    system: str | None
    raw: bool
    json: bool
    quiet: bool
    starter: str | None
    example: bool
    software: str | None
    max_kl: float | None


def run(
    model: options.Model = None,
    prompt: Annotated[
        str | None, typer.Argument(help="The question or text; without it: a chat.", show_default=False)
    ] = None,
    format: options.Format = None,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    context: options.Context = None,
    adapter: options.Adapter = None,
    draft: options.Draft = None,
    prefix_cache: options.PrefixCache = None,
    cache_type: options.CacheType = None,
    max_kl: options.MaxKl = None,
    max_tokens: _Max = None,
    temperature: _Temperature = None,
    top_k: _TopK = None,
    top_p: _TopP = None,
    min_p: _MinP = None,
    typical_p: _TypicalP = None,
    repeat_penalty: _Penalty = None,
    presence_penalty: _Presence = None,
    frequency_penalty: _Frequency = None,
    logit_bias: _Bias = None,
    top_logprobs: _Logprobs = None,
    seed: _Seed = None,
    stop: _Stop = None,
    system: _System = None,
    raw: _Raw = False,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
    quiet: _Quiet = False,
    yes: options.Yes = False,
) -> None:
    """Run a language model on the device you have.

    Without MODEL the starter smollm2 answers its example question, or the embedded demo where that is not pulled.
    """
    from rung.planning.request import Typed

    _no_question_as_model(model, prompt)
    if top_logprobs is not None and not json:
        raise UsageError("--top-logprobs shows nothing without --json.", (), ["--json"])
    path, starter = fetching.model_to_run(model, yes, offline, quiet or json)
    typed, adapters = Typed(model=model or "", device=device, software=software), tuple(adapter or ())
    request = RunOptions(
        model=path,
        prompt=_prompt(model, prompt, raw, json, quiet or json),
        load=LoadOptions(
            *(format, device, memory),
            *(context, threads),
            offline,
            revision,
            adapters,
            *(draft, prefix_cache, cache_type),
            typed,
        ),
        generation=GenerationOptions(
            *(temperature, top_k, top_p, min_p, typical_p),
            *(repeat_penalty, presence_penalty, frequency_penalty, seed),
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            logit_bias=_biases(logit_bias or ()),
            top_logprobs=top_logprobs,
        ),
        system=system,
        raw=raw,
        json=json,
        quiet=quiet or json,
        starter=starter,
        example=model is None,
        software=software,
        max_kl=max_kl,
    )
    _run(request)


def _biases(pairs: Sequence[str]) -> dict[int, float]:
    try:
        return parse_biases(pairs)
    except ValueError as error:
        raise UsageError(
            f"--logit-bias {error} makes no sense: it must be ID=BIAS, a token's id and a number.",
            (),
            ["--logit-bias 13=-5", 'rung run smollm2 "Hi" --json --top-logprobs 3   # shows ids'],
        ) from None


def _no_question_as_model(model: str | None, prompt: str | None) -> None:
    from pathlib import Path

    if model is not None and prompt is None and " " in model.strip() and not Path(model).exists():
        raise UsageError(
            f"{model!r} is a question, not a model.",
            (),
            [f'rung run smollm2 "{model}"', f'rung run demo "{model}"   # asks the embedded demonstration model'],
        )


def _prompt(model: str | None, prompt: str | None, raw: bool, json: bool, quiet: bool) -> str | None:
    """Return the prompt with what is on standard input, or None for a chat. Without MODEL stdin is never read."""
    from rung.cli.input import stdin

    if model is None:
        return prompt
    command = f"rung run {quoted(model)}"
    if prompt is not None:
        typed = f"{command} {quoted(prompt)}" if prompt.strip() else command
        text = stdin.join_prompt(prompt, typed, lambda message: None if quiet else note(message))
    elif stdin.is_terminal() and not json:
        return None
    else:
        text = stdin.read_all(command)
    if text.strip() or (raw and prompt is not None):
        return text
    from rung.engine.open_model import check_here

    check_here(model)
    raise UsageError(
        "There is no prompt." if prompt is None else "The prompt is empty.",
        ["stdin is empty"] if prompt is None else [],
        [f'{command} "Why is the sky blue?"', f"{command} < FILE.txt", f"{command}   # on a terminal: a chat"],
        code="input-empty",
    )


def _run(request: RunOptions) -> None:
    from rung.cli.common import simulated

    with simulated(request.load.device, request.software) as device:
        _run_there(replace(request, load=replace(request.load, device=device)))


def _run_there(request: RunOptions) -> None:
    from rung.cli import chat
    from rung.cli.views.answer import is_simulated, show, summary
    from rung.cli.views.output import print_json

    request, expected = _within(request)
    loaded = _load(request)
    question, first = request.prompt, request
    if request.example:
        question, first = _example(loaded, request)
    if question is not None:
        answer = _answer(loaded, first, question)
        result = show(answer, request.json)
        result["simulated"] = is_simulated(loaded)
        result |= expected
        if request.json:
            print_json(result)
            return
        if not request.quiet:
            note(summary(result))
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if question is None or (request.example and terminal):
        chat.loop(loaded, loaded.devices, request.generation, request.system, request.raw, request.quiet)


def _example(loaded: Model, request: RunOptions) -> tuple[str | None, RunOptions]:
    """Return the example question of the model, and the options to ask it with: the starter's likeliest words are held
    by a test."""
    from rung.models.store.starters import starters

    if request.starter is None:
        question, title, first = loaded.example, "The embedded demonstration model", request
    else:
        starter = starters()[request.starter]
        question, title = starter.question, starter.title
        temperature = request.generation.temperature
        likeliest = replace(request.generation, temperature=0.0 if temperature is None else temperature)
        first = replace(request, generation=likeliest)
    if not request.quiet:
        note(f"{title} is asked: {question}")
    return question, first


def _within(request: RunOptions) -> tuple[RunOptions, dict[str, float]]:
    """Return the request with the cache and the format that ``--max-kl`` chooses, and the KL that is expected."""
    if request.max_kl is None:
        return request, {}
    from rung.cli.views.output import bar
    from rung.quantization import choose_within

    with bar(request.quiet, counted=True) as progress:
        found = choose_within(request.model, request.max_kl, request.load.keywords(), progress.update)
    if not request.quiet:
        note(found.words)
    return replace(request, load=replace(request.load, **found.changes)), {"expected_kl": found.divergence}


def _load(request: RunOptions) -> Model:
    from rung.cli.common import plan_line
    from rung.cli.views.answer import step_line
    from rung.cli.views.output import bar
    from rung.engine.load import load
    from rung.models.card import ModelCard

    def notify(text: str) -> None:
        if not request.quiet:
            note(text)

    with bar(quiet=request.quiet) as progress:
        loaded = load(
            request.model,
            **request.load.keywords(),
            first_prompt=request.prompt or "",
            progress=progress.update,
            on_step=lambda step: notify(step_line(step)),
            on_note=notify,
            on_plan=lambda plan, devices: notify(plan_line(plan, devices)),
        )
    if isinstance(loaded.card, ModelCard) and loaded.card.divergence:
        notify(f"{loaded.card.name}: {loaded.card.divergence}, as rung quantize measured it")
    return loaded


def _answer(loaded: Model, request: RunOptions, question: str) -> Generation:
    options = request.generation.keywords()
    if request.raw or loaded.card.chat_template is None:
        text = question if request.system is None else f"{request.system}\n\n{question}"
        return loaded.generate(text, raw=True, **options)
    return loaded.generate(question, system=request.system, **options)
