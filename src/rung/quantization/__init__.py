"""Quantize within an error budget: statistics of a model on text, rounding by them, and the choice of formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rung.core.errors import UsageError
from rung.core.shield import import_whole

if TYPE_CHECKING:
    from rung.quantization.running import Within


def choose_within(
    name: str,
    max_kl: float,
    loading: Mapping[str, Any],
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> Within:
    """Choose how the model of a name is run within a KL, with the keyword arguments of ``rung.engine.load.load``.

    Raises ``UsageError`` for options that make no sense, before anything is imported; ``SoftwareMissing`` without
    torch; and what ``rung.quantization.running.within`` raises.
    """
    check_max_kl(max_kl, loading.get("format"), loading.get("cache_type"))
    import_whole("rung.engine.planning").need_software(what="judging a way to run a model")
    found: Within = import_whole("rung.quantization.running").within(name, max_kl, loading, progress)
    return found


def check_max_kl(max_kl: float, format: str | None, cache_type: str | None) -> None:
    """Raise ``UsageError`` for a KL that is none, and for options that leave nothing to choose."""
    if not 0 <= max_kl < float("inf"):
        raise UsageError(f"--max-kl {max_kl:g} is no KL.", (), ["--max-kl 0.01"], code="value-out-of-range")
    for name, value in (("--format", format), ("--cache-type", cache_type)):
        if value is not None:
            raise UsageError(
                f"--max-kl chooses what {name} says.", (), [f"leave out {name}", "leave out --max-kl"],
                code="options-exclude-each-other",
            )  # fmt: skip
