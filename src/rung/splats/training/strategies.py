"""Growth of splats while they are trained: adaptive density control, and Markov chain Monte Carlo."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rung.ops.rasterize import Camera, Picture
from rung.ops.rasterize.projecting import rotations
from rung.splats.training.model import Model
from rung.splats.training.settings import PUBLISHED, Beat

#: The least opacity of a splat that shows; the paper's.
DEAD = 0.005
#: More copies than these of one splat count as these.
COPIES = 51


def divided(opacities: Tensor, scales: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Opacities [N] and scales [N, 3] with which so many copies [N] of a splat look as it did: equation 9.

    In float64, because its sums alternate; on the host where the device, as Apple's, has none.
    """
    if opacities.device.type == "mps":
        faint, small = divided(opacities.cpu(), scales.cpu(), copies.cpu())
        return faint.to(opacities.device), small.to(opacities.device)
    each = 1 - (1 - opacities.double()).pow(1 / copies)
    weights = torch.zeros_like(each)
    power = torch.ones_like(each)
    for k in range(int(copies.max()) if len(copies) else 0):
        power = power * each
        # the sum over i of C(i, k), i from k to copies - 1, is C(copies, k + 1)
        ways = torch.tensor([math.comb(n, k + 1) for n in range(COPIES + 1)], dtype=torch.float64, device=each.device)
        weights += (-1) ** k * ways[copies] * power / math.sqrt(k + 1)
    factor = opacities.double() / weights
    kept = each.clamp(DEAD, 1 - torch.finfo(torch.float32).eps)
    return kept.float(), (scales.double() * factor[:, None]).float()


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """[N, 3, 3] of splats with quaternions [N, 4] as (w, x, y, z) and standard deviations [N, 3]."""
    axes = rotations(quats) * scales[:, None, :]
    return axes @ axes.mT


#: Mean gradient of a center in the picture, whose sides go from -1 to 1, above which a splat is one of too few.
_PULL = 2e-4
_FAINT = 0.005
#: Shares of the cameras' extent: above the first a splat is divided and not copied, above the second dropped.
_LARGE, _TOO_LARGE = 0.01, 0.1
_SMALLER = 1.6
_RESET = 3000 / PUBLISHED
#: Steps that opacities which begin anew need to come back, at the least.
_RECOVERS = 500


