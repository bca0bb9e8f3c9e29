"""``rung check MODEL --fleet``: which nodes run a model, and what they give together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rung.cli.views.output import print_json
from rung.core.errors import UsageError
from rung.core.text import count, rate, size

if TYPE_CHECKING:
    from rung.fleet.forecast import Forecast, Part
    from rung.fleet.simulator import Outcome
    from rung.planning.check_result import Question

#: The word for the fleet that this machine is in.
LIVE = "live"


def answer(
    models: Sequence[str] | None, fleet: str, devices: Sequence[str] | None, question: Question, json: bool
) -> int:
    """Print what a fleet would do with a model; return the exit code. Raises ``RungError``."""
    if devices:
        raise UsageError("--fleet names the devices; leave --device out.", code="options-exclude-each-other")
    if len(models or ()) != 1:
        raise UsageError("--fleet is asked about one model.", (), [f"rung check smollm2 --fleet {fleet}"])
    found = _forecast((models or [""])[0], fleet, question)
    print_json(found.to_json()) if json else print(shown(found))
    return 0 if found.together else 1


def _forecast(model: str, fleet: str, question: Question) -> Forecast:
    from rung.fleet import forecast

    if fleet != LIVE:
        return forecast.forecast(model, forecast.read(Path(fleet)), question)
    from rung.fleet import ray_node

    ray_node.require()
    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder

    return forecast.live(control_client.of_member(Folder.of_settings()).status(), model)


def shown(found: Forecast) -> str:
    """Return a forecast as text."""
    nodes = sum(part.kind.count for part in found.parts)
    able = sum(part.kind.count for part in found.parts if part.rates is not None)
    if any(part.layers for part in found.parts):
        words = f"no node holds it alone; divided, {rate(found.together)} tokens/s together."
        lines = [f"{found.model}: {words}"]
    elif not able:
        lines = [f"{found.model}: none of {count(nodes, 'node')} runs it."]
    else:
        lines = [f"{found.model}: {able} of {count(nodes, 'node')} run it, {rate(found.together)} tokens/s together."]
    lines += ["", *(_part(part, found.together) for part in found.parts)]
    if found.at_once is not None and found.steady is not None:
        lines += ["", f"64 requests at once: {_outcome(found.at_once)}"]
        lines += [f"{found.requests_per_second:.3g} requests/s (70 % of all): {_outcome(found.steady)}"]
    return "\n".join(lines)


def _part(part: Part, together: float) -> str:
    name = part.kind.name if part.kind.count == 1 else f"{part.kind.count:,} x {part.kind.name}"
    if part.layers:
        speed = "" if part.rates is None else f"; {rate(part.rates.decode)} tokens/s of one answer, without hops"
        return f"{name}: {part.layers}, {size(part.memory)}{speed}"
    if part.rates is None:
        return f"{name}: no, {part.reason}"
    speed = f"{rate(part.rates.decode)} tokens/s alone, {rate(part.rates.decode_sum)} in {count(4, 'answer')} at once"
    share = f"{part.together / together:.0%} of all"
    more = f"; one more brings {rate(part.rates.decode_sum)}" if part.kind.count > 1 else ""
    return f"{name}: {part.format}, {size(part.memory)}, {speed}; {share}{more}"


def _outcome(found: Outcome) -> str:
    first = f"first token {found.first_token_median:.2g} s, p95 {found.first_token_p95:.2g} s"
    ends = f"whole p95 {found.finish_p95:.3g} s, nodes busy {found.utilization:.0%} of the time"
    return f"{rate(found.tokens_per_second)} tokens/s, {first}, {ends}"
