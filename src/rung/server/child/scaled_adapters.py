"""The adapters that a model was loaded with, in the strengths that requests name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from rung.core.errors import UsageError
from rung.engine.model import Model
from rung.engine.scheduling.adapters import BASE
from rung.models.adapters.roles import path_and_weight

#: Combinations of strengths that are kept, each with the memory of its adapters.
_KEPT = 4


class ScaledAdapters:
    """Name adapters of a model by their scales. ``sources`` are those that it was loaded with, ``DIR:0.5`` of half its
    weight."""

    def __init__(self, model: Model, sources: Sequence[str]) -> None:
        self._model, self._lock = model, threading.Lock()
        #: Path and scale of each, as they were loaded.
        self.loaded = [path_and_weight(each) for each in sources]
        self._names: OrderedDict[tuple[float, ...], str] = OrderedDict()

    def name(self, scales: Mapping[int, float] | None) -> str | None:
        """Return the name of the adapters by their places; those that are not in ``scales`` have none. None is what the
        model was loaded with. Any thread may call. Raises what ``Model.load_adapter`` raises."""
        if scales is None:
            return None
        if unknown := [index for index in scales if index >= len(self.loaded)]:
            raise UsageError(
                f"There is no adapter {unknown[0]}: there are {len(self.loaded)}.", code="value-out-of-range"
            )
        values = tuple(float(scales.get(index, 0.0)) for index in range(len(self.loaded)))
        if values == tuple(scale for _, scale in self.loaded):
            return None
        if not any(values):
            return BASE
        with self._lock:
            return self._load(values)

    def _load(self, values: tuple[float, ...]) -> str:
        if values in self._names:
            self._names.move_to_end(values)
            return self._names[values]
        if len(self._names) >= _KEPT:
            self._model.delete_adapter(self._names.popitem(last=False)[1])
        name = " ".join(map(str, values))
        sources = [f"{path}:{scale}" for (path, _), scale in zip(self.loaded, values, strict=True) if scale]
        self._model.load_adapter(sources, name)
        self._names[values] = name
        return name
