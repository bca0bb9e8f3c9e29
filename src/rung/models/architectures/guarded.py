"""Architectures of plug-ins: what they are called with may raise or lie, and then the plug-in is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rung.core.errors import RungError, UnknownArchitecture
from rung.core.plugins import Plugin, Refused
from rung.models.architectures.family import Architecture
from rung.models.card import Decoder

R = TypeVar("R")


def guarded(
    plugin: Plugin, value: Any, types: Mapping[str, Architecture], files: Mapping[str, Architecture]
) -> Architecture:
    """Return the architecture of a plug-in with its functions guarded; raise ``Refused`` where it is none.

    ``types`` and ``files`` are rung's own, by model type and by the name in GGUF files.
    """
    if not isinstance(value, Architecture):
        raise Refused(
            f"it names a {type(value).__name__}, and an architecture is a rung.models.architectures.Architecture"
        )
    if not value.model_type:
        raise Refused("its model_type is empty")
    for name, known in ((value.model_type, types), (value.gguf, files)):
        taken = known.get(name)
        if taken is not None and getattr(taken.names, "plugin", None) != plugin:
            raise Refused(f"{name} is registered already")
    read = value.from_gguf
    return replace(
        value,
        names=_guard(plugin, "names", value.names, Mapping),
        from_config=_guard(plugin, "from_config", value.from_config, Decoder),
        from_gguf=_guard(plugin, "from_gguf", read, Decoder) if read is not None else None,
    )


def _guard(plugin: Plugin, name: str, function: Callable[..., R], kind: type) -> Callable[..., R]:
    def call(*arguments: Any, **more: Any) -> R:
        try:
            result = function(*arguments, **more)
        except RungError:
            raise  # says itself what is wrong with the model
        except Exception as error:
            raise _failed(plugin, f"its {name} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, kind):
            raise _failed(plugin, f"its {name} returned a {type(result).__name__}, not a {kind.__name__}")
        return result

    call.plugin = plugin  # type: ignore[attr-defined]
    return call


def _failed(plugin: Plugin, reason: str) -> UnknownArchitecture:
    plugin.leave_out(reason)
    return UnknownArchitecture(
        f"The model cannot be read: its architecture is that of the plug-in {plugin.name}, which failed",
        [f"{plugin.distribution}: {reason}"],
        [f"pip uninstall {plugin.distribution.split()[0]}", "rung run demo"],
    )
