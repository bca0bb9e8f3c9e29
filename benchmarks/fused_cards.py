"""The share of the catalog's GPUs that have a fused rung for a product, by the way it is reached.

    python benchmarks/fused_cards.py [--formats q4_0,q8_0,q4_k,q6_k,nf4,int8] [--list]

A rung is fused where it multiplies a weight as it is stored or packed, without a decoded copy in memory. A card counts
for torch (``cuda.rows``, ``cuda.stored``) with the newest build of torch that carries its code, and for WebGPU where a
driver reaches it. Prints the share by format and way; ``--list`` names the cards without any. Ends with 1 where a
format is below 93 %. Nothing of this says how fast a card is, or that one has run it.
"""

from __future__ import annotations

import argparse

from rung.core.types import Case, Device
from rung.hardware import catalog
from rung.hardware.families import webgpu
from rung.ops import LADDERS
from rung.ops.linear import DECODING

FORMATS = "q4_0,q8_0,q4_k,q6_k,nf4,int8"
SHARE = 0.93


def ways(name: str) -> list[Device]:
    """Return a card as torch drives it, and as WebGPU does where it can."""
    card = catalog.device(name)
    other = webgpu.reached(card)
    return [card] if other is None else [card, other]


def fused(device: Device, format: str) -> str:
    """Return the rung that multiplies a row there, empty where it decodes the weight first."""
    climb = LADDERS["linear"].climb(device, Case("linear", format, "f32", (1, 4096, 4096)))
    return "" if climb.rung is None or climb.rung.name in DECODING else climb.rung.name


def main() -> int:
    """Print the shares."""
    parser = argparse.ArgumentParser(description="Share of the catalog's GPUs with a fused rung.")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--list", action="store_true", help="name the cards without any")
    options = parser.parse_args()
    kinds = catalog.architectures()
    cards = {p.name: ways(p.name) for p in catalog.products() if kinds[p.arch].kind != "cpu"}
    missed = False
    for format in options.formats.split(","):
        rungs = {name: {rung for device in found if (rung := fused(device, format))} for name, found in cards.items()}
        share = sum(map(bool, rungs.values())) / len(cards)
        by_torch = sum(any(rung.startswith("cuda.") for rung in each) for each in rungs.values()) / len(cards)
        by_webgpu = sum("webgpu.rows" in each for each in rungs.values()) / len(cards)
        print(f"{format:6s} {share:6.1%} of {len(cards)} GPUs; CUDA C {by_torch:.1%}, WebGPU {by_webgpu:.1%}")
        missed |= share < SHARE
        if options.list:
            print("       none: " + ", ".join(name for name, each in rungs.items() if not each))
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
