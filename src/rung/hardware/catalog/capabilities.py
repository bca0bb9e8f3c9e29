"""Hold what a device can do with a build of torch: what its architecture can, unless both together say otherwise."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rung.core.types import Capability, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware.catalog.releases import Build
from rung.hardware.catalog.rows import DTYPES, Architecture, architectures, version
from rung.hardware.catalog.tables import load

#: What each capability means; ``rung devices --capabilities`` prints it.
NAMES: Mapping[str, str] = {
    **{f"matmul.{dtype}": f"torch multiplies {dtype} matrices" for dtype in DTYPES},
    **{f"attention.{dtype}": f"scaled_dot_product_attention in {dtype}" for dtype in DTYPES[:4]},
    **{f"elementwise.{dtype}": f"elementwise functions of {dtype}" for dtype in DTYPES[:4]},
    "attention.flash": "the flash kernels of scaled_dot_product_attention",
    "arithmetic.f16": "f16 arithmetic outside of the matrix units; emulated: far slower than f32",
    **{
        f"units.{dtype}": f"matrix units (tensor cores, MFMA, WMMA, XMX, AMX) that multiply {dtype}"
        for dtype in ("f16", "bf16", "tf32", "f64", "int8", "int4", "fp8", "fp4")
    },
    "dot8": "an instruction for four int8 products at once (dp4a, dot4, VNNI, sdot)",
    "code": "the torch build carries device code that runs there",
    "code.dot8": "that code was compiled for a target that has dot8: sm_60 code runs on 6.1 without it",
    "compile": "torch.compile, which needs Triton on a GPU",
    "package.torch": "a torch that computes on the device",
}
#: NVIDIA's compute capabilities whose code may hold dp4a begin here, 6.2 left out (PTX ISA, dp4a).
_DP4A = (6, 1)


@functools.cache
def capabilities(key: str, build: Build | None) -> FrozenDict[Capability]:
    """All capabilities of an architecture with that build, by name; all absent where no code of it runs."""
    architecture = architectures()[key]
    hardware = [*_units(architecture), *_isa(architecture)]
    image = build.image(architecture) if build else ""
    if build is None or not image:
        why = _no_code(architecture, build)
        names = [name for name in NAMES if not name.startswith(("units.", "arithmetic.")) and name != "dot8"]
        return _by_name([*(Capability(name, Level.ABSENT, Proof.TABLE, why) for name in names), *hardware])
    known = {c.name: c for c in (*table(architecture), *_software(architecture, build, image))}
    for rule in load("software.toml")["rule"]:
        if applies(rule, architecture, build):
            for name in rule["capability"].split():
                known[name] = _ruled(known.get(name), name, rule)
    return _by_name([*known.values(), *hardware])


def _by_name(found: list[Capability]) -> FrozenDict[Capability]:
    return FrozenDict({c.name: c for c in found})


def declared(architecture: Architecture) -> list[Capability]:
    """Return the catalog's capabilities of a device that is here, whose software was not looked at."""
    return list(table(architecture))


def applies(rule: Mapping[str, Any], architecture: Architecture, build: Build) -> bool:
    """Return whether a row's conditions on kind, compute capability, torch and CUDA hold; a range is [from, below)."""
    if rule.get("kind", architecture.kind) != architecture.kind:
        return False
    ranges = (("cc", architecture.cc), ("torch", build.release), ("cuda", build.toolkit))
    for name, text in ranges:
        lowest, below = rule.get(name), rule.get(f"{name}_below")
        if (lowest or below) and (not text or (name == "cuda" and build.backend != "cuda")):
            return False
        if lowest and version(text) < version(lowest):
            return False
        if below and version(text) >= version(below):
            return False
    return True


def table(architecture: Architecture) -> Iterator[Capability]:
    """Yield what the row says of matmul, attention and elementwise work by dtype; where it does not know, its note.

    Attention is two matrix products and a softmax, so it is what matmul is; torch computes elementwise
    functions of f16 and bf16 in f32 wherever the hardware does not do them itself.
    """
    for dtype, text in architecture.matmul.items():
        level = Level(text)
        if level is Level.UNKNOWN:
            if dtype in architecture.notes:
                yield Capability(f"matmul.{dtype}", level, Proof.NONE, architecture.notes[dtype])
            continue
        source = architecture.notes.get(dtype, "") or f"{architecture.generation}, {architecture.key}"
        yield Capability(f"matmul.{dtype}", level, Proof.TABLE, source)
        if dtype in ("int8", "fp8"):
            continue
        yield Capability(f"attention.{dtype}", level, Proof.TABLE, source)
        missing = dtype == "f64" and level is Level.ABSENT
        element = level if level is Level.NATIVE or missing else Level.EMULATED
        yield Capability(f"elementwise.{dtype}", element, Proof.TABLE, source)


