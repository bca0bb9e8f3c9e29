"""Answers that the model should give: sentences made of the catalogue's facts, several wordings each, sums done here.

The generation comes before a verdict ("is a Pascal GPU, so no"): the model then decides from the architecture.
"""

from __future__ import annotations

import random

from training.demo.cards import Card

# kinds of fact that one card can be asked for
FACTS = (
    "capability",
    "memory",
    "generation",
    "bf16",
    "f16",
    "int8",
    "matrix",
    "fp8",
    "bandwidth",
    "driver",
    "dtype",
    "vendor",
)

PARAMETERS = (0.27, 0.5, 1, 1.5, 2, 3, 4, 7, 8, 9, 12, 13, 14, 20, 24, 27, 30, 32, 70)  # 10^9 weights
MEMORIES = (2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96)  # GB of 2^30 bytes
BYTES = {"f16": 2.0, "int8": 1.0, "nf4": 0.5625}  # a weight; nf4 has an f32 scale for every 64
ROOM = 1.2  # the cache and the program beside the weights


def article(word: str) -> str:
    """``word`` with a or an before it, as it is spoken: an RDNA2, an Ada, an Xe2 ("ex-e"), a Turing."""
    return ("an " if word[0] in "AEIOU" or word.startswith(("RDNA", "Xe", "MI")) else "a ") + word


def join(sizes: tuple[int, ...]) -> str:
    """Sizes as a phrase: "4 or 8"."""
    return " or ".join(str(size) for size in sizes)


