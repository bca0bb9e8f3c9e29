"""Names of cards that the catalogue does not hold: real ones, and invented ones near to known names."""

from __future__ import annotations

import random
from collections.abc import Collection

# Real products, old, new or of other makers; those that the catalogue comes to hold are dropped by ``names``.
REAL = tuple(
    name.strip()
    for name in """
    GeForce GT 210|GeForce 8800 GT|GeForce 9800 GTX|GeForce GTS 250|GeForce GTX 260|GeForce GTX 280|GeForce GTX 295|GeForce GTX 460|GeForce GTX 470|GeForce GTX 480|
    GeForce GTX 550 Ti|GeForce GTX 560 Ti|GeForce GTX 570|GeForce GTX 580|GeForce GTX 590|GeForce GT 610|GeForce GT 640|GeForce GTX 650|GeForce GTX 660|GeForce GTX 660 Ti|GeForce GTX 670|
    GeForce GTX 680|GeForce GTX 690|GeForce GT 710|GeForce GT 730|GeForce GTX 745|GeForce GTX 750|GeForce GTX 760|GeForce GTX 770|GeForce GTX 780|GeForce GTX 780 Ti|GeForce GTX TITAN Black|
    GeForce GTX TITAN Z|GeForce 840M|GeForce 940MX|GeForce MX150|GeForce MX250|GeForce MX350|GeForce MX450|GeForce GT 1010|GeForce GT 1030|GeForce GTX 965M|GeForce GTX 980M|
    GeForce 256|GeForce 2 MX|GeForce 4 Ti 4200|GeForce FX 5200|GeForce 6600 GT|GeForce 6800 Ultra|GeForce 7900 GTX|Quadro FX 5800|Quadro NVS 295|Quadro 4000|Quadro 6000|Quadro K420|
    Quadro K600|Quadro K620|Quadro K2000|Quadro K2200|Quadro K4000|Quadro K4200|Quadro K5000|Quadro K5200|Quadro K6000|Quadro M2000|Quadro M4000|Quadro M5000|Quadro P520|Quadro P3000|
    Quadro P3200|Quadro P4200|Quadro T400|Quadro T600|Quadro T2000|Quadro RTX 3000|RTX A400|RTX A1000|RTX A3000|RTX 2000 Ada|RTX 4500 Ada|Tesla C1060|Tesla C2050|Tesla C2075|Tesla M2090|
    Tesla K10|Tesla K20|Tesla K20X|Tesla K40|Tesla M4|Tesla M6|Tesla M10|Tesla P6|NVIDIA A800|NVIDIA H20|NVIDIA H800|NVIDIA L20|NVIDIA L2|GRID K1|GRID K520|CMP 30HX|CMP 50HX|CMP 170HX|Tegra X1|Tegra K1|
    GeForce RTX 6060|GeForce RTX 6070|GeForce RTX 6080|GeForce RTX 6090|GeForce RTX 4050|GeForce RTX 4090 Ti|GeForce RTX 4090 D|GeForce RTX 5090 D|GeForce RTX 5090 Ti|GeForce RTX 3070 SUPER|
    GeForce RTX 2050|Radeon 7500|Radeon 9700 Pro|Radeon X800|Radeon X1950|Radeon HD 2900|Radeon HD 3870|Radeon HD 4850|Radeon HD 4870|Radeon HD 5770|Radeon HD 5870|Radeon HD 6870|Radeon HD 6970|
    Radeon HD 7750|Radeon HD 7850|Radeon HD 7870|Radeon HD 7950|Radeon HD 7970|Radeon HD 7990|Radeon R5 230|Radeon R7 240|Radeon R7 250|Radeon R7 260X|Radeon R7 360|Radeon R7 370|Radeon R9 270X|
    Radeon R9 280X|Radeon R9 285|Radeon R9 290|Radeon R9 290X|Radeon R9 380|Radeon R9 390|Radeon R9 390X|Radeon R9 Fury|Radeon R9 Fury X|Radeon R9 Nano|Radeon Pro Duo|Radeon RX 460|Radeon RX 470|
    Radeon RX 480|Radeon RX 540|Radeon RX 550|Radeon RX 560|Radeon RX 570|Radeon RX 590|Radeon RX 5300|Radeon RX 5500 XT|Radeon RX 5600 XT|Radeon RX 6300|Radeon RX 6400|Radeon RX 6500 XT|
    Radeon RX 6650 XT|Radeon RX 6750 XT|Radeon RX 6950 XT|Radeon RX 7400|Radeon RX 7650 GRE|Radeon RX 8800 XT|Radeon RX 9050|Radeon RX 9080 XT|Radeon Pro WX 5100|Radeon Pro WX 7100|
    Radeon Pro W5500|Radeon Pro W5700|Radeon Pro W6600|Radeon Pro W6800|Radeon Pro W7500|Radeon Pro W7600|Radeon Pro W7800|FirePro W8100|FirePro W9100|FirePro S9150|Radeon 610M|Radeon 660M|Radeon 680M|
    Radeon 740M|Radeon 760M|Radeon 880M|Radeon 890M|Radeon 8050S|Radeon Vega 8|Radeon Vega 11|Vega Frontier Edition|Instinct MI6|Instinct MI8|Instinct MI400|Instinct MI430X|Instinct MI455X|Arc A310|Arc A350M|
    Arc A370M|Arc A550M|Arc A580|Arc A730M|Arc B770|Arc Pro A40|Arc Pro A50|Arc Pro A60|Arc Pro B50|Intel HD 4000|Intel HD Graphics 530|Intel UHD 620|Intel UHD 630|Intel UHD 770|Intel Iris Plus|
    Intel Iris Xe|Intel Iris Pro 5200|Larrabee|Ponte Vecchio Max 1350|Gaudi 2|Gaudi 3|Xeon Phi 7120|Apple M5|Apple M5 Pro|Apple M5 Max|Apple M6|Apple A14|Apple A17 Pro|Apple A18|Adreno 530|Adreno 640|
    Adreno 740|Adreno X1|Mali G52|Mali G78|Mali G710|Immortalis G715|PowerVR SGX|PowerVR GT7600|VideoCore VI|Voodoo 2|Voodoo 3|Voodoo 5 5500|Riva TNT|Riva TNT2|Riva 128|Matrox G400|Matrox Parhelia|
    Matrox Millennium|S3 Virge|S3 Savage 4|Rage 128|Kyro II|Trident 8900|Moore Threads MTT S80|MTT S4000|Biren BR100|Ascend 310|Ascend 910B|Kunlun P800|TPU v3|TPU v4|TPU v5e|Trainium 2|Inferentia 2|
    Groq LPU|Cerebras WSE 3|Graphcore IPU|Tenstorrent Wormhole|Hailo 8|Coral Edge TPU|Jetson TK1|Jetson TX1|Jetson T4000|Rubin R100|Rubin CPX|Feynman F100|GeForce RTX 7090|GeForce GTX 1090|GeForce GTX 2080|
    Steam Deck|PlayStation 5|Xbox Series X|Raspberry Pi 5
    """.replace("\n", "").split("|")
)