class Classic:
    """See the module; ``cap`` is the most splats there may be."""

    init_opacity, init_scale = 0.1, 1.0

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._grow = Beat(100 / PUBLISHED, 500 / PUBLISHED, 15_000 / PUBLISHED)
        self._reset = Beat(_RESET, 0, 15_000 / PUBLISHED, _RECOVERS)
        self._last = self._last_reset = 0
        self._pulls, self._visible_counts = torch.zeros(0), torch.zeros(0)

    def cost(self, opacities: Tensor, scales: Tensor) -> Tensor:
        """Nothing is added to the loss."""
        return opacities.new_zeros(())

    def screen(self, count: int, device: torch.device) -> Tensor | None:
        """Where the gradient of centers in the picture's plane goes."""
        return torch.zeros(count, 2, device=device, requires_grad=True)

    def watch(self, screen: Tensor | None, picture: Picture, camera: Camera) -> None:
        """Adds what a step pulled at splats."""
        assert screen is not None
        assert screen.grad is not None
        if len(self._pulls) != len(screen):
            self._pulls, self._visible_counts = (torch.zeros(len(screen), device=screen.device) for _ in range(2))
        half = torch.tensor([camera.width / 2, camera.height / 2], device=screen.device)
        self._pulls += (screen.grad * half).norm(dim=1)
        self._visible_counts += (picture.radii > 0).all(dim=1)

    @torch.no_grad()
    def change(self, model: Model, step: int, before: float, done: float, rate: float, chance: torch.Generator) -> None:
        """After a step: grows and drops splats when it is time to, and lets opacities begin anew."""
        if self._grow.falls(step, before, done, self._last):
            self._last = step
            self._growing(model, chance)
            self.drop(model, done)
            self._pulls = torch.zeros(0)
        if self._reset.falls(step, before, done, self._last_reset):
            self._last_reset = step
            logits = model.values["logits"]
            logits.clamp_(max=float(torch.tensor(2 * _FAINT).logit()))
            model.forget(torch.arange(len(model), device=model.device), "logits")

    def _growing(self, model: Model, chance: torch.Generator) -> None:
        pulls = self._pulls / self._visible_counts.clamp_min(1)
        room = self._cap - len(model)
        growing = (pulls > _PULL).nonzero()[:, 0]
        if len(growing) > room:  # those that are pulled at most
            growing = growing[torch.argsort(pulls[growing], descending=True, stable=True)[: max(room, 0)]].sort().values
        if not len(growing):
            return
        large = model.values["log_scales"].detach()[growing].exp().amax(dim=1) > _LARGE
        copied, divided = growing[~large], growing[large]
        stays = torch.ones(len(model), dtype=torch.bool, device=model.device)
        stays[divided] = False
        fresh = len(copied) + 2 * len(divided)
        model.choose(torch.cat([stays.nonzero()[:, 0], copied, divided, divided]), fresh=fresh)
        self._scatter(model, 2 * len(divided), chance)

    def _scatter(self, model: Model, count: int, chance: torch.Generator) -> None:
        """The last ``count`` splats go to random places of their own shape, and are smaller."""
        rows = torch.arange(len(model) - count, len(model), device=model.device)
        means, quats, logs = (model.values[name].detach()[rows] for name in ("means", "quats", "log_scales"))
        offsets = torch.randn(means.shape, generator=chance, device=model.device) * logs.exp()
        moved = means + torch.einsum("nij,nj->ni", rotations(quats), offsets)
        model.replace(rows, means=moved, log_scales=(logs.exp() / _SMALLER).log())

    def drop(self, model: Model, done: float) -> None:
        v = model.values
        good = ~(v["logits"].sigmoid() < _FAINT)  # what is no number stays, so that it is found
        if done > _RESET:
            good &= ~(v["log_scales"].exp().amax(dim=1) > _TOO_LARGE)
        if not bool(good.all()):
            model.choose(good.nonzero()[:, 0])

    def state(self) -> dict[str, Tensor | int]:
        """Return the state for a checkpoint, without the model."""
        result: dict[str, Tensor | int] = {"last": self._last, "last_reset": self._last_reset}
        return {**result, "pulls": self._pulls.cpu(), "seen": self._visible_counts.cpu()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Goes on from ``state``."""
        self._last, self._last_reset = int(state["last"]), int(state["last_reset"])
        self._pulls, self._visible_counts = state["pulls"], state["seen"]


_GROWTH = 1.05
_NOISE, _SHARPNESS, _WANDERS = 5e5, 100.0, 0.005
_OPACITY_COST, _SCALE_COST = 0.01, 0.01


def drawn(weights: Tensor, number: int, chance: torch.Generator) -> Tensor:
    """So many indexes [number], each as often as its weight [N] says; one may come again.

    ``torch.multinomial`` takes no more than 2^24 weights. In float64, which tells so many apart; on the host where the
    device, as Apple's, has none.
    """
    bare = weights.device.type == "mps"
    kind = torch.float32 if bare else torch.float64
    uniform = torch.rand(number, generator=chance, device=weights.device, dtype=kind)
    if bare:
        weights, uniform = weights.cpu(), uniform.cpu()
    ends = weights.double().cumsum(0)
    found = torch.searchsorted(ends, uniform.double() * ends[-1], right=True).clamp_max(len(ends) - 1)
    return found.to(chance.device)


class MarkovChain:
    """See the module; ``cap`` is the most splats there may be."""

    init_opacity, init_scale = 0.5, 1.0

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._beat = Beat(100 / PUBLISHED, 500 / PUBLISHED, 25_000 / PUBLISHED)
        self._last = 0

    def cost(self, opacities: Tensor, scales: Tensor) -> Tensor:
        """Return the penalty that is added to the loss: opaque and large splats cost, so that useless ones vanish."""
        return _OPACITY_COST * opacities.mean() + _SCALE_COST * scales.mean()

    def screen(self, count: int, device: torch.device) -> Tensor | None:
        """No gradient in the picture's plane is asked for."""
        return None

    def watch(self, screen: Tensor | None, picture: Picture, camera: Camera) -> None:
        """Nothing is gathered from step to step."""

    def change(self, model: Model, step: int, before: float, done: float, rate: float, chance: torch.Generator) -> None:
        """After a step: moves and adds splats when it is time to, and lets all of them wander."""
        if self._beat.falls(step, before, done, self._last):
            self._last = step
            self._relocate(model, chance)
            self.add_splats(model, chance)
        self._wander(model, rate, chance)

    def _relocate(self, model: Model, chance: torch.Generator) -> None:
        opacities = model.values["logits"].detach().sigmoid()
        dead, alive = (opacities <= DEAD).nonzero()[:, 0], (opacities > DEAD).nonzero()[:, 0]
        if not len(dead) or not len(alive):
            return
        sources = alive[drawn(opacities[alive], len(dead), chance)]
        self._divide(model, sources)
        model.replace(dead, **{name: value.detach()[sources] for name, value in model.values.items()})
        model.forget(torch.cat([dead, sources]))

    def add_splats(self, model: Model, chance: torch.Generator) -> None:
        more = min(self._cap, int(_GROWTH * len(model)) + 1) - len(model)
        opacities = model.values["logits"].detach().sigmoid()
        # what is no number is left to Trainer.check
        if more <= 0 or not float(opacities.sum()) > 0:
            return
        sources = drawn(opacities, more, chance)
        self._divide(model, sources)
        model.choose(torch.cat([torch.arange(len(model), device=model.device), sources]), fresh=more)

    def _divide(self, model: Model, sources: Tensor) -> None:
        """Makes splats so faint and small that with one copy for each mention they look as before."""
        copies = (torch.bincount(sources, minlength=len(model))[sources] + 1).clamp_max(COPIES)
        opacities = model.values["logits"].detach()[sources].sigmoid()
        faint, small = divided(opacities, model.values["log_scales"].detach()[sources].exp(), copies)
        model.replace(sources, logits=faint.logit(), log_scales=small.log())

    @torch.no_grad()
    def _wander(self, model: Model, rate: float, chance: torch.Generator) -> None:
        """Noise of each splat's own shape, little for those that are opaque."""
        v = model.values
        noise = torch.randn(v["means"].shape, generator=chance, device=model.device)
        share = torch.sigmoid(_SHARPNESS * (_WANDERS - v["logits"].sigmoid()))
        axes = rotations(v["quats"]) * v["log_scales"].exp()[:, None, :]
        along = torch.einsum("nji,nj->ni", axes, noise * share[:, None])
        v["means"].add_(torch.einsum("nij,nj->ni", axes, along), alpha=_NOISE * rate)

    def state(self) -> dict[str, Tensor | int]:
        """Return the state for a checkpoint, without the model."""
        return {"last": self._last}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Goes on from ``state``."""
        self._last = int(state["last"])
