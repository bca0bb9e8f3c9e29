"""Define what ``rung video`` and ``rung image`` share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli.views.output import note
from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.core.text import size as sized

if TYPE_CHECKING:
    from rung.core.types import Device
    from rung.hub.diffusers.pipelines import Folder
    from rung.pipelines.batch import Job
    from rung.pipelines.generate import Generated, Pipeline
    from rung.planning.pipeline import PhasesPlan

Model = Annotated[str, typer.Argument(help="The folder of a pipeline of diffusers, or ORG/REPO.")]
Prompt = Annotated[str | None, typer.Argument(help="Describe the picture or video.", show_default=False)]
Size = Annotated[str | None, typer.Option("--size", help="Width and height in pixels: 512x512.", show_default=False)]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Number of denoising steps.", show_default=False)]
Guidance = Annotated[
    float | None, typer.Option("--guidance", min=0.0, help="How closely the prompt is followed.", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same noise on any device.")]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Another scheduler: ddim, euler, ...", show_default=False)
]
Negative = Annotated[
    str | None, typer.Option("--negative", help="Describe what to leave out of it.", show_default=False)
]
Batch = Annotated[
    Path | None,
    typer.Option("--batch", help="A file with a prompt a line; the same command goes on with it.", show_default=False),
]
Plan = Annotated[bool, typer.Option("--plan", help="Say what would run where, in how much memory, and stop.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing.")]


def pixels(text: str | None) -> tuple[int, int] | None:
    """``512x320`` as (width, height); one number is both. Raises ``UsageError``."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text.strip().lower())
    if not found or 0 in (width := int(found[1]), height := int(found[2] or found[1])):
        raise UsageError(f"--size {text} is no size.", ways_out=["--size 512x512"], code="value-out-of-range")
    return width, height


def make(
    model: str,
    prompt: str | None,
    batch: Path | None,
    settings: dict[str, Any],
    out: Path,
    fps: float,
    *,
    command: str,
    device: str | None,
    software: str | None,
    memory: str | None,
    format: str | None,
    plan: bool,
    offline: bool,
    revision: str | None,
    quiet: bool,
    json: bool,
) -> None:
    """Makes one video or picture, or those of a batch."""
    from rung.cli.common import quiet_bitsandbytes, simulated

    quiet_bitsandbytes()  # before the imports below, which import it
    from rung.measure import pictures
    from rung.pipelines.batch import Done, Job, jobs
    from rung.pipelines.generate import Settings

    if (prompt is None) == (batch is None):
        raise UsageError(
            "Give a prompt, or --batch FILE with one a line.",
            (),
            [f'rung {command} {quoted(model)} "a cat"'],
            code="input-empty",
        )
    common = Settings(prompt=prompt or "", **settings)
    requested = [Job(common, out)] if batch is None else jobs(batch, common, out)
    path = Path(model).expanduser()
    whose = {"model": str(path.resolve()) if path.exists() else model, "revision": revision}
    done = Done(out, {**whose, "format": format, "fps": fps})
    if batch is not None and batch.resolve() == done.path.resolve():
        raise UsageError(
            f"{batch} is where the journal of this batch goes.",
            (),
            ["give --out or the file another name"],
            code="output-exists",
        )
    left = requested if batch is None else done.left(requested)
    for job in () if plan else left:
        moving = command == "video" and job.out.suffix.lower() != ".png"
        pictures.check_destination(job.out, job.settings.frames or (2 if moving else 1))
    folder = opened(model, offline, revision, quiet or json)
    with simulated(device, software) as chosen, _pipeline(folder, chosen, memory, format, quiet or json) as pipeline:
        if plan:
            _show_plan(pipeline.plan(*(job.settings for job in requested)), pipeline.device, json)
            return
        if len(left) < len(requested) and not quiet:
            note(f"{len(requested) - len(left)} of {len(requested)} are done already")
        _make(pipeline, left, done if batch else None, fps, quiet, json)


def opened(model: str, offline: bool, revision: str | None, quiet: bool) -> Folder:
    """The pipeline's folder; of what is not here the small files are downloaded, and the weights when they are read."""
    from rung.cli.views.output import bar
    from rung.engine import planning
    from rung.hub.diffusers.pipelines import Folder
    from rung.pipelines.folders import folder_of

    planning.need_software()
    planning.keep_heap_whole()

    def fetched(weights: bool) -> Path:
        with bar(quiet) as progress:
            return folder_of(model, offline=offline, revision=revision, weights=weights, progress=progress.update)

    here = Path(model).expanduser().exists()
    return Folder(fetched(weights=here), None if here else lambda: fetched(weights=True))