PATTERNS = (
    "GTX {two}{tail}", "GTX {two}0", "GTX {nn}{tail} Ti", "RTX {nn}{tail}", "RTX {nn}{tail} Ti", "RTX {nn}{tail} SUPER", "GT {nnn}", "GTX {nnn}", "GTX {nnn} Ti", "GeForce {nnnn}",
    "GeForce GTX {nn}{tail}", "GeForce RTX {nn}{tail}", "Quadro P{n}{hundred}", "Quadro K{n}{hundred}", "Quadro RTX {n}{hundred}", "Quadro M{n}{hundred}", "Tesla {letter}{two}", "Tesla {letter}{n}",
    "NVIDIA {letter}{nnn}", "{letter}{nnn}", "{letter}{two}", "RTX A{n}{hundred}", "RTX PRO {n}{hundred}", "RX {nnn}", "RX {n}{hundred} XT", "RX {n}{hundred}", "RX {nn}{tail} XT", "Radeon RX {n}{hundred}",
    "Radeon RX {nn}{tail} XTX", "Radeon HD {n}{hundred}", "Radeon R{n} {nnn}", "Radeon {nnn}M", "Radeon Pro W{n}{hundred}", "Instinct MI{nnn}", "MI{nnn}X", "MI{two}", "Arc A{nnn}", "Arc B{nnn}", "Arc C{nnn}",
    "Arc {letter}{nnn}", "Iris {nnn}", "Apple M{m}", "Apple M{m} Max", "Apple M{m} Ultra", "Jetson {word}", "TITAN {letter}", "{word} {nnn}", "{word} {nnnn}", "{word} {letter}{nnn}", "{word} card", "{word}",
)  # fmt: skip
SYLLABLES = "ba be bo da de do fa fi fo ga go gu ka ki ko la li lo ma mi mo na ne no pa pi po ra ri ro sa so su ta te to va vi vo xa xe za zo zu tron dex rix max lux nova".split()


def _invented(rng: random.Random) -> str:
    word = "".join(rng.choices(SYLLABLES, k=rng.choice((2, 2, 3)))).capitalize()
    return rng.choice(PATTERNS).format(
        two=rng.randint(11, 99),
        nn=rng.randint(10, 99),
        nnn=rng.choice((rng.randint(100, 999), rng.randrange(100, 1000, 10))),
        nnnn=rng.choice((rng.randint(1000, 9999), rng.randrange(1000, 10000, 10))),
        tail=rng.choice((40, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95)),
        n=rng.randint(1, 9),
        hundred=rng.choice((100, 200, 300, 400, 500, 600, 700, 800, 900, "000", 250, 350, 750, 850, 950)),
        m=rng.randint(5, 12),
        letter=rng.choice("ABCDEFGHKLMNPRSTVWXZ"),
        word=word,
    )


def real_names(known: Collection[str]) -> tuple[list[str], list[str]]:
    """Real cards outside the catalogue, as (training, held back); ``known`` are lower-case names without spaces."""
    real = [name for name in REAL if not _is_known(name, known)]
    return [name for i, name in enumerate(real) if i % 5 != 3], [name for i, name in enumerate(real) if i % 5 == 3]


def invented_name(rng: random.Random, known: Collection[str]) -> str:
    """An invented card that is not in the catalogue under any of its names."""
    while True:
        name = _invented(rng)
        if not _is_known(name, known):
            return name


def squeeze(name: str) -> str:
    """A name without case, spaces, hyphens and makers: two names that squeeze to the same are one."""
    name = name.lower().replace("-", " ")
    words = [word for word in name.split() if word not in MAKERS]
    return "".join(words)


MAKERS = frozenset("nvidia geforce amd radeon intel tesla quadro instinct apple graphics card".split())


def _is_known(name: str, known: Collection[str]) -> bool:
    return squeeze(name) in known