def figure(value: float) -> str:
    """A figure with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}"


def size_gb(parameters: float, fmt: str) -> float:
    """Size of that many 10^9 weights in a format, in GB of 2^30 bytes."""
    return parameters * 1e9 * BYTES[fmt] / 2**30


def sizes(parameters: float) -> str:
    """One sentence on the size of a model in three formats."""
    f16, int8, nf4 = (f"{figure(size_gb(parameters, fmt))} GB in {fmt}" for fmt in BYTES)
    return f"The weights of {article_number(parameters)}B model take {f16}, {int8} and {nf4}."


def article_number(parameters: float) -> str:
    """The number of parameters with its article: an 8, a 7."""
    return f"{'an' if f'{parameters:g}'.startswith('8') else 'a'} {parameters:g}"


def best_format(parameters: float, memory: int) -> str | None:
    """The most exact of the three formats whose weights and cache fit."""
    return next((fmt for fmt in BYTES if size_gb(parameters, fmt) * ROOM <= memory), None)


def fit(parameters: float, memory: int) -> str:
    """Sizes, and the format to take in that memory."""
    best = best_format(parameters, memory)
    if best is None:
        return f"{sizes(parameters)} With the cache that is too much for {memory} GB, so part must stay on the CPU."
    return f"{sizes(parameters)} In {memory} GB I would take {best}; `rung plan` knows exactly."


def _verdict(card: Card, yes: bool) -> str:
    return f"The {card.name} is {article(card.generation)} GPU, so {'yes' if yes else 'no'}: "


def capability(card: Card) -> list[str]:
    """The version of the architecture, or why there is none."""
    if card.vendor == "nvidia":
        return [
            f"The {card.name} has compute capability {card.version}.",
            f"The compute capability of the {card.name} is {card.version}.",
            f"The {card.name} is {article(card.generation)} GPU with compute capability {card.version}.",
        ]
    return [
        f"The {card.name} is {article(card.maker)} GPU, so it has no compute capability. "
        f"Its architecture is {card.version}."
    ]


def memory(card: Card) -> list[str]:
    """GB of memory, all variants."""
    amount = f"{'up to ' if card.at_most else ''}{join(card.memory)} GB of memory"
    if card.shared:
        return [f"The {card.name} has {amount}, shared with the CPU."]
    if card.each:
        return [f"Each GPU of the {card.name} has {amount}."]
    return [
        f"The {card.name} has {amount}.",
        f"There are {amount} on the {card.name}.",
        f"The {card.name} comes with {amount}.",
    ]


def generation(card: Card) -> list[str]:
    """Architecture family and maker."""
    return [
        f"The {card.name} belongs to the {card.generation} generation of {card.maker}.",
        f"The {card.name} is {article(card.generation)} GPU from {card.maker}.",
    ]


def vendor(card: Card) -> list[str]:
    """Say who makes it."""
    return [f"The {card.name} is made by {card.maker}."]


def bf16(card: Card) -> list[str]:
    """Say whether bf16 products are native."""
    if card.bf16 is None:
        return [
            f"The {card.name} is {article(card.generation)} GPU: "
            "the catalogue knows no bf16 units there, so do not count on it."
        ]
    if card.bf16 == "native":
        return [
            _verdict(card, True) + "it multiplies bf16 natively.",
            _verdict(card, True) + "bf16 is native there.",
        ]
    if card.bf16 == "emulated":
        return [
            _verdict(card, False) + "bf16 is not native there, only emulated, and that is slow.",
            _verdict(card, False) + f"bf16 is only emulated there. Use {card.dtype}.",
        ]
    return [
        _verdict(card, False) + "bf16 is not native there, and bf16 products are refused.",
        _verdict(card, False) + f"bf16 products are refused there. Use {card.dtype}.",
    ]


def f16(card: Card) -> list[str]:
    """Say whether f16 arithmetic is fast."""
    if card.f16 is None:
        return []
    return {
        "fast": [_verdict(card, True) + "its f16 arithmetic is at least as fast as f32."],
        "slow": [
            _verdict(card, False) + "f16 arithmetic is much slower than f32 there. Store f16, but compute in f32.",
            _verdict(card, False) + "it computes f16 much more slowly than f32.",
        ],
        "none": [_verdict(card, False) + "it can store f16 but has no f16 arithmetic. Compute in f32."],
        "native": [_verdict(card, True) + "it computes f16 natively."],
    }[card.f16]


def int8(card: Card) -> list[str]:
    """Say whether int8 products have hardware."""
    if card.int8 is None:
        return []
    if not card.int8:
        return [_verdict(card, False) + "it has no int8 products. Store int8 and compute in a float format."]
    return [
        _verdict(card, True) + f"it multiplies int8 with {card.int8}.",
        _verdict(card, True) + f"{card.int8} can multiply int8 there.",
    ]


def matrix(card: Card) -> list[str]:
    """Say whether there are tensor or matrix cores."""
    if card.matrix is None:
        return []
    word = "tensor cores" if card.vendor == "nvidia" else "matrix units"
    return [_verdict(card, card.matrix) + f"it has {'' if card.matrix else 'no '}{word}."]


def fp8(card: Card) -> list[str]:
    """Say whether matrix units take fp8."""
    if card.fp8 is None:
        return []
    if card.fp8:
        return [_verdict(card, True) + "its matrix units take fp8."]
    return [_verdict(card, False) + "it has no fp8 units. fp8 can only be a storage format there."]


def bandwidth(card: Card) -> list[str]:
    """GB/s of memory."""
    if card.bandwidth is None:
        return []
    rate = f"{figure(card.bandwidth)} GB/s"
    return [f"The memory bandwidth of the {card.name} is {rate}.", f"The {card.name} reads its memory at up to {rate}."]


def driver(card: Card) -> list[str]:
    """Say whether current drivers and CUDA support it."""
    if card.vendor != "nvidia":
        return [f"The {card.name} is made by {card.maker}, so NVIDIA drivers and CUDA do not run on it."]
    if card.driver is None:
        return []
    branch, toolkit = card.driver
    if branch == "current":
        return [_verdict(card, True) + "current drivers and CUDA 13 support it."]
    return [_verdict(card, False) + f"driver branch {branch} was the last for it, and CUDA {toolkit} the last toolkit."]


def dtype(card: Card) -> list[str]:
    """The format to compute in."""
    head = f"The {card.name} is {article(card.generation)} GPU: "
    return {
        "bf16": [head + "use bf16, which is native there."],
        "f16": [
            head
            + ("use f16, because bf16 is not native there." if card.bf16 else "use f16, which it computes natively.")
        ],
        "f32": [head + "compute in f32, and store int8 to save memory."],
        None: [],
    }[card.dtype]


def everything(card: Card) -> list[str]:
    """A summary of what is known."""
    amount = f"{'up to ' if card.at_most else ''}{join(card.memory)} GB of memory{' for each GPU' if card.each else ''}"
    version = (
        f" with compute capability {card.version}" if card.vendor == "nvidia" else f", architecture {card.version}"
    )
    text = f"The {card.name} is {article(card.generation)} GPU from {card.maker}{version}, and has {amount}."
    parts = []
    if card.bf16:
        parts.append("bf16 is native" if card.bf16 == "native" else "bf16 is not native")
    if card.f16:
        parts.append(
            {
                "fast": "f16 is fast",
                "native": "f16 is native",
                "slow": "f16 arithmetic is slow",
                "none": "f16 arithmetic is missing",
            }[card.f16]
        )
    if card.int8 is not None:
        parts.append("int8 products have hardware" if card.int8 else "int8 products have no hardware")
    if not parts:
        return [text]
    listed = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    return [f"{text} There {listed}."]


def fit_card(card: Card, parameters: float) -> list[str]:
    """Say whether a model of that size goes on the card; only for cards with one amount of memory."""
    if len(card.memory) != 1 or card.each:
        return []
    return [
        f"The {card.name} has {'up to ' if card.at_most else ''}{card.memory[0]} GB. {fit(parameters, card.memory[0])}"
    ]


SENTENCES = {
    "capability": capability, "memory": memory, "generation": generation, "bf16": bf16, "f16": f16, "int8": int8,
    "matrix": matrix, "fp8": fp8, "bandwidth": bandwidth, "driver": driver, "dtype": dtype,
    "vendor": vendor, "all": everything,
}  # fmt: skip


def not_stated(card: Card) -> str:
    """For a fact that the catalogue does not hold."""
    return f"The catalogue does not say that about the {card.name}. `rung devices --probe` can measure it."


def choose(sentences: list[str], rng: random.Random) -> str:
    """One wording; the first is the likeliest, so that greedy decoding has no near ties."""
    return rng.choices(sentences, weights=[0.6, 0.25, 0.15][: len(sentences)])[0]