def _ruled(before: Capability | None, name: str, rule: Mapping[str, Any]) -> Capability:
    """The rule's level; what the hardware lacks anyway keeps its own reason."""
    level = Level(rule["level"])
    if before and before.level is Level.ABSENT and level is Level.ABSENT:
        return before
    return Capability(name, level, Proof.TABLE, f"{rule['reason']}: {rule['source']}")


def _software(architecture: Architecture, build: Build, image: str) -> Iterator[Capability]:
    where = f"{build} carries code for {' '.join(build.code)}"
    own = image in (architecture.cc, architecture.key, architecture.machine)
    variable = f" with HSA_OVERRIDE_GFX_VERSION={gfx_version(image)}" if image == architecture.override else ""
    how = "its own" if own else f"that of {image} runs on {architecture.cc or architecture.key}{variable}"
    yield Capability("code", Level.NATIVE, Proof.TABLE, f"{where}: {how}")
    yield Capability("package.torch", Level.NATIVE, Proof.TABLE, f"{build}: {build.source}")
    if architecture.dot8 and architecture.cc:
        has = version(image.split()[0]) >= _DP4A
        level = Level.NATIVE if has else Level.ABSENT
        text = "" if has else f": the code that runs there is of {image}, compiled without {architecture.dot8}"
        yield Capability("code.dot8", level, Proof.TABLE, where + text)
    if architecture.kind == "cuda" and architecture.flash_attention_2 is not None:
        level = Level.NATIVE if architecture.flash_attention_2 else Level.ABSENT
        yield Capability("attention.flash", level, Proof.TABLE, "its kernels are written for compute capability 8.0")
    if architecture.kind in ("cuda", "cpu"):
        yield Capability("compile", Level.NATIVE, Proof.TABLE, f"{build}")


def _units(architecture: Architecture) -> Iterator[Capability]:
    """Yield what the hardware has, whatever the software: matrix units, the int8 dot instruction, f16 arithmetic."""
    source = f"{architecture.generation}, {architecture.key}"
    for name in NAMES:
        if name.startswith("units."):
            has = name.removeprefix("units.") in architecture.units
            takes = " ".join(architecture.units) or "nothing: there are none"
            yield Capability(
                name,
                Level.NATIVE if has else Level.ABSENT,
                Proof.TABLE,
                source if has else f"the matrix units of {architecture.key} take {takes}",
            )
    text = architecture.dot8 or f"{source} has no such instruction"
    yield Capability("dot8", Level.NATIVE if architecture.dot8 else Level.ABSENT, Proof.TABLE, text)
    levels = {"native": Level.NATIVE, "slow": Level.EMULATED, "none": Level.ABSENT}
    if architecture.f16 in levels:
        factor = architecture.f16_rate or 1
        share = f"1/{1 / factor:.0f} of" if factor < 1 else f"{factor:g} times" if factor > 1 else ""
        rate = f" at {share} f32's rate".replace("  ", " ") if architecture.f16_rate else ""
        yield Capability("arithmetic.f16", levels[architecture.f16], Proof.TABLE, source + rate)


def _isa(architecture: Architecture) -> Iterator[Capability]:
    """The instruction sets of a CPU, named as those that a processor declares."""
    if architecture.kind != "cpu":
        return
    from rung.hardware.families.cpu import ARM, X86, kernels

    listed: frozenset[str] = frozenset()
    for name, flags in (ARM if architecture.machine == "aarch64" else X86).items():
        has = name.removeprefix("isa.") in architecture.isa
        listed |= frozenset(flags if has else ())
        text = f"{architecture.generation}, {architecture.key}"
        yield Capability(
            name, Level.NATIVE if has else Level.ABSENT, Proof.TABLE, text if has else f"{text} does not have it"
        )
    yield replace(kernels(architecture.machine, listed), proof=Proof.TABLE)


def _no_code(architecture: Architecture, build: Build | None) -> str:
    if build is None:
        return f"no released torch carries device code for {architecture.key}"
    what = architecture.cc or architecture.key
    return f"{build} carries code for {' '.join(build.code)}: none of it runs on {what}"


def gfx_version(target: str) -> str:
    """``gfx1030`` as ROCm's variable has it: 10.3.0."""
    return f"{target[3:-2]}.{int(target[-2], 16)}.{int(target[-1], 16)}"
