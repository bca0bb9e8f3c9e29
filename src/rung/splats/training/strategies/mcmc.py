"""Growth as in 3D Gaussian Splatting as Markov Chain Monte Carlo (Kheradmand et al., 2024, arXiv:2404.09591).

Splats that have gone out move to where others are, new ones come up to a cap, and noise lets those of little opacity
wander. Constants are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rung.ops.rasterize import Camera, Picture
from rung.ops.rasterize.projecting import rotations
from rung.splats.training.model import Model
from rung.splats.training.settings import PUBLISHED, Beat
from rung.splats.training.strategies.relocation import COPIES, DEAD, divided

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
