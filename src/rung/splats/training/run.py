"""``rung splat train``: a run in its folder, from the scene to the metrics; stopped or killed, it goes on."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rung.core.errors import RungError
from rung.core.text import count, duration
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.engine.planning import device_here
from rung.kernels.webgpu import tensor_device
from rung.models.card import SceneCard, View
from rung.nn.quantized import binding
from rung.planning.request import parse_memory
from rung.run.torch_device import location
from rung.splats import demo
from rung.splats.evaluate import evaluate
from rung.splats.export import Edits, Export
from rung.splats.photographs import Photographs, as_stored, split, transparent
from rung.splats.planning import SplatPlan, plan
from rung.splats.render import stems
from rung.splats.scenes import scene, sfm
from rung.splats.scenes.colmap import points_of
from rung.splats.trained import EXPORTS, SPLATS, trained
from rung.splats.training import checkpoint
from rung.splats.training.folder import PAGE, Interrupt, Outcome, claim, finished_before, left_free
from rung.splats.training.initialization import first_splats
from rung.splats.training.model import Model
from rung.splats.training.normalization import around
from rung.splats.training.settings import Course, Settings
from rung.splats.training.trainer import STRATEGIES, Diverged, Material, Trainer, model_of
from rung.splats.viewers import live

#: Seconds between two checkpoints: with the writing of one, no more than 60 of work are lost.
_SAVE = 45.0
#: Pictures whose PSNR is shown as one, and steps between two lines of the log at the most.
_RECENT, _LOG = 50, 50
#: Seconds of training that a deadline always leaves.
_LEAST = 30.0


@dataclass(frozen=True)
class Progress:
    """How a run stands: ``left`` are seconds, ``psnr`` the mean of the last training pictures."""

    step: int
    done: float
    left: float
    loss: float
    psnr: float
    splats: int


@dataclass(frozen=True)
class ProgressListener:
    """Hold who hears: sentences, and how the run stands."""

    note: Callable[[str], None] = lambda text: None
    progress: Callable[[Progress], None] = lambda now: None


@dataclass(frozen=True)
class Result:
    """Hold what a run came to; ``metrics`` are those of ``metrics.json``, empty when it was ``stopped`` by Ctrl-C."""

    steps: int
    metrics: dict[str, Any]
    stopped: bool


def train(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    typed: Collection[str] | None = None,
    listener: ProgressListener | None = None,
    device: str | None = None,
    begin: float | None = None,
    view: bool = False,
) -> Result:
    """Trains splats on a scene and leaves what came of it in the folder ``out``.

    ``resume`` goes on after the last checkpoint; of the settings those ``typed`` by name must be the run's, by default
    all that are not at their default. ``device`` is the one to compute on where that of the settings is
    a simulated one, ``begin`` when on ``time.monotonic`` a deadline began, by default now. ``view`` shows it in the
    browser. Raises ``UsageError`` for options that do not fit and a folder that holds something else, ``BadFile``,
    ``DoesNotFit``, ``DiskFull``, ``Diverged``, ``AllGone``.
    """
    begin = time.monotonic() if begin is None else begin
    progress = listener or ProgressListener()
    settings.check()
    planning.need_software()
    if view:
        live.need_viser()
    settings, kept_plan = claim(out, settings, resume, typed)
    finished = finished_before(out)
    if finished is not None:
        progress.note(f"{out} is finished: {count(finished['steps'], 'step')}.")
        return Result(finished["steps"], finished, False)
    torch.set_num_threads(planning.compute_threads(settings.threads))
    with left_free(out, resume, progress.note):
        return _Run(settings, out, kept_plan, progress, begin, device).go(view)


def _planned_words(plan: SplatPlan, device: Device, requested_seconds: float | None) -> str:
    """Return where a run trains, what is planned, and how long the training takes, before its first step."""
    size_words = f"up to {plan.splats:,} splats, pictures of up to {plan.width} x {plan.height}"
    if requested_seconds is None:
        return f"{device.name}: {size_words}, {plan.steps:,} steps, about {duration(plan.seconds)}"
    whole = f"{duration(requested_seconds)} in all, with loading, tests and files beside the training"
    return f"{device.name}: {size_words}, {whole}"


class _Run:
    """One run, from its settings to its result."""

    def __init__(
        self,
        settings: Settings,
        out: Path,
        planned: SplatPlan | None,
        progress: ProgressListener,
        begin: float,
        device_name: str | None,
    ) -> None:
        self._settings, self._out, self._progress, self._begin = settings, out, progress, begin
        self._outcome, self._interrupt = Outcome(out), Interrupt()
        self._sought = settings.sfm or sfm.is_video(Path(settings.scene))
        card = None if self._sought else self._card(planned)  # before the device, whose probes take long
        device = device_here(device_name or settings.device, progress.note, True)
        card = card or self._card(planned)
        self._plan = planned or self._planned(card, device)
        if planned is None:
            self._outcome.config(settings, self._plan)
        self._location = location(device.id)
        shots = Photographs(card, self._plan.cache_bytes, max(self._plan.width, self._plan.height))
        for note in (*card.notes, *shots.notes):
            progress.note(note)
        self._train, self._test = split(shots.views, settings.eval_split)
        self._views, self._shots = shots.views, shots
        self._trainer = self._begun(card)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def _tensors(self) -> torch.device:
        """Where torch has what is learned."""
        return torch.device(tensor_device(self._location))

    def _card(self, planned: SplatPlan | None) -> SceneCard:
        settings, scene_folder = self._settings, self._out / "scene"
        source, images = Path(settings.scene), settings.images
        if planned is None:
            self._outcome.config(settings, None)  # what comes now may take long: killed meanwhile, the run can go on
        try:
            if settings.scene == "demo":
                source = scene_folder
                if not (scene_folder / "transforms.json").is_file():
                    demo.make(scene_folder)
            elif self._sought:
                threads = planning.compute_threads(settings.threads)
                source, images = (
                    sfm.posed(Path(images or source), scene_folder, threads=threads, note=self._progress.note),
                    None,
                )
        except OSError as error:
            raise checkpoint.disk_full(self._out, error) from error
        return scene(source, images, subsample=settings.subsample, max_images=settings.max_images)

    def _planned(self, card: SceneCard, device: Device) -> SplatPlan:
        settings = self._settings
        budget = parse_memory(settings.memory)
        small = settings.scene == "demo"
        new_plan = plan(
            as_stored(card),
            device,
            budget.get(device.id, budget.get("*")),
            max_splats=settings.max_splats or (demo.SPLATS if small else None),
            max_resolution=settings.max_resolution,
            sh_degree=settings.sh_degree,
            steps=settings.steps or (demo.STEPS if small and settings.seconds is None else None),
            seconds=settings.seconds,
            format=settings.format,
        )
        for reason in new_plan.reasons:
            self._progress.note(reason)
        self._progress.note(_planned_words(new_plan, device, settings.seconds))
        return new_plan

    def _begun(self, card: SceneCard) -> Trainer:
        """The run at its beginning, or where its last checkpoint stands."""
        settings = self._settings
        world = around(self._views, points_of(card)[0])
        strategy = STRATEGIES[settings.strategy](self._plan.splats)
        kept = checkpoint.newest(self._out)
        if kept is None:
            shots, notify = self._shots, self._progress.note
            first = first_splats(settings, card, shots, self._train, world, strategy, self._plan.splats, notify)
            planning.give_back()  # what comparing pictures took
            model = Model(first, self._tensors, self._plan.state, self._plan.harmonics)
        else:
            model = model_of(kept, self._tensors)
        material = Material(self._views, self._shots, self._train, world)
        course = Course(self._plan.steps, settings.seconds)
        trainer = Trainer(model, material, settings, strategy, course, self._progress.note, self._location)
        if kept is not None:
            trainer.restore(kept)
            course.seconds = kept.facts["seconds"]
            binding.leave_rasterizers(self._location, trainer.drawn, settings.antialiased, kept.facts["left"])
            self._outcome.go_on(trainer.step)
            self._progress.note(f"goes on after step {trainer.step:,}")
        return trainer

    def go(self, view: bool) -> Result:
        """Trains to the end, or to Ctrl-C; ``view``: before the eyes of a browser."""
        trainer, outcome = self._trainer, self._outcome
        outcome.cameras(self._cameras())
        trainer.model.prepare()
        trainer.prove()
        if trainer.step == 0:
            trainer.check()
            self._fit_to_deadline()
            self._save()
        with self._interrupt.watching():
            if view:
                with live.of_training(self._cameras(), trainer.cloud(), self._progress.note) as shown:
                    self._loop(shown)
            else:
                self._loop()
        self._save()
        if trainer.done < 1:
            outcome.cameras(self._cameras())
            outcome.curve()
            return Result(trainer.step, {}, True)
        return Result(trainer.step, self._finish(), False)

    def _fit_to_deadline(self) -> None:
        """Leaves time for what comes after training: pictures of the tests, and files."""
        course, limit = self._trainer.course, self._settings.seconds
        if limit is None:
            return
        begin = time.monotonic()
        self._evaluated(self._test[:1])
        one = time.monotonic() - begin if self._test else 0.0
        left = limit - (begin - self._begin) - one - 1.3 * one * len(self._test) - 2.0
        course.seconds = max(left, min(0.5 * limit, _LEAST))
        if left < course.seconds:
            self._progress.note(
                f"trains for {course.seconds:.0f} s though --time leaves less: it takes longer than asked"
            )

    def _loop(self, shown: live.Live | None = None) -> None:
        trainer, settings = self._trainer, self._settings
        saved, again = time.monotonic(), -1
        every, last = settings.checkpoint_every, self._interrupt.requested
        trainer.tick()
        while trainer.done < 1 and not last:
            try:
                step_result = trainer.advance()
                last = trainer.done >= 1 or self._interrupt.requested
                due = trainer.step % every == 0 if every else time.monotonic() - saved > _SAVE
                if last or due or trainer.step % _LOG == 0:
                    trainer.check()
            except Diverged as error:
                if trainer.step <= again:
                    raise self._hopeless(error) from error
                again = trainer.step
                self._back(error)
                last = False
                continue
            self._recent.append(step_result.psnr)
            self._report(step_result.loss)
            if shown:
                trainer.elapsed -= shown.follow(trainer.step, trainer.cloud, lambda: self._interrupt.requested)
            if due:
                self._save()
                saved = time.monotonic()
            if settings.export_every and trainer.step % settings.export_every == 0:
                self._outcome.splats(trainer.cloud(), f"{EXPORTS}/splats-{trainer.step:06d}.ply")
            if settings.eval_every and trainer.step % settings.eval_every == 0 and self._test:
                found = self._evaluated(self._test)
                self._outcome.note({"step": trainer.step, "test_psnr": found["psnr"], "test_ssim": found["ssim"]})

    def _report(self, loss: float) -> None:
        trainer = self._trainer
        psnr, done = statistics.fmean(self._recent), trainer.done
        left = trainer.elapsed * (1 - done) / max(done, 1e-9)
        now = Progress(trainer.step, done, left, loss, psnr, len(trainer.model))
        self._progress.progress(now)
        if trainer.step % _LOG == 0 or trainer.step == 1 or done >= 1:
            line = {"step": now.step, "seconds": round(trainer.elapsed, 3), "loss": loss, "psnr": psnr}
            self._outcome.note({**line, "splats": now.splats, "sh_degree": trainer.degree})

    def _save(self) -> None:
        """A checkpoint and the splats, which have been checked."""
        trainer = self._trainer
        planning.give_back()  # the beginning, its proof and splats that were fewer had arrays of other sizes
        state = trainer.state()
        state.facts |= {"seconds": trainer.course.seconds, "left": binding.left_rasterizers(self._location)}
        checkpoint.save(self._out, state)
        self._outcome.splats(trainer.cloud())

    def _back(self, error: RungError) -> None:
        """Back to the last checkpoint, on the rung below the one that drew what is no number."""
        kept = checkpoint.newest(self._out)
        assert kept is not None  # one was written before the first step
        binding.distrust_rasterizer(self._location, self._trainer.drawn, self._settings.antialiased, error.cause)
        self._trainer.restore(kept)
        self._outcome.go_on(self._trainer.step)
        self._progress.note(f"{error.cause} Back to step {self._trainer.step:,}, one rung lower.")

    def _hopeless(self, error: RungError) -> RungError:
        return Diverged(
            error.cause,
            ["it came back on another rung, so it is in the numbers and not in the device"],
            [f"the last good state is in {self._out / SPLATS}", "another --seed", "--strategy mcmc, where it is not"],
        )

    def _cameras(self) -> list[View]:
        """All cameras as they are now; ``split`` is train, test, or empty for what is neither."""
        moved = set(self._train) if self._settings.optimize_poses else set()
        parts = {**dict.fromkeys(self._train, "train"), **dict.fromkeys(self._test, "test")}
        return [
            replace(view, split=parts.get(index, ""), pose=self._trainer.pose(index) if index in moved else view.pose)
            for index, view in enumerate(self._views)
        ]

    def _evaluated(self, indexes: tuple[int, ...], see: Callable[..., None] | None = None) -> dict[str, Any]:
        settings = self._settings
        options = {"see": see} if see else {}
        return evaluate(
            self._trainer.cloud(),
            self._views,
            self._shots,
            indexes,
            background=settings.ground() or (0.0, 0.0, 0.0),
            transparent=lambda view: transparent(settings.alpha, view),
            antialiased=settings.antialiased,
            device=self._location,
            **options,
        )

    def _finish(self) -> dict[str, Any]:
        trainer, outcome = self._trainer, self._outcome
        names = iter(stems([self._views[index].name for index in self._test]))
        found = self._evaluated(self._test, lambda view, picture, truth: outcome.picture(next(names), picture, truth))
        if self._test:
            outcome.note({"step": trainer.step, "test_psnr": found["psnr"], "test_ssim": found["ssim"]})
        outcome.cameras(self._cameras())
        outcome.curve()
        if self._settings.scene == "demo":  # a newcomer shall see something
            Export([trained(self._out)], Edits()).save(self._out / PAGE)
        here = self._tensors.type == "cpu"
        peak = planning.peak_memory() if here else torch.cuda.max_memory_reserved(self._tensors)
        predicted = FrozenDict({"memory": float(self._plan.peak), "steps_per_second": self._plan.steps_per_second})
        largest = max(self._views, key=lambda view: view.width * view.height)
        speed = trainer.step / max(trainer.elapsed, 1e-9)
        report = binding.journal.report(predicted, FrozenDict({"memory": float(peak), "steps_per_second": speed}))
        metrics = {
            "steps": trainer.step,
            "seconds": round(trainer.elapsed, 3),
            "splats": len(trainer.model),
            "sh_degree": self._settings.sh_degree,
            "width": largest.width,
            "height": largest.height,
            **{name: found[name] for name in ("psnr", "ssim", "lpips", "images")},
            "peak_memory_bytes": peak,
            "ply": str(self._out / SPLATS),
            "plan": self._plan.to_json(),
            "report": report.to_json(),
        }
        outcome.metrics(metrics)
        return metrics
