"""``rung batch IN.jsonl OUT.jsonl``: many prompts from a file, answered together; goes on where it was stopped."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.cli.views.output import note
from rung.core.errors import ContextTooLong, UsageError
from rung.core.text import count, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rung.engine.batches import Answer, Request, Results
    from rung.engine.generation import Generation
    from rung.engine.model import Model
    from rung.fleet.work.manifest import Manifest

#: Requests whose texts get their embeddings together.
_TOGETHER = 64


def batch(
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="IN.jsonl",
            help="Lines of OpenAI's batches, of JSON with prompt or messages, or of text.",
            show_default=False,
        ),
    ],
    answers: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="A line for each answer, as they come.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="The model; by default the one that the lines name.", show_default=False),
    ] = None,
    format: options.Format = None,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    context: options.Context = None,
    parallel: options.Parallel = None,
    draft: options.Draft = None,
    prefix_cache: options.PrefixCache = None,
    cache_type: options.CacheType = None,
    max_kl: options.MaxKl = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Have the nodes of this machine's fleet answer, with a model of it.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Answer the prompts of a file together, a line of JSON each.

    Lines may set max_tokens, temperature, top_p, seed, stop and more. The same command goes on after a stop.
    """
    if fleet:
        of_model = format, device, software, memory, context, parallel, draft, prefix_cache, cache_type, max_kl, threads
        _over_fleet(prompts, answers, model, quiet, of_model)
        return
    from rung.cli.common import simulated
    from rung.cli.views.output import bar
    from rung.engine import batches
    from rung.planning.request import Typed

    named = _models(prompts)
    total, chosen = len(named), model or _named(set(named), prompts, answers)
    common = {
        "format": format, "memory": memory, "context": context, "parallel": parallel, "draft": draft,
        "prefix_cache": prefix_cache, "cache_type": cache_type, "threads": threads, "offline": offline,
        "revision": revision, "typed": Typed(f"rung batch {quoted(prompts)} {quoted(answers)} --model", chosen, device),
    }  # fmt: skip
    with batches.opened(answers, chosen) as done:
        before, left = len(done.done), (each for each in batches.read(prompts) if each.key not in done.done)
        if before and not quiet:
            note(f"{answers} has {count(before, 'answer')}: going on after them.")
        if before >= total:
            return
        with simulated(device, software) as target, bar(quiet=quiet) as progress:
            loaded = _load(chosen, max_kl, {**common, "device": target}, progress.update, quiet)
            failed = _answer(loaded, left, done, total, quiet)
    if not quiet:
        note(f"{count(total - before, 'answer')} in {answers}" + (f", {failed} of them errors" if failed else ""))


def _load(
    model: str, max_kl: float | None, common: dict[str, Any], progress: Callable[[str, int, int], None], quiet: bool
) -> Model:
    """Load the model, with what ``--max-kl`` chooses."""
    from rung.cli.common import plan_line
    from rung.engine.load import load

    if max_kl is not None:
        from rung.quantization import choose_within

        found = choose_within(model, max_kl, common, progress)
        common = {**common, **found.changes}
        if not quiet:
            note(found.words)
    return load(
        model,
        **common,
        progress=progress,
        on_plan=lambda plan, devices: None if quiet else note(plan_line(plan, devices)),
    )


def _models(prompts: Path) -> list[str | None]:
    """Return the model that each line names: all are read before anything is loaded. Raises ``UsageError``."""
    from rung.engine import batches

    named = [request.model for request in batches.read(prompts)]
    if not named:
        raise UsageError(f"{prompts} has no prompt: one a line.", code="input-empty")
    return named


def _over_fleet(prompts: Path, answers: Path, model: str | None, quiet: bool, of_model: tuple[object, ...]) -> None:
    """Have the nodes of the fleet answer. Raises ``RungError``."""
    from rung.cli.views.output import bar
    from rung.fleet import ray_node

    if any(each is not None for each in of_model):
        raise UsageError(
            "With --fleet the model is loaded already: how was said with rung fleet up.",
            ["only --model and --quiet go with --fleet"],
            code="options-exclude-each-other",
        )
    ray_node.require()
    from rung.engine import batches
    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder
    from rung.fleet.work import batch, manifest

    folder = Folder.of_settings()
    status = control_client.of_member(folder).status()
    record = _manifest(prompts, model, {each.name: each.files for each in status.models})
    with batches.opened(answers, record.model) as done:
        manifest.begin(answers, record)
        if done.done and not quiet:
            note(f"{answers} has {count(len(done.done), 'answer')}: going on after them.")
        left = (request for request in batches.read(prompts) if request.key not in done.done)
        with bar(quiet=quiet, counted=True) as progress:
            found = batch.answered(left, record.model, batch.width(status, record.model), folder)
            nodes = batch.write(found, done, lambda: progress.update("answers", len(done.done), record.total))
        errors = nodes.pop("", 0)
        manifest.end(answers, record, nodes, errors)
    if not quiet:
        by_node = ", ".join(f"{name} {number:,}" for name, number in sorted(nodes.items()))
        failed = f", {errors} of them errors" if errors else ""
        note(f"{count(nodes.total() + errors, 'answer')} in {answers}{failed}" + (f" ({by_node})" if by_node else ""))


