# ruff: noqa: E501  (PATTERNS is a table: one sentence a line)
"""Reads the claims out of a sentence about a card and holds each against the rows of the catalogue.

It works on the tables themselves, not on the cards that the sentences were made from, so it checks both: the
generator's sentences (every one of them, in the tests) and the trained model's answers (evaluate.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from training.demo.cards import VENDORS, architecture_rows, sizes

from rung.hardware.catalog import Product, products

Rows = list[tuple[Product, dict[str, Any]]]  # (product, architecture) of every variant of a name

NAME, GENERATION = r"(?P<name>.+?)", r"an? (?P<generation>\S+(?: Ultra)?) GPU"
GB = r"(?P<most>up to )?(?P<memory>\d+(?: or \d+)*) GB"
YES, NO = rf"The {NAME} is {GENERATION}, so yes: ", rf"The {NAME} is {GENERATION}, so no: "
MAKER = r"(?P<maker>NVIDIA|AMD|Intel|Apple)"


def _native(arch: dict[str, Any], dtype: str) -> bool:
    return bool(arch["matmul"].get(dtype) == "native")


def _rate(arch: dict[str, Any]) -> bool:
    return arch.get("f16") == "native" and arch.get("f16_rate", 0) >= 1


# kind of fact, sentence, what must hold of the architecture beyond the named groups
PATTERNS: tuple[tuple[str, str, Callable[[dict[str, Any]], bool] | None], ...] = (
    ("capability", rf"The {NAME} has compute capability (?P<cc>[\d.]+)\.", None),
    ("capability", rf"The compute capability of the {NAME} is (?P<cc>[\d.]+)\.", None),
    ("capability", rf"The {NAME} is {GENERATION} with compute capability (?P<cc>[\d.]+)\.", None),
    ("capability", rf"The {NAME} is an? {MAKER} GPU, so it has no compute capability\. Its architecture is (?P<key>\S+)\.", lambda a: "cc" not in a),
    ("memory", rf"The {NAME} (?:has|comes with) {GB} of memory(?:, shared with the CPU)?\.", None),
    ("memory", rf"There are {GB} of memory on the {NAME}\.", None),
    ("memory", rf"Each GPU of the {NAME} has {GB} of memory\.", None),
    ("generation", rf"The {NAME} belongs to the (?P<generation>.+?) generation of {MAKER}\.", None),
    ("generation", rf"The {NAME} is {GENERATION} from {MAKER}\.", None),
    ("vendor", rf"The {NAME} is made by {MAKER}\.", None),
    ("bf16", YES + r"(?:it multiplies bf16 natively|bf16 is native there)\.", lambda a: _native(a, "bf16")),
    ("bf16", NO + r"bf16 is (?:not native there, only emulated, and that is slow|only emulated there)\.(?: Use (?P<use>\w+)\.)?", lambda a: a["matmul"]["bf16"] == "emulated"),
    ("bf16", NO + r"bf16 (?:is not native there, and bf16 )?products are refused(?: there)?\.(?: Use (?P<use>\w+)\.)?", lambda a: a["matmul"]["bf16"] == "absent"),
    ("bf16", rf"The {NAME} is {GENERATION}: the catalogue knows no bf16 units there, so do not count on it\.", lambda a: a["matmul"]["bf16"] == "unknown" and not a.get("units")),
    ("f16", YES + r"its f16 arithmetic is at least as fast as f32\.", _rate),
    ("f16", YES + r"it computes f16 natively\.", lambda a: a.get("f16") == "native"),
    ("f16", NO + r"(?:f16 arithmetic is much slower than f32 there\. Store f16, but compute in f32|it computes f16 much more slowly than f32)\.", lambda a: a.get("f16") == "slow"),
    ("f16", NO + r"it can store f16 but has no f16 arithmetic\. Compute in f32\.", lambda a: a.get("f16") == "none"),
    ("int8", YES + r"(?:it multiplies int8 with (?:tensor cores|matrix units)|(?:tensor cores|matrix units) can multiply int8 there)\.", lambda a: "int8" in a.get("units", ())),
    ("int8", YES + r"(?:it multiplies int8 with the (?P<dot>\w+) instruction|the (?P<dot_>\w+) instruction can multiply int8 there)\.", None),
    ("int8", NO + r"it has no int8 products\. Store int8 and compute in a float format\.", lambda a: a.get("dot8") == "" and "int8" not in a.get("units", ())),
    ("matrix", YES + r"it has (?:tensor cores|matrix units)\.", lambda a: bool(a.get("units"))),
    ("matrix", NO + r"it has no (?:tensor cores|matrix units)\.", lambda a: a.get("units") == []),
    ("fp8", YES + r"its matrix units take fp8\.", lambda a: "fp8" in a.get("units", ())),
    ("fp8", NO + r"it has no fp8 units\. fp8 can only be a storage format there\.", lambda a: "fp8" not in a.get("units", ())),
    ("bandwidth", rf"The memory bandwidth of the {NAME} is (?P<bandwidth>[\d.]+) GB/s\.", None),
    ("bandwidth", rf"The {NAME} reads its memory at up to (?P<bandwidth>[\d.]+) GB/s\.", None),
    ("driver", rf"The {NAME} is made by {MAKER}, so NVIDIA drivers and CUDA do not run on it\.", lambda a: a["vendor"] != "nvidia"),
    ("driver", YES + r"current drivers and CUDA 13 support it\.", lambda a: a.get("last_driver") == "" and a.get("max_cuda") == ""),
    ("driver", NO + r"driver branch (?P<driver>\d+) was the last for it, and CUDA (?P<cuda>[\d.]+) the last toolkit\.", None),
    ("dtype", rf"The {NAME} is {GENERATION}: use bf16, which is native there\.", lambda a: _native(a, "bf16")),
    ("dtype", rf"The {NAME} is {GENERATION}: use f16, because bf16 is not native there\.", lambda a: a["matmul"]["bf16"] in ("emulated", "absent") and a.get("f16") == "native"),
    ("dtype", rf"The {NAME} is {GENERATION}: use f16, which it computes natively\.", lambda a: a.get("f16") == "native" and not _native(a, "bf16")),
    ("dtype", rf"The {NAME} is {GENERATION}: compute in f32, and store int8 to save memory\.", lambda a: a.get("f16") in ("slow", "none") and not _native(a, "bf16")),
    (
        "all",
        rf"The {NAME} is {GENERATION} from {MAKER}(?: with compute capability (?P<cc>[\d.]+)|, architecture (?P<key>\S+)), and has {GB} of memory(?: for each GPU)?\."
        r"(?: There (?P<list>.+)\.)?",
        None,
    ),
)  # fmt: skip

# the parts of a summary's list
LISTED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "bf16 is native": lambda a: _native(a, "bf16"),
    "bf16 is not native": lambda a: a["matmul"]["bf16"] in ("emulated", "absent"),
    "f16 is fast": _rate,
    "f16 is native": lambda a: a.get("f16") == "native",
    "f16 arithmetic is slow": lambda a: a.get("f16") == "slow",
    "f16 arithmetic is missing": lambda a: a.get("f16") == "none",
    "int8 products have hardware": lambda a: bool(a.get("dot8")) or "int8" in a.get("units", ()),
    "int8 products have no hardware": lambda a: a.get("dot8") == "" and "int8" not in a.get("units", ()),
}


class Tables:
    """The catalogue's rows by every name that a sentence may call a card."""

    def __init__(self) -> None:
        archs = architecture_rows()
        self.rows: dict[str, Rows] = {}
        for product in products():
            name = re.sub(r"^(GeForce|NVIDIA) ", "", product.name)
            family = re.sub(r"( (SXM\d?|PCIe|NVL|\d+GB))+$", "", name)
            for key in {name, family}:
                self.rows.setdefault(key, []).append((product, archs[product.arch]))

    def holds(self, match: re.Match[str], condition: Callable[[dict[str, Any]], bool] | None) -> bool:
        """Return whether everything that a sentence says is so in the rows of its card."""
        said = {key.rstrip("_"): value for key, value in match.groupdict().items() if value is not None}
        rows = self.rows.get(said["name"], [])
        return bool(rows) and all(
            self._row_holds(said, product, arch) and (condition is None or condition(arch)) for product, arch in rows
        ) and self._memory_holds(said, rows)  # fmt: skip

    @staticmethod
    def _memory_holds(said: dict[str, str], rows: Rows) -> bool:
        sold = {size for product, _ in rows for size in sizes(product)}
        stated = {int(size) for size in said.get("memory", "").split(" or ") if size}
        return not stated or stated == ({max(sold)} if "most" in said else sold)

    @staticmethod
    def _row_holds(said: dict[str, str], product: Product, arch: dict[str, Any]) -> bool:
        generation = arch["generation"].replace("Apple GPU ", "Apple")
        use = said.get("use")
        checks = {
            "generation": lambda value: re.split(r" (?!Ultra)|/", generation)[0] == value,
            "maker": lambda value: VENDORS[arch["vendor"]] == value,
            "cc": lambda value: arch.get("cc") == value,
            "key": lambda value: arch["key"] == value,
            "dot": lambda value: arch.get("dot8") == value,
            "bandwidth": lambda value: abs(product.bandwidth / 1e9 - float(value)) <= 0.5,
            "driver": lambda value: arch.get("last_driver") == value,
            "cuda": lambda value: arch.get("max_cuda") == value,
            "list": lambda value: all(LISTED[part](arch) for part in re.split(r", | and ", value)),
        }
        if use is not None and use != ("f16" if arch.get("f16") == "native" else "f32"):
            return False
        return all(check(said[key]) for key, check in checks.items() if key in said)

    def judge(self, sentence: str) -> tuple[str, str, bool] | None:
        """(kind of fact, card, whether all of it is so); ``None`` when it is no such sentence."""
        found = [
            (kind, match["name"], self.holds(match, condition))
            for kind, pattern, condition in PATTERNS
            if (match := re.fullmatch(pattern, sentence))
        ]
        return next((claim for claim in found if claim[2]), found[0] if found else None)
