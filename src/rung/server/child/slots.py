"""The places for answers, by number: which conversation each had last, and what is saved of it in files.

Prefixes are in one tree whatever the slot. A slot has the tokens of the last answer that it computed; each key has
slots of its own. Their keys and values are restored and erased between two steps of everybody's answers; they are
written to a file beside the steps, which leave them as they are meanwhile.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

from rung.core.errors import UsageError
from rung.engine.decoder import Decoder, tree_of_key
from rung.engine.model import Model
from rung.engine.scheduling.prefix_files import open_folder
from rung.engine.scheduling.saved_prefixes import SavedPrefixes
from rung.engine.scheduling.sequence import Sequence
from rung.engine.scheduling.stages import SplitDecoder
from rung.server.protocol import ActOnSlot


class _Content(NamedTuple):
    """Content of a slot: the key of the adapter that computed it, and the tokens."""

    adapter: str
    ids: list[int]


class Slots:
    """The slots of a model. ``folder`` is ``DIR`` or ``DIR:SIZE`` for files, empty for none."""

    def __init__(self, model: Model, folder: str) -> None:
        self._model, self._folder = model, folder
        self._contents: dict[tuple[str, int], _Content] = {}
        self._used: dict[int, int] = {}  # when each was used, as a running number
        self._times = itertools.count(1)
        self._writing = threading.Lock()

    def take(self, slot: int | None, taken: Collection[int]) -> int:
        """Return the number of the slot for an answer: the one that it names, else the one that is free for longest."""
        if slot is None:
            numbers = range(self._model.scheduler.parallel)
            free = [number for number in numbers if number not in taken]
            slot = min(free or numbers, key=lambda number: self._used.get(number, 0))
        self._used[slot] = next(self._times)
        return slot

    def check(self, number: int | None) -> None:
        """Raise ``UsageError`` for the number of a slot that is not there."""
        if number is not None and not 0 <= number < self._model.scheduler.parallel:
            raise UsageError(
                f"There is no slot {number}: they go from 0 to {self._model.scheduler.parallel - 1}.",
                code="value-out-of-range",
            )

    def keep(self, number: int, sequence: Sequence) -> None:
        """Let a slot have the tokens of an answer that has ended."""
        backend = self._model.backend
        if isinstance(backend, Decoder):
            adapter = sequence.adapter or backend.default_adapter
            self._contents[sequence.owner, number] = _Content(adapter.key if adapter else "", sequence.ids)

    def act(self, message: ActOnSlot) -> dict[str, Any]:
        """Save, restore or erase a slot; return the counts. Raises ``RungError``."""
        self.check(message.slot)
        backend = self._model.backend
        if not isinstance(backend, Decoder):
            raise UsageError(f"{self._model.card.name} keeps no prefixes.")
        if isinstance(backend, SplitDecoder) and message.action != "erase":
            raise _divided(self._model.card.name, message.action)
        call = {"save": self._save, "restore": self._restore, "erase": self._erase}[message.action]
        started = time.perf_counter()
        found = call(backend, message)
        found["milliseconds"] = 1e3 * (time.perf_counter() - started)
        return found

    def _files(self, decoder: Decoder) -> SavedPrefixes:
        return SavedPrefixes(*open_folder(self._folder, "--slot-save-path"), decoder.identity())

    def _content(self, decoder: Decoder, message: ActOnSlot) -> _Content:
        empty = _Content("", [])
        return self._contents.get((message.owner, message.slot), empty)

    def _save(self, decoder: Decoder, message: ActOnSlot) -> dict[str, Any]:
        between_steps = self._model.scheduler.between_steps
        adapter, ids = self._content(decoder, message)
        pinned = between_steps(partial(decoder.prefixes.pin, ids, tree_of_key(adapter, message.owner)))
        try:
            with self._writing:  # the room that is left is that beside files that are whole
                tokens, count = self._files(decoder).save(pinned.nodes, message.owner, message.name, adapter)
        finally:
            between_steps(partial(decoder.prefixes.unpin, pinned))
        return {"tokens": tokens, "bytes": count}

    def _restore(self, decoder: Decoder, message: ActOnSlot) -> dict[str, Any]:
        tree = partial(tree_of_key, owner=message.owner)
        restore = partial(self._files(decoder).restore, decoder.prefixes, message.owner, message.name, tree)
        adapter, ids, tokens, count = self._model.scheduler.between_steps(restore)
        self._contents[message.owner, message.slot] = _Content(adapter, ids)
        return {"tokens": tokens, "bytes": count}

    def _erase(self, decoder: Decoder, message: ActOnSlot) -> dict[str, Any]:
        content = self._content(decoder, message)
        self._contents.pop((message.owner, message.slot), None)
        erase = partial(decoder.prefixes.erase, content.ids, tree_of_key(content.adapter, message.owner))
        return {"tokens": self._model.scheduler.between_steps(erase)}


def _divided(name: str, action: str) -> UsageError:
    """Return why a slot of a divided model is neither saved nor restored: the keys and values of the layers of other
    machines are not here, and a conversation with those of some layers alone would go on wrong."""
    return UsageError(
        f"A slot of {name} cannot be {action}d: its layers are on several machines.",
        ["keys and values of a conversation are in parts, one on each machine"],
        [
            "rung serve MODEL --slot-save-path DIR   # on a machine that holds all layers",
            "send the conversation again: what is still in memory is not computed again",
        ],
        code="model-divided",
    )
