"""The page on the catalog's sources and doubts: what rows rest on, and those that nobody has checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rung.hardware import catalog
from rung.hardware.catalog.releases import Build, builds, features
from rung.hardware.catalog.rows import sources
from rung.hardware.catalog.tables import load

_HEAD = """# The catalog: sources and doubts

`rung devices --catalog --sources` prints this page from the rows themselves, and a test compares them. `rung devices
--catalog` lists the products, `rung devices --catalog unsure` those that nobody has checked, `rung devices NAME` one
in full with the source of each capability.

## How a figure comes about

- **Memory, bandwidth, rates.** Vendors' figures at boost clock, dense. A row that counts as *checked* carries
  shaders, clock, bus width and memory rate, from the vendor's data sheet (*computed*) or from TechPowerUp's table
  (*techpowerup*) or other lists (*listed*, *makers*, *pages*), and its figures were computed again from these within
  3 %; a test does it. *Recalled* rows carry units too, but these were not looked up again. The rest are figures of
  data sheets. All are upper bounds: a probe usually measures less. Where two sources differ, the note of the row says
  so.
- **Held against others.** Of the rows from data sheets, all that TechPowerUp lists agree with it in shaders, clock
  and bandwidth within 3 %, but for the MI300X and the Arc A770 16GB (512 GB/s there, 560 at Intel). llama.cpp,
  which reads every weight once a token, reached 51 to 84 % of the catalog's bandwidth on eleven cards.
- **Free memory** is what a program finds on an idle card, less than what is printed on the box: the driver keeps
  some, and so does error correction (Tesla T4: 15,109 of 16,384 MiB). *Seen*: in public `nvidia-smi` output of an
  idle card, `0MiB / 5059MiB`. Newer drivers print the whole memory as total and show what they keep as reserved; the
  figure here is without it.
- **Runtime memory** is what context, kernels and libraries take before the first tensor. Few measurements name card,
  torch and CUDA; where none fits, 400 MB are assumed.
- **Capabilities** are those of the architecture's row, unless a rule on hardware and software together says
  otherwise. Where sources differ or nobody has measured, the level is `unknown`, which plans count as no.
- **Which build carries code for what** was listed from wheels, taken from build scripts, or from
  `torch.cuda.get_arch_list()` in reports. Code for one compute capability runs on the same major number with a higher
  minor one; AMD's runs on exactly its target.

## What is doubtful beyond single rows

- Free memory of AMD, Intel and Apple cards, and of NVIDIA's without a figure, is a share of the memory: 98, 95, 67 to
  75 and 97.5 %. Figures marked `?` in `products.table` are remembered, not seen.
- Cloud instances and Jetson builds are as remembered.
- Products that nobody has checked, and why: two figures differ (Instinct MI25, RTX 2000 Ada, RTX PRO 4000 and 5000,
  Arc A310, Jetson Thor); chips of clouds and boards that are on no list that was found (GH200, GB200, H20, Xeon
  Platinum 8275CL, 8375C and 8488C, Graviton2 and 4, Grace); Apple publishes bandwidth, but neither shaders nor
  clocks; graphics in processors whose memory rate was not found (Radeon 680M, 860M, 890M, Arc of Meteor Lake); the
  clock under AVX-512 (Xeon Gold 6148); not found (MI300A).
- Processors that nobody has checked: those of phones, boards and Apple; of Intel and AMD those whose base clock or
  memory the lists of 2023 leave out (laptops since 2021, Ryzen 7000) and those that are newer. What a design of cores
  ends in a clock (`cores.table`) is counted with llvm-mca or remembered; none but a Zen 4 was timed.
- bf16 products on compute capability 6.0: refused with CUDA 11.3; with CUDA 12 nobody has reported either way.
- int8 products of torch on 6.1, 7.0 and GTX 16 cards: reports differ.
- CTranslate2 says compute capability 3.5 and newer; its wheel of 4.8.5 has no code for 5.0 and 5.2.
- vLLM's documentation lists Volta for GPTQ, bitsandbytes and GGUF; the wheel of 0.33.0 has no code for it.
- bitsandbytes asks 7.5 for LLM.int8(); older releases load a slower library on older cards instead, which dies where
  `igemmlt` is called.
- GTX 16 cards have the compute capability of the RTX 20 without its matrix units; f16 convolutions are known to give
  NaN there.
- An RX 580 (gfx803) is said to run torch 1.12, but the release branch of the build scripts has no code for it, and
  reports of 1.8 and of RX 480 end in hipErrorNoBinaryForGpu: https://github.com/pytorch/pytorch/issues/53738. People
  compile their own.
- An RX 5700 runs torch 1.13 as if it were an RX 6800, and no later release; an RX 6600 or 6700 any release in that
  way.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "".join([_HEAD, *_architectures(), *_software(), *_sources()])


def _architectures() -> Iterator[str]:
    rows = [row for row in catalog.architectures().values() if row.status == "unsure"]
    yield f"\n## Architectures that nobody has checked ({len(rows)})\n\n| key | chips | from |\n|---|---|---|\n"
    for row in rows:
        yield f"| {row.key} | {row.chips} | {row.source} |\n"
    yield "\nLevels that nobody knows: " + "; ".join(_unknown()) + ".\n"


def _unknown() -> Iterable[str]:
    found: dict[str, list[str]] = {}
    for row in catalog.architectures().values():
        for dtype, level in row.matmul.items():
            if level == "unknown":
                found.setdefault(f"{dtype} products", []).append(row.key)
    return (f"{what} on {', '.join(keys)}" for what, keys in found.items())


def _software() -> Iterator[str]:
    listed = [build for build in builds() if build.status == "unsure"]
    yield f"\n## Builds of torch whose code nobody has listed ({len(listed)} of {len(builds())})\n\n"
    yield "| build | for | from |\n|---|---|---|\n"
    for names, build in _grouped(listed).items():
        yield f"| {names} | {' '.join(build.code)} | {build.source} |\n"
    rows = [row for row in features() if row["status"] == "unsure"]
    names = ", ".join(f"{row['package']} {row['feature']}" for row in rows)
    yield f"\nFeatures of packages that are as remembered: {names}.\n"


def _grouped(listed: Sequence[Build]) -> Mapping[str, Build]:
    """One entry for releases that differ in their number only."""
    groups: dict[tuple[str, tuple[str, ...], str, str], list[Build]] = {}
    for build in listed:
        groups.setdefault((build.name, build.code, build.platform, build.source), []).append(build)
    found = {}
    for (name, _, platform, _), same in groups.items():
        releases = ", ".join(build.release for build in same)
        found[f"{releases}+{name}" + (f" ({platform})" if platform else "")] = same[0]
    return found


def _sources() -> Iterator[str]:
    yield "\n## Sources\n\n"
    for text in dict.fromkeys([*sources().values(), *load("software.toml")["sources"].values()]):
        yield f"- {text}\n"
    yield "- Each rule on hardware and software together and each runtime figure names its own in `software.toml`.\n"
