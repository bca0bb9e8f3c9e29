"""The models that are served: those of the command line, and those of the store, which requests load by name.

Each has the plan that it would have alone, so that its answers do not depend on what else is loaded. Where their sum
is above the budget, the model that was used least recently is unloaded when its answers have ended.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rung.core.errors import RungError
from rung.hardware import detect
from rung.models.store import folder
from rung.models.store.folder import Manifest
from rung.planning.request import parse_memory
from rung.server.engine_client import EngineClient
from rung.server.engines import Listed
from rung.server.errors import ApiError
from rung.server.protocol import Load

#: Seconds that a model of the store stays loaded after its last answer.
KEEP_ALIVE = 300.0
#: Seconds between two looks for a model that can be unloaded, and those that each may be used before it is.
_LOOK, _LEAST_SECONDS = 0.1, 1.0
#: Names in the error for an unknown one.
_MOST_NAMES = 20
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_keep_alive(value: str | float) -> float:
    """Return seconds of ``5m``, ``1h30m``, ``300`` or a number; below zero is for ever.

    Raises ``ValueError`` for what is none.

    >>> parse_keep_alive("1h30m"), parse_keep_alive(0), parse_keep_alive(-1)
    (5400.0, 0.0, inf)
    """
    text = str(value).strip()
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text.lstrip("-"):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        return math.inf if text.startswith("-") else seconds
    seconds = float(text)
    if math.isnan(seconds):
        raise ValueError(f"{text} is no time")
    return math.inf if seconds < 0 else seconds


@dataclass
class ModelPool:
    """Models by name. ``named`` are those of the command line; models of the store are loaded with ``options``.

    ``memory`` is the budget of all together, by default what is free. ``keep_alive`` in seconds is None where those of
    the command line stay loaded. ``any_name``: a name that is not known means the first model.
    """

    named: Mapping[str, Load] = field(default_factory=dict)
    options: dict[str, Any] | None = None
    memory: str | None = None
    keep_alive: float | None = None
    on_note: Callable[[str], None] = lambda text: None
    on_progress: Callable[[str, int, int], None] = lambda label, done, total: None
    any_name: bool = False

    def __post_init__(self) -> None:
        self._reserving, self._lock = asyncio.Lock(), asyncio.Lock()
        self._limits = parse_memory(self.memory)
        self._budget: dict[str, int] = {}
        #: Models of the command line that are loaded only where there is room beside others, as the server starts.
        self._if_room: set[str] = set()
        self.engines: dict[str, EngineClient] = {}
        for name, load in self.named.items():
            self._add(name, load).keep_alive = math.inf if self.keep_alive is None else self.keep_alive

    def _add(self, name: str, load: Load) -> EngineClient:
        engine = self.engines[name] = EngineClient(name, load, self, self.on_note, self.on_progress)
        return engine

    def find(self, name: str | None) -> EngineClient:
        """Return the model of a name, without one the first; ollama's clients put ``:latest`` behind names.

        Raises ``ApiError`` (404) for an unknown name.
        """
        if name is None:
            if self.engines:
                return next(iter(self.engines.values()))
            raise ApiError(400, "The request names no model, and none was named first.", param="model")
        for each in (name, name.removesuffix(":latest")):
            if (engine := self.engines.get(each)) is not None or (engine := self._of_store(each)) is not None:
                return engine
        if self.any_name:
            return self.find(None)
        names = [each.name for each in self.listed()]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise ApiError(
            404,
            f"There is no model {name!r}; there is {', '.join(names[:_MOST_NAMES])}{more}.",
            param="model",
            code="model_not_found",
        )

    def _of_store(self, name: str) -> EngineClient | None:
        """Return a model of the store. Its name is compared with those that are there, and never part of a path."""
        for manifest in self._manifests():
            if manifest.name.lower() == name.lower():
                if manifest.name in self.engines:
                    return self.engines[manifest.name]
                load = Load(str(manifest.path), self.options or {}, manifest.name)
                engine = self._add(manifest.name, load)
                engine.keep_alive = KEEP_ALIVE if self.keep_alive is None else self.keep_alive
                return engine
        return None

    async def drop(self, name: str) -> str:
        """Unload a model of the store; see ``Pool``. A model of the command line stays."""
        stored = next((each.name for each in folder.manifests()[0] if each.name.lower() == name.lower()), None)
        if stored is None:
            raise ApiError(404, f"There is no pulled model {name!r}.", param="model", code="model_not_found")
        if stored in self.named:
            message = f"{stored} is served by the command line, and stays."
            raise ApiError(409, message, param="model", code="in_use")
        if (engine := self.engines.pop(stored, None)) is not None:
            await engine.unload()
        return stored

    def _manifests(self) -> list[Manifest]:
        """Return the models of the store that are whole, if requests may name them."""
        if self.options is None:
            return []
        return [manifest for manifest in folder.manifests()[0] if manifest.is_whole]

    def listed(self) -> list[Listed]:
        """Return the models that requests may name, those of the command line first."""
        stored = {manifest.name: manifest for manifest in self._manifests()}
        found = [Listed(name, self.engines[name], stored.pop(name, None)) for name in self.named]
        return found + [Listed(name, self.engines.get(name), manifest) for name, manifest in stored.items()]

    @property
    def loaded(self) -> list[EngineClient]:
        """Return the models that are loaded, or are being loaded."""
        return [engine for engine in self.engines.values() if engine.is_loaded]

    async def start(self) -> None:
        """Load the models of the command line, the first one and of the others those that have room beside it.

        Raises ``RungError`` for one that cannot be loaded.
        """
        self._if_room = set(list(self.named)[1:])
        for name in self.named:
            try:
                await self.engines[name].loaded()
            except RungError as error:
                if name not in self._if_room or error.code != "no_room":
                    raise
                self.engines[name].failed = None
                self.on_note(f"{name} is loaded when it is requested: there is no room beside the others.")
        self._if_room = set()

    @property
    def waits_for(self) -> EngineClient | None:
        """Return a model of the command line that is loading or has failed, if there is one."""
        engines = (self.engines[name] for name in self.named)
        return next((each for each in engines if each.failed or each.is_starting), None)

    async def stop(self) -> None:
        """End all processes."""
        await asyncio.gather(*(engine.stop() for engine in self.engines.values()))

    async def load_of(self, engine: EngineClient) -> Load:
        """Return how to load a model: with the budget that it would have alone."""
        async with self._lock:
            others = [each for each in self.loaded if each is not engine and each.memory]
            if self._limits or not others:
                self._budget = dict(self._limits) or await asyncio.to_thread(_free)
                return engine.load
            free = await asyncio.to_thread(_free)
            for name in self._budget:
                taken = sum(each.memory.get(name, 0) for each in others)
                self._budget[name] = min(self._budget[name], free.get(name, 0) + taken)
            if str(engine.load.options.get("device") or "").startswith("sim:"):
                return engine.load
            return msgspec.structs.replace(engine.load, options={**engine.load.options, "memory": dict(self._budget)})

    async def reserve(self, engine: EngineClient, memory: Mapping[str, int]) -> bool:
        """Return once there is room for a model, for which others are unloaded; False where none shall be."""
        async with self._reserving:
            while not self._fits(engine, memory):
                if engine.name in self._if_room:
                    return False
                if (victim := self._victim(engine)) is not None:
                    self.on_note(f"{victim.name} is unloaded: {engine.name} needs the memory.")
                    await victim.unload()
                elif not any(each is not engine and each.memory for each in self.loaded):
                    break
                else:
                    await asyncio.sleep(_LOOK)
            engine.memory = dict(memory)
            return True

    def _fits(self, engine: EngineClient, memory: Mapping[str, int]) -> bool:
        """Return whether the memory of a model is there beside that of those that are loaded."""
        others = [each for each in self.loaded if each is not engine and each.memory]
        for device, count in memory.items():
            taken = sum(each.memory.get(device, 0) for each in others)
            if taken and count + taken > self._budget.get(device, self._budget.get("*", math.inf)):
                return False
        return True

    def _victim(self, engine: EngineClient) -> EngineClient | None:
        """Return the model to unload: of those that somebody could use for a while an idle one, used least recently."""
        since = time.monotonic() - _LEAST_SECONDS
        able = [each for each in self.loaded if each is not engine and each.is_ready and each.ready_since < since]
        return min(able, key=lambda each: (each.is_busy, each.used), default=None)


def _free() -> dict[str, int]:
    """Return the bytes that a plan may use of each device."""
    return {device.id: device.budget for device in detect.devices()}
