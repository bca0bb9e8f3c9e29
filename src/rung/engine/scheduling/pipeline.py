"""Steps of a model whose layers lie on several machines: while one has some sequences, the others have others.

The sequences that take part are cut into as many parts as there are machines. A part is sent when its tokens are known,
and waited for when all parts are under way: each machine then computes one of them, where they take equally long.
Batches come to every machine in one order, so a block that was given back may be taken at once.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from rung.core.errors import RungError
from rung.engine.scheduling.scheduler import Part, SampleRows, Scheduler, takes_part
from rung.engine.scheduling.sequence import Sequence
from rung.formats.codec import Floats


class _Flight(NamedTuple):
    """A step that is under way: its parts, what waits for its logits, and when it began."""

    batch: list[Part]
    finish: Callable[[], Floats]
    begun: float


class PipelineScheduler(Scheduler):
    """A scheduler with several steps under way at once; the ``backend`` has ``depth`` and ``submit``."""

    def __init__(self, backend: Any, sample: SampleRows) -> None:
        super().__init__(backend, sample)
        self._pipe = backend
        self._flights: deque[_Flight] = deque()
        self._flying: set[Sequence] = set()
        self._landed = 0.0

    def _rests(self, sequence: Sequence) -> bool:
        return sequence not in self._flying

    def _active(self) -> list[Sequence]:
        """Return the sequences that rest, and of those as many as are the share of a machine: the first that came."""
        everybody = [each for each in self._running if takes_part(each) or each in self._flying]
        share = -(-len(everybody) // self._pipe.depth)
        return [each for each in everybody if each not in self._flying][:share]

    def _mend(self) -> None:
        """Forget steps that are under way, and all that was computed.

        Of a batch that failed nobody knows which machines have written its keys and values, and copied its blocks.
        """
        while self._flights:
            with contextlib.suppress(RungError):  # the first batch of a lost machine has raised it
                self._flights.popleft().finish()  # nothing is written any more behind the next step
        self._flying.clear()
        super()._mend()
        for sequence in list(self._running):
            self.preempt(sequence)
        self._pipe.prefixes.clear()

    def _step(self) -> bool:
        """Give caches to those who wait, send what can be computed, and take what the oldest step gave."""
        self._sweep()
        if self._admit():
            return True
        while len(self._flights) < self._pipe.depth and (batch := self._batch()):
            begun = time.perf_counter()
            self._flying |= {part.sequence for part in batch}
            parts = [(part.cache, part.ids, part.logits, part.states) for part in batch]
            self._flights.append(_Flight(batch, self._pipe.submit(parts), begun))
        if not self._flights:
            return False
        self._land(self._flights.popleft())
        return True

    def _land(self, flight: _Flight) -> None:
        """Wait for a step, and let its sequences take what was computed."""
        logits = flight.finish()
        now = time.perf_counter()
        for part, outcome in zip(flight.batch, self._choose(flight.batch, logits), strict=True):
            self._take(part, outcome)
        self._flying -= {part.sequence for part in flight.batch}
        self._speculator.follow([(part.sequence, len(part.ids)) for part in flight.batch])
        seconds = now - max(flight.begun, self._landed)
        self._landed = now
        self._measure(flight.batch, 0.0, seconds, time.perf_counter() - now)