def _manifest(prompts: Path, model: str | None, models: dict[str, dict[str, str]]) -> Manifest:
    """Return the manifest of a batch for a fleet with these models. Raises ``UsageError``."""
    from rung.fleet.work import answering, manifest

    named = _models(prompts)
    chosen = answering.served(models, model or (named[0] if len(set(named)) == 1 else None))
    digest = manifest.sha256_of(prompts)
    return manifest.Manifest(prompts_sha256=digest, model=chosen, files=models[chosen], total=len(named))


def _named(models: set[str | None], prompts: Path, answers: Path) -> str:
    """Return the model that all lines name. Raises ``UsageError``."""
    names = sorted(name for name in models if name)
    if len(models) == 1 and names:
        return names[0]
    listed = f"they name {', '.join(names[:4])}" if names else "they name none"
    command = f"rung batch {quoted(prompts)} {quoted(answers)}"
    raise UsageError(
        f"The lines of {prompts} do not name one model.", [listed], [f"{command} --model smollm2"], code="input-empty"
    )


def _answer(model: Model, requests: Iterator[Request], results: Results, total: int, quiet: bool) -> int:
    """Compute the answers, write them down as they come, and return how many are errors."""
    from rung.cli.views.output import bar
    from rung.engine.batches import EMBEDDINGS, as_completed
    from rung.engine.embeddings.encoder import EncoderModel

    started: dict[int, Request] = {}
    failed = 0
    texts: list[Request] = []

    def jobs() -> Iterator[Callable[[], Generation]]:
        numbers = itertools.count()
        for request in requests:
            if request.url == EMBEDDINGS:
                texts.append(request)
            else:
                started[next(numbers)] = request
                yield partial(_start, model, request)

    with bar(quiet=quiet, counted=True) as progress:
        written = _refused(jobs()) if isinstance(model, EncoderModel) else as_completed(model.scheduler, jobs())
        for number, answer in written:
            failed += answer.error is not None
            results.add(started.pop(number), answer)
            progress.update("answers", len(results.done), total)
        for first in range(0, len(texts), _TOGETHER):
            failed += _embed(model, texts[first : first + _TOGETHER], results)
            progress.update("answers", len(results.done), total)
    return failed


def _refused(jobs: Iterator[Callable[[], Generation]]) -> Iterator[tuple[int, Answer]]:
    """Yield why each answer cannot be begun: an encoder writes no text."""
    from rung.engine.batches import Answer

    for number, begin in enumerate(jobs):
        try:
            begin()
        except UsageError as error:
            yield number, Answer("", [], {}, error)


def _embed(model: Model, requests: list[Request], results: Results) -> int:
    """Compute embeddings of the texts of requests together, and return how many are errors.

    Where they cannot be computed each request is tried alone.
    """
    try:
        for request in requests:
            if request.refusal:
                raise UsageError(request.refusal)
        vectors = model.embed([text for request in requests for text in request.texts])
    except (UsageError, ContextTooLong) as error:
        if len(requests) > 1:
            return sum(_embed(model, [request], results) for request in requests)
        results.refuse(requests[0], error)
        return 1
    for request in requests:
        tokens = sum(len(model.tokenizer.encode_whole(text)) for text in request.texts)
        results.add_embeddings(request, vectors[: len(request.texts)], tokens)
        vectors = vectors[len(request.texts) :]
    return 0


def _start(model: Model, request: Request) -> Generation:
    if request.refusal:
        raise UsageError(request.refusal)
    if isinstance(request.prompt, str):
        return model.generate(request.prompt, **request.options)
    return model.chat(request.prompt, **request.options)
