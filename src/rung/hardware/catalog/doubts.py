"""Hold what the catalog does not know of the releases that somebody asked for: said, where rows would only be
missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rung.core.types import Device
from rung.hardware.catalog.builds import features
from rung.hardware.catalog.rows import numbers
from rung.hardware.catalog.support import architecture_of, covers
from rung.hardware.catalog.tables import load

Row = Mapping[str, Any]


def doubts(device: Device) -> tuple[str, ...]:
    """A sentence for each release in ``device.software`` that rows of its package are missing for, or are older than.

    It names what is not known of it, with the releases of which that is known.
    """
    architecture = architecture_of(device)
    if architecture is None:
        return ()
    packages = {row["package"] for row in features()}
    installed = {name: at for name, at in device.software.items() if name in packages}
    return tuple(text for name, at in installed.items() if (text := _doubt(name, at, architecture.kind)))


def _doubt(package: str, release: str, kind: str) -> str:
    known = _known(package, kind)
    if not known:
        return f"{package} {release}: the catalog knows nothing of {package} on such a device."
    rows = {name: next((row for row in listed if covers(row, release)), None) for name, listed in known.items()}
    if not any(rows.values()):
        spans = _spans([row for listed in known.values() for row in listed])
        return f"{package} {release}: the catalog does not know that release; it knows {spans}."
    missing = [
        f"{name} ({_spans(known[name])})" for name, row in rows.items() if not row and _goes_on(known[name], release)
    ]
    doubts = [f"the catalog has no row of that release for {', '.join(missing)}"] if missing else []
    for version in dict.fromkeys(row["version"] for row in rows.values() if row and _is_newer(release, row)):
        names = [name for name, row in rows.items() if row and row["version"] == version and _is_newer(release, row)]
        doubts.append(f"{', '.join(names)} as of {version}, the newest that was looked at")
    return f"{package} {release}: {'; '.join(doubts)}." if doubts else ""


def _known(package: str, kind: str) -> Mapping[str, Sequence[Row]]:
    """The rows of a package on a kind of device, by feature; CTranslate2's fallbacks are one."""
    found: dict[str, list[Row]] = {}
    for row in features():
        if row["package"] == package and kind in row.get("kinds", kind):
            found.setdefault(row["feature"], []).append(row)
    for row in load("software.toml")["compute"] if package == "CTranslate2" else ():
        if row["kind"] == kind:
            found.setdefault("compute types", []).append(row)
    return found


def _goes_on(rows: Sequence[Row], version: str) -> bool:
    """Return whether some row is of a later release: what has none was given up by then, as FlashAttention-1 was."""
    return any(numbers(row["since"]) > numbers(version) for row in rows)


def _is_newer(version: str, row: Row) -> bool:
    """Return whether a row that is open towards later releases was made from an earlier one than that."""
    return "before" not in row and numbers(version) > numbers(row["version"])


def _spans(rows: Sequence[Row]) -> str:
    """The releases of which rows speak: ``0.2 to 0.14.0 and 0.21 to 0.33.0``."""
    spans: list[list[str]] = []  # first, newest, the one before which it ends: empty where it does not
    for row in sorted(rows, key=lambda row: numbers(row["since"])):
        first, newest, end = row["since"], row["version"], row.get("before", "")
        if spans and (not spans[-1][2] or numbers(first) <= numbers(spans[-1][2])):
            last = spans[-1]
            last[1] = max(last[1], newest, key=numbers)
            last[2] = end and last[2] and max(last[2], end, key=numbers)
        else:
            spans.append([first, newest, end])
    return " and ".join(f"{first} to {newest}" for first, newest, _ in spans)
