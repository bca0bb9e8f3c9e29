"""The loop: a picture, its gradient, a step, again; and what is done when that goes wrong.

What is random at a step comes of the seed and the step's number alone, so that a run which was stopped and goes on
does what it would have done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rung.core.errors import RungError
from rung.models.card import View
from rung.nn.quantized import binding
from rung.ops.rasterize import NEAR, Camera, Picture
from rung.splats.cloud import Cloud
from rung.splats.photographs import Photographs, transparent
from rung.splats.training import settings
from rung.splats.training.checkpoint import Checkpoint, pack, unpack
from rung.splats.training.loss import photometric
from rung.splats.training.model import Corrections, Model
from rung.splats.training.normalization import World
from rung.splats.training.settings import Settings
from rung.splats.training.strategies import DEAD, Classic, MarkovChain
from rung.splats.training.view_check import differs

Strategy = MarkovChain | Classic
STRATEGIES: dict[str, type[MarkovChain] | type[Classic]] = {"mcmc": MarkovChain, "classic": Classic}


class Diverged(RungError):
    """The loss is no number any more."""

    code = "splats-diverged"


class AllGone(RungError):
    """No splat is left that shows."""

    code = "splats-all-pruned"


@dataclass(frozen=True)
class Material:
    """Hold what is trained on: ``train`` are indexes of ``views`` and of ``photographs``."""

    views: Sequence[View]
    photographs: Photographs
    train: tuple[int, ...]
    world: World


@dataclass(frozen=True)
class StepStats:
    """Hold what a step showed: the loss, and the PSNR of its picture."""

    loss: float
    psnr: float


class Trainer:
    """A run in memory; ``step`` counts steps that are done, ``elapsed`` the seconds of training behind them."""

    def __init__(
        self,
        model: Model,
        material: Material,
        settings: Settings,
        strategy: Strategy,
        course: settings.Course,
        on_note: Callable[[str], None],
        location: str | torch.device,
    ) -> None:
        """``location`` is where splats are drawn, see ``rung.nn.quantized.binding.Location``."""
        self.model, self.strategy, self.course = model, strategy, course
        self.step, self.elapsed, self._done = 0, 0.0, 0.0
        self._ticked: float | None = None
        self._material, self._settings, self._note, self._location = material, settings, on_note, location
        self._ground = settings.ground()
        self.corrections = Corrections(len(material.views), settings.exposure, settings.optimize_poses, model.device)
        self._poses = [torch.from_numpy(material.world.pose(view)).to(model.device) for view in material.views]

    @property
    def done(self) -> float:
        """Share of the run that is behind."""
        return self._done

    @property
    def degree(self) -> int:
        """Return the degree of the harmonics that are learned by now."""
        return settings.degree(self._done, self._settings.sh_degree)

    @property
    def drawn(self) -> int | None:
        """The degree that the rung is given: None where it is given colors."""
        return None if self.model.lean else self.degree

    def camera(self, index: int) -> Camera:
        """Return the camera of that view, in the space of training."""
        view = self._material.views[index]
        near = NEAR / self._material.world.extent
        return Camera(
            *(view.width, view.height, view.fx, view.fy, view.cx, view.cy),
            *(self.degree, self._settings.antialiased, near),
        )

    def index(self, step: int) -> int:
        """The photograph of a step: all of them in a new order each time."""
        train = self._material.train
        turn, position = divmod(step, len(train))
        return int(train[np.random.default_rng((self._settings.seed, turn)).permutation(len(train))[position]])

    def prove(self) -> None:
        """Leaves rungs that draw the first view in another way than ``ref`` does: some go wrong only at real size."""
        index = self.index(self.step)
        camera = self.camera(index)._replace(degree=self._settings.sh_degree)
        pose = self._poses[index]
        splats, camera = self.model.splats(camera, pose)
        while (draw := binding.rasterizer(self._location, camera.degree, camera.antialiased)).rung.name != "ref":
            try:
                wrong = differs(draw, splats, pose, camera)
            except RungError:
                raise
            except Exception as error:
                draw.step_down(error)
                continue
            if not wrong:
                return
            binding.distrust_rasterizer(self._location, camera.degree, camera.antialiased, wrong)

    def tick(self) -> None:
        """Counts the time since the last tick as training, whatever it went into; the first one only begins."""
        now = time.perf_counter()
        self.elapsed += 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now

    def advance(self) -> StepStats:
        """One step. Raises ``Diverged`` when its loss is no number."""
        index, before = self.index(self.step), self._done
        self._material.photographs.expect(self.index(self.step + 1))
        chance = torch.Generator(self.model.device).manual_seed(self._settings.seed * 1_000_003 + self.step)
        picture = self.learn(index, chance)
        rates = settings.rates(before, self.course.steps)
        self.model.step(rates, self.degree)
        self.corrections.step(before, self.step + 1)
        self.step += 1
        self.tick()
        self._done = self.course.done(self.step, self.elapsed)
        self.strategy.change(self.model, self.step, before, self._done, rates["means"], chance)
        if not len(self.model):
            self.check()
        return picture

    def learn(self, index: int, chance: torch.Generator) -> StepStats:
        """Compute gradients of one photograph; again on the rung below when the one that draws fails."""
        camera = self.camera(index)
        draw = binding.rasterizer(self._location, self.drawn, camera.antialiased)
        begin = chance.get_state()
        while True:
            chance.set_state(begin)
            try:
                return self._gradients(draw, index, camera, chance)
            except RungError:
                raise
            except Exception as error:
                draw.step_down(error)
                for value in (*self.model.values.values(), *self.corrections.values.values()):
                    value.grad = None

    def _gradients(
        self, draw: Callable[..., Picture], index: int, camera: Camera, chance: torch.Generator
    ) -> StepStats:
        pose = self.corrections.moved(index, self._poses[index])
        splats, visible = self.model.splats(camera, pose)
        screen = self.strategy.screen(len(self.model), self.model.device)
        picture = draw(splats, pose, visible, screen)
        color, truth = self._compared(index, picture, chance)
        loss = photometric(color, truth)
        cost = loss + self.strategy.cost(splats.opacities, splats.scales)
        cost.backward()
        self.strategy.watch(screen, picture, camera)
        value = float(cost.detach())
        if not math.isfinite(value):
            raise Diverged(f"The loss of step {self.step + 1} is no number (NaN or infinite).")
        error = float((color.detach() - truth).square().mean())
        return StepStats(value, -10 * math.log10(max(error, 1e-10)))

    def _compared(self, index: int, picture: Picture, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        """The picture on its background and the photograph, [H, W, 3] from 0 to 1."""
        shot, device = self._material.photographs.shot(index), self.model.device
        truth = torch.from_numpy(shot.rgb).to(device).float().div_(255)
        ground = torch.rand(3, generator=chance, device=device)
        if self._ground is not None:
            ground = torch.tensor(self._ground, device=device)
        color = self.corrections.exposed(index, picture.color)
        if self._ground is None or any(self._ground):
            color = color + (1 - picture.alpha[..., None]) * ground
        if shot.alpha is not None:
            share = torch.from_numpy(shot.alpha).to(device)[..., None]
            if transparent(self._settings.alpha, self._material.views[index]):
                truth = torch.lerp(ground.expand_as(truth), truth, share / 255)
            else:
                color = torch.where(share > 127, color, truth)
        return color, truth

    def check(self) -> None:
        """Raises ``AllGone`` when no splat shows any more, ``Diverged`` when a value that is learned is no number."""
        values = self.model.values
        if not len(self.model) or float(values["logits"].detach().sigmoid().max()) <= DEAD:
            raise AllGone(
                f"After {self.step} steps no splat is left: all have gone out.",
                [
                    "where the photographs show only the background there is nothing to learn",
                    "cameras that look past each other do not agree on anything but that",
                ],
                ["look at the pictures and at what their masks leave open", "--background random", "--alpha masked"],
            )
        for name, value in (*values.items(), *self.corrections.values.items()):
            if not bool(torch.isfinite(value.detach()).all()):
                raise Diverged(f"After {self.step} steps values of {name} are no numbers (NaN or infinite).")

    def cloud(self) -> Cloud:
        """The splats in the input's world."""
        return self._material.world.outer(self.model.cloud())

    def pose(self, index: int) -> tuple[float, ...]:
        """A view's pose as it is now, in the input's world."""
        with torch.no_grad():
            moved = self.corrections.moved(index, self._poses[index])
        return self._material.world.outer_pose(moved.cpu().numpy())

    def state(self) -> Checkpoint:
        """All that a run needs to go on."""
        facts = {"step": self.step, "elapsed": self.elapsed, "done": self._done, "taken": self.model.taken}
        arrays = pack(model=self.model.state(), strategy=self.strategy.state(), corrections=self.corrections.state())
        return Checkpoint(arrays, facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on from ``state``."""
        device, facts = self.model.device, checkpoint.facts
        self.model = model_of(checkpoint, device)
        self.strategy.restore(
            {name: torch.from_numpy(value).to(device) for name, value in unpack(checkpoint.arrays, "strategy").items()}
        )
        self.corrections.restore(unpack(checkpoint.arrays, "corrections"))
        self.step, self.elapsed, self._done = facts["step"], facts["elapsed"], facts["done"]


def model_of(checkpoint: Checkpoint, device: torch.device) -> Model:
    """The splats of a checkpoint, as they are learned."""
    return Model.of_state(unpack(checkpoint.arrays, "model"), checkpoint.facts["taken"], device)