@contextlib.contextmanager
def _pipeline(
    folder: Folder, device: str | None, memory: str | None, format: str | None, quiet: bool
) -> Iterator[Pipeline]:
    from rung.cli.views.answer import step_line
    from rung.cli.views.output import bar
    from rung.pipelines.generate import Pipeline, Watcher

    reading, denoising, chosen = bar(quiet), bar(quiet, counted=True), device_named(device)

    def on_note(text: str) -> None:
        if not quiet:
            note(text)

    watcher = Watcher(
        progress=reading.update,
        steps=lambda done, total: denoising.update("denoising", done, total),
        step=lambda step: on_note(step_line(step)),
        note=on_note,
        plan=lambda done: on_note("\n".join(plan_lines(done, chosen))),
    )
    with reading, denoising:
        yield Pipeline(folder, chosen, memory=memory, format=format, watcher=watcher)


def device_named(name: str | None) -> Device:
    """The device of that id here, proved; by default the first accelerator, else the processor."""
    from rung.engine.planning import not_here, proven_devices
    from rung.hardware.select import catalog_device, select_device

    if name is not None and (card := catalog_device(name)) is not None:
        raise not_here(card, name)
    here = proven_devices(lambda device: None)
    if name is None:
        able = [
            one
            for one in here
            if one.kind != "cpu" and one.torch_computes and one.capability("matmul.f32").level.value != "absent"
        ]
        return (able or [one for one in here if one.kind == "cpu"])[0]
    groups = select_device(name)
    return next((one for one in here if one.id == groups.id), groups)


def _make(pipeline: Pipeline, left: list[Job], done: Any, fps: float, quiet: bool, json: bool) -> None:
    from rung.cli.views.output import print_json
    from rung.measure import pictures

    results = []
    for job, output in zip(left, pipeline.make([job.settings for job in left]), strict=True) if left else []:
        pictures.write(job.out, output.frames, fps, {"model": pipeline.folder.path.name, **job.settings.chosen()})
        if done is not None:
            done.add(job)
        results.append(_result(job, output, pipeline.device))
        if not quiet and not json:
            print(summary(results[-1]))
    if json:
        print_json(results)


def _result(job: Job, output: Generated, device: Device) -> dict[str, Any]:
    count, height, width, _ = output.frames.shape
    return {
        "file": str(job.out),
        "frames": count,
        "width": width,
        "height": height,
        "seconds": round(output.seconds, 2),
        "phase_seconds": {phase: round(spent, 2) for phase, spent in output.phases.items()},
        "settings": job.settings.chosen(),
        "plan": output.plan.to_json(),
        "predicted_bytes": output.plan.most,
        "peak_bytes": output.peak,
        "simulated": not device.real,
    }


def summary(result: dict[str, Any]) -> str:
    """``x.mp4 · 16 frames of 512x512 · 83 s · 5.4 GB of 5.6 GB planned``."""
    count = result["frames"]
    frames = f"{count} frames of " if count > 1 else ""
    parts = [result["file"], f"{frames}{result['width']}x{result['height']}", f"{result['seconds']:.1f} s"]
    if result["simulated"]:
        parts.append("simulated: the time is not the card's")
    elif result["peak_bytes"]:
        parts.append(f"{sized(result['peak_bytes'])}, planned {sized(result['predicted_bytes'])}")
    return " · ".join(parts)


def plan_lines(plan: PhasesPlan, device: Device) -> list[str]:
    """The device and its budget, then a line for each phase."""
    from rung.cli.common import device_words

    lines = [f"{device_words(device)} · {plan.memory_words()}"]
    for phase in plan.phases:
        storage = ", ".join(f"{name} {_slices(way)}" for name, way in phase.held.items())
        lines.append(f"  {phase.name:8}{sized(phase.memory.total):>8}  {storage}")
    return lines


def _slices(way: Any) -> str:
    return f"{way}, {way.at_once} at once" if way.at_once > 1 else str(way)


def _show_plan(plan: PhasesPlan, device: Device, json: bool) -> None:
    from rung.cli.views.output import print_json

    if json:
        print_json(plan.to_json())
    else:
        print(*plan_lines(plan, device), sep="\n")
