"""Say which released packages run on a device, with the reason of every no, and what the catalog does not know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.core.types import Device, Level
from rung.core.value import Value
from rung.hardware.catalog.releases import features
from rung.hardware.catalog.rows import Architecture, architectures, numbers, version
from rung.hardware.catalog.tables import load

_RUNS = {Level.NATIVE: "yes", Level.EMULATED: "slow", Level.ABSENT: "no", Level.UNKNOWN: "unknown"}
_CT2 = "CTranslate2"
#: Capabilities that torch is asked for most, with what they are called there.
_TORCH = {
    "code": "device code",
    "matmul.f32": "float32 matrix products",
    "matmul.f16": "float16 matrix products",
    "matmul.bf16": "bfloat16 matrix products",
    "matmul.int8": "int8 matrix products (_int_mm)",
    "matmul.fp8": "float8 matrix products (_scaled_mm)",
    "attention.flash": "flash attention (scaled_dot_product_attention)",
    "compile": "torch.compile",
}


@dataclass(frozen=True)
class Support(Value):
    """Hold whether a feature of a release runs on a device: ``yes``, ``no``, ``slow`` or ``unknown``, with the reason.

    ``min_arch`` is the lowest architecture that it runs on, where its maker names one (``sm_75``).
    """

    package: str
    version: str
    feature: str
    runs: str
    min_arch: str | None
    reason: str
    source: str


def support(device: Device) -> tuple[Support, ...]:
    """Return the support of released software for that device, torch first.

    A package that ``device.software`` names is looked up in that release, the others in their newest; where the newest
    does not run, the newest that does is listed too. Nothing but torch is known of an architecture that is not in the
    catalog, and of a device of WebGPU what runs on the same card otherwise.
    """
    architecture = architecture_of(device)
    found = list(_torch(device)) if device.kind != "webgpu" else []
    if architecture:
        found += _features(device, architecture)
        found += _compute_types(device, architecture)
    return tuple(found)


def architecture_of(device: Device) -> Architecture | None:
    """The catalog's architecture of a device; a processor that is here has the best whose instruction sets it has."""
    key = str(device.details.get("isa", device.arch))
    if known := architectures().get(key):
        return known
    here = {
        name.removeprefix("isa.")
        for name, c in device.capabilities.items()
        if name.startswith("isa.") and c.level is Level.NATIVE
    }
    fits = [a for a in architectures().values() if a.machine == device.arch and set(a.isa) <= here]
    return max(fits, key=lambda a: len(a.isa), default=None)


def _torch(device: Device) -> Iterator[Support]:
    build = str(device.details.get("build", "")).removeprefix("torch ") or device.software.get("torch", "none")
    for name, feature in _TORCH.items():
        found = device.capability(name)
        if name in ("code", "compile", "attention.flash") and found.level is Level.UNKNOWN:
            continue  # nobody has asked: a processor has no flash kernels to speak of
        reason, _, source = found.source.partition(": https://")
        text = "" if found.level is Level.NATIVE else reason or "no measurement is known"
        where = f"https://{source}" if source else "architectures.toml and software.toml" if found.source else ""
        yield Support("torch", build, feature, _RUNS[found.level], None, text, where)


def _features(device: Device, architecture: Architecture) -> Iterator[Support]:
    sources = load("software.toml")["sources"]
    done: set[tuple[str, str]] = set()
    for row in features():
        package, feature = row["package"], row["feature"]
        if architecture.kind not in row.get("kinds", architecture.kind):
            continue
        version = device.software.get(package)
        if version is None and (package, feature) in done:
            continue
        if version is not None and not covers(row, version):
            continue
        runs, reason = runs_there(row, architecture)
        newest = "before" not in row
        if not newest and version is None and runs in ("no", "unknown"):
            continue  # an older release that does not run either is no news
        if runs in ("yes", "slow") or version is not None:
            done.add((package, feature))
        lowest = f"sm_{row['cc'].replace('.', '')}" if architecture.kind == "cuda" else None
        yield Support(
            package, version or row["version"], feature, runs, lowest, reason, sources.get(row["source"], row["source"])
        )


def covers(row: Mapping[str, Any], version: str) -> bool:
    at = numbers(version)
    return numbers(row["since"]) <= at and ("before" not in row or at < numbers(row["before"]))


