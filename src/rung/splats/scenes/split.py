"""Which photographs of a scene are trained on, and which are kept for testing."""

from __future__ import annotations

from collections.abc import Sequence

from rung.core.errors import UsageError
from rung.models.card import View


def split(views: Sequence[View], every: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indexes of the training views and of the test views, each in the order of the names.

    Of the names sorted, those whose place is a multiple of ``every`` are tests; 0 for none. Where the data set says
    which are which, it is followed instead, and what it names neither is not used. One view alone is trained on.
    Raises ``UsageError`` where none is left to train on.
    """
    order = sorted(range(len(views)), key=lambda index: views[index].name)
    said = {view.split for view in views} - {""}
    if said:
        # A data set that names only one of the two means the others by the rest.
        parts = {part: part if part in said else "" for part in ("train", "test")}
        train, test = (tuple(i for i in order if views[i].split == parts[part]) for part in ("train", "test"))
    else:
        some = every > 0 and len(order) > 1
        test = tuple(index for place, index in enumerate(order) if some and place % every == 0)
        train = tuple(index for index in order if index not in test)
    if not train:
        raise UsageError(
            "No photograph is left to train on.",
            [f"{len(test)} of {len(views)} are kept for testing"],
            ["keep fewer: --eval-split 8"],
        )
    return train, test
