"""Where pictures of views go in a folder, by the names of their photographs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath


def stems(names: Sequence[str]) -> list[PurePosixPath]:
    """For each photograph a path without a suffix of its own, all different, which cannot lead out of a folder.

    The photograph's subfolders and stem; with its suffix where stems alone would be the same, with a number where names
    are the same.
    """
    paths = [_inside(name) for name in names]
    for found in ([path.with_suffix("") for path in paths], paths):
        if len(set(found)) == len(found):
            return found
    taken = dict[PurePosixPath, None]()
    for path in paths:
        place, number = path, 1
        while place in taken:
            number += 1
            place = path.with_name(f"{path.name}-{number}")
        taken[place] = None
    return list(taken)


def _inside(name: str) -> PurePosixPath:
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("..", "/")]
    return PurePosixPath(*parts or ["photograph"])