def runs_there(row: Mapping[str, Any], architecture: Architecture) -> tuple[str, str]:
    """yes, no, slow or unknown for one feature, with the reason of all but yes."""
    capability = architecture.capability
    if capability is None:
        return _listed(row, architecture)
    cc = architecture.cc
    if capability < version(row["cc"]):
        return "no", row.get("reason", f"needs compute capability {row['cc']}, this is {cc}")
    if "cc_below" in row and capability >= version(row["cc_below"]):
        return "no", f"does not know compute capability {row['cc_below']} and newer"
    if "code" in row and not runs_on(row["code"], row.get("ptx", ""), capability):
        return "no", f"has device code for {row['code']}: none of it runs on {cc}"
    if "slow_below" in row and (capability < version(row["slow_below"]) or _bare_turing(row, architecture)):
        return "slow", row["slow"]
    return "yes", ""


def _bare_turing(row: Mapping[str, Any], architecture: Architecture) -> bool:
    """A GTX 16 has compute capability 7.5 without the matrix units that 7.5 stands for."""
    return row["slow_below"] == "7.5" and not architecture.units


def runs_on(code: str, ptx: str, capability: tuple[int, int]) -> bool:
    """Return whether code runs on a compute capability: own major number, minor not above; ``9.0a`` on 9.0 only; PTX
    later."""
    for image in code.split():
        at = version(image.rstrip("a"))
        exact = image.endswith("a")
        if at == capability if exact else at[0] == capability[0] and at[1] <= capability[1]:
            return True
    return bool(ptx) and version(ptx) <= capability


def _listed(row: Mapping[str, Any], architecture: Architecture) -> tuple[str, str]:
    """The answer of a row for another vendor: a word, perhaps with a sentence, or the targets that it is built for."""
    word, _, reason = str(row[architecture.kind]).partition(": ")
    if word in ("yes", "no", "slow", "unknown"):
        text = {"yes": "", "no": "not for this hardware", "slow": "slow there", "unknown": "the source does not say"}
        return word, reason or text[word]
    if architecture.key in word.split():
        return "yes", ""
    if architecture.override in word.split():
        return "yes", f"with the code of {architecture.override}: HSA_OVERRIDE_GFX_VERSION"
    return "no", f"built for {word}"


def _compute_types(device: Device, architecture: Architecture) -> Iterator[Support]:
    """Yield what CTranslate2 computes in when a model stored in a type is loaded; asked for by name it refuses the
    others."""
    wheel = next((row for row in _features(device, architecture) if row.package == _CT2), None)
    newest = max((row["version"] for row in features() if row["package"] == _CT2), key=numbers)
    source = load("software.toml")["sources"]["ct2"]
    for name, resolved in compute_types(device, architecture).items():
        runs, reason = "yes", ""
        if wheel and wheel.runs == "no":
            runs, reason = "no", f"the wheel {wheel.reason}"
        elif name != resolved:
            runs, reason = "no", f"falls back to {resolved} on load; asked for by name it is refused"
        at = device.software.get(_CT2, newest)
        yield Support(_CT2, at, f"compute type {name}", runs, None, reason, source)


def compute_types(device: Device, architecture: Architecture) -> Mapping[str, str]:
    """CTranslate2's fallback for each stored type on that hardware; empty where it does not run at all."""
    capability, installed_version = architecture.capability, device.software.get(_CT2)
    for row in load("software.toml")["compute"]:
        if row["kind"] != architecture.kind or row.get("machine", architecture.machine) != architecture.machine:
            continue
        if row.get("maker") == "intel" and not re.search(r"intel|xeon|^core", device.name, re.IGNORECASE):
            continue
        if "cc" in row and capability is not None and capability < version(row["cc"]):
            continue
        if "before" in row if installed_version is None else not covers(row, installed_version):
            continue
        return dict(row["types"])
    return {}


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
    for newest in dict.fromkeys(row["version"] for row in rows.values() if row and _is_newer(release, row)):
        names = [name for name, row in rows.items() if row and row["version"] == newest and _is_newer(release, row)]
        doubts.append(f"{', '.join(names)} as of {newest}, the newest that was looked at")
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
