"""A trained scene, edited, as a file of another format, and what the pictures lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rung.core.errors import UsageError
from rung.core.files import write_whole, writing
from rung.models.card import View
from rung.splats import cameras, edit
from rung.splats.cloud import Cloud
from rung.splats.evaluate import psnr
from rung.splats.files import read, suffix, write
from rung.splats.render import Painter, color, eight_bits
from rung.splats.trained import Trained
from rung.splats.viewers.page import page

PAGE = ".html"
#: At most so many of a run's cameras measure the loss, evenly among them; without cameras so many views of an orbit.
_CAMERAS, _ORBIT = 32, 8


@dataclass(frozen=True)
class Edits:
    """In this order: ``crop`` (x0, y0, z0, x1, y1, z1 of the source), ``move``; then what takes away: splats below
    ``prune_opacity``, all but ``max_splats``, harmonics above ``sh_degree``."""

    crop: tuple[float, ...] | None = None
    move: edit.Move = field(default_factory=edit.Move)
    prune_opacity: float | None = None
    max_splats: int | None = None
    sh_degree: int | None = None


class Export:
    """Sources put together and edited: ``whole`` is what shall be seen, ``cloud`` what is left of it to be written,
    ``views`` are the cameras of the runs, moved with them.

    Raises ``UsageError`` when nothing is left.
    """

    def __init__(self, sources: Sequence[Trained], edits: Edits) -> None:
        self._first = sources[0]
        merged = edit.merged([source.cloud for source in sources])
        self.read = len(merged.means)
        whole = merged if edits.crop is None else edit.cropped(merged, edits.crop[:3], edits.crop[3:])
        self.whole = edit.moved(whole, edits.move)
        self.cloud = self._thinned(edits)
        if not len(self.cloud.means):
            raise _nothing_left(merged)
        self.views = tuple(
            replace(edit.moved_view(view, edits.move), lens="pinhole", bend=())
            for each in sources
            for view in each.views
        )

    def _thinned(self, edits: Edits) -> Cloud:
        cloud = self.whole
        if edits.prune_opacity is not None:
            cloud = edit.pruned(cloud, edits.prune_opacity)
        if edits.max_splats is not None:
            cloud = edit.weightiest(cloud, edits.max_splats)
        return cloud if edits.sh_degree is None else edit.lowered(cloud, edits.sh_degree)

    def save(self, out: Path) -> None:
        """Writes the file whole or not at all; raises ``UsageError``, ``CannotEncode``, ``DiskFull``."""
        with writing(out):
            if out.suffix.lower() == PAGE:
                ground, sharp = color(self._first.background), self._first.antialiased
                training = [view for view in self.views if view.split == "train"]
                write_whole(
                    out, page(self.cloud, training, background=ground, antialiased=sharp, title=page_title(out))
                )
            else:
                write(out, self.cloud)

    def loss(self, out: Path) -> tuple[float, int]:
        """PSNR in dB (at most 100) of pictures of the saved file against those of ``whole``, the mean over views, and
        how many views: of a page it is that of the splats that went into it."""
        after = self.cloud if out.suffix.lower() == PAGE else read(out)
        views: Sequence[View] = self.views[:: -(-len(self.views) // _CAMERAS) or 1]
        views = views or cameras.orbit((), self.whole, _ORBIT)
        ground = color(self._first.background)
        painters = [Painter(cloud, antialiased=self._first.antialiased) for cloud in (self.whole, after)]
        found = [psnr(*(eight_bits(painter.paint(view, ground)[0]) for painter in painters)) for view in views]
        return sum(found) / len(found), len(found)


def page_title(out: Path) -> str:
    """Return the title of a page: its name, or its folder's where it is called as every run calls it."""
    return out.absolute().parent.name if out.name == "page.html" else out.stem


def _nothing_left(merged: Cloud) -> UsageError:
    if not len(merged.means):
        return UsageError(
            "The source has no splats.", [], ["rung splat info SRC", "name another file"], code="input-empty"
        )
    low, high = merged.means.min(0), merged.means.max(0)
    return UsageError(
        f"None of the {len(merged.means):,} splats is left.",
        [f"their centers lie from {low} to {high}"],
        ["rung splat info SRC", "a larger --crop, or a lower --prune-opacity"],
    )


def check(sources: Sequence[Path], out: Path) -> None:
    """Before anything is read: raises ``UsageError`` for a name without a format, and for one of the sources."""
    if out.suffix.lower() != PAGE:
        suffix(out, f"{PAGE}: a page that shows it")
    if any(out.exists() and source.exists() and out.samefile(source) for source in sources):
        raise UsageError(
            f"{out} is one of the sources.", [], ["give the new file another name"], code="output-is-input"
        )
