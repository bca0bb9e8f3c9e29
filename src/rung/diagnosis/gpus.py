"""GPU names in what people write: ``RTX 20xx``, ``8x H100 80GB``, ``NVIDIA P104-100``, ``gfx1031``."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rung.core.value import Value


@dataclass(frozen=True)
class Gpu(Value):
    """A GPU as far as its name tells: ``capability`` is major * 10 + minor of NVIDIA's compute capability."""

    name: str
    vendor: str
    capability: int | None = None
    arch: str = ""

    @property
    def half_is_broken(self) -> bool:
        """GeForce GTX 16 and its kin, and AMD's first RDNA: half precision is known for NaN in several libraries."""
        if self.vendor == "amd":
            return bool(re.search(r"gfx101[012]|\b(?:RX|Pro) ?W?5[3567]00", f"{self.arch} {self.name}", re.IGNORECASE))
        return self.arch == "sm_75-tu11x" or bool(
            re.search(
                r"(?<!\d)16(?:[356]0(?!\d)|xx|[- ]series)|\bT(?:[456]00|550|1[02]00|2000)\b|\bMX[45]50\b",
                self.name,
                re.IGNORECASE,
            )
        )


#: Series that people write without a model number, and the compute capability of all their cards.
_SERIES = (
    (r"\b(?:RTX|GeForce)? ?50(?:xx|[- ]series)\b|\b(?:RTX ?)?50[5-9]0", 120),
    (r"\b(?:RTX|GeForce)? ?40(?:xx|[- ]series)\b|\b(?:RTX ?)?40[5-9]0", 89),
    (
        r"\b(?:RTX|GeForce)? ?30(?:xx|[- ]series)\b|\b(?:RTX ?)?30[5-9]0|\bA(?:10|16|40|2000|4000|4500|5000|5500"
        r"|6000)G?\b|\bRTX A[1245]\d{2,3}\b|\bCMP ?90HX\b",
        86,
    ),
    (
        r"\b(?:RTX|GeForce)? ?20(?:xx|[- ]series)\b|\b(?:RTX ?)?20[678]0|\b(?:GTX ?)?16(?:[356]0|xx|[- ]series)"
        r"|\bRTX ?[34568]000\b|\bMX[45]50\b|\bT(?:[456]00|550|1[02]00|2000)\b|\bCMP ?[345]0HX\b|\bTuring\b|\bT4G?\b",
        75,
    ),
    (r"\bTITAN V\b|\bVolta\b|\bV100S?\b|\bGV100\b", 70),
    (
        r"\bGTX ?10(?:\d\d|xx)|\b10[5-8]0 ?Ti\b|\b10xx\b|\b10[- ]series\b|\bP(?:4|6|40)\b"
        r"|\bP10[46]-\d\d\d|\bTITAN Xp?\b|\bMX[123]\d0\b"
        r"|\bQuadro P\d+|\bPascal\b",
        61,
    ),
    (r"\bP100\b|\bGP100\b", 60),
    (r"\bGTX ?9(?:[78]\d|[56]0(?!M))|\bM(?:4|6|10|40|60)\b|\bQuadro M\d+|\bGTX ?9xx", 52),
    (
        r"\bGTX ?7(?:50|45)|\bGTX ?9[56]0M\b|\b[89][1-4]0MX?\b|\bGT[X]? ?9[1-4]\dM?X?|\b[89][345]0M\b|\bMaxwell\b"
        r"|\bM(?:5|6|12)00M?\b|\bK(?:620|1200|2200)\b",
        50,
    ),
    (r"\bK80\b", 37),
    (r"\bK(?:20|40)[cmx]?\b|\bGT ?7[123]0\b|\bGTX ?780|\bKepler\b|\bGTX TITAN\b", 35),
    (r"\bGT[X]? ?(?:6\d\d|7[4-7]\d)M?\b|\bK(?:5|10|[1-6]000|[45]200)M?\b|\bNVS ?[35]10\b", 30),
    (r"\bGTX ?[45][5-9]\d(?:M| ?Ti)?\b|\bC20[57][05]\b|\bM20[579]0\b|\bFermi\b", 20),
    (r"\bGB10\b|\bDGX Spark\b", 121),
    (r"\bThor\b", 110),
    (r"\bB300\b|\bGB300\b", 103),
    (r"\bG?B[12]00\b|\bBlackwell\b", 100),
    (r"\bH[128]00\b|\bH20\b|\bGH200\b|\bHopper\b", 90),
    (r"\bL(?:4|20|40S?)\b|\bAda\b", 89),
    (r"\bOrin\b", 87),
    (r"\bA(?:100|30|800)\b|\bCMP ?170HX\b|\bAmpere\b", 80),
    (r"\bXavier\b", 72),
    (r"\bTX2\b", 62),
    (r"\b(?:Jetson )?Nano\b|\bTX1\b", 53),
)
_AMD = re.compile(
    r"\bgfx\d{2,4}[a-f]?\b|\bRadeon[\w ]*|\bRX ?(?:Vega ?)?\d{2,4}\w*(?: (?:XTX?|GRE)\b)?|\bMI ?\d{2,3}[AX]?\b"
    r"|\bVega ?\d+|\bR[579] ?(?:[23]\d0X?|Fury\w*|Nano)\b|\bFirePro[\w ]*|\bRyzen AI Max\S*(?: \d+)?"
    r"|(?<!GT )(?<!GTX )(?<!GTX)(?<!GT)\b[67]\d0M\b|\bRyzen\b.{0,20}\bVega\b",
    re.IGNORECASE,
)
_INTEL = re.compile(
    r"\bIntel(?:\(R\))? (?:Arc|Iris|UHD|HD|Data Center GPU)[\w ()]*|\bArc (?:Pro )?[AB]\d{2,3}M?\b"
    r"|\bIris(?:\(R\))? (?:Xe|Plus|Pro)\b[\w ]*"
    r"|\bU?HD (?:Graphics )?\d{3}\b|\b(?:Data Center GPU )?(?:Max 1[15]\d0|Flex 1[47]0)\b",
    re.IGNORECASE,
)
_APPLE = re.compile(
    r"\bApple (?:M\d|Silicon)[\w/ ]*|\bM[1-5](?: (?:Pro|Max|Ultra))?\b(?=.{0,20}(?:mac|apple|mps))", re.IGNORECASE
)
#: What surrounds a name in a field of an environment.
_NOISE = re.compile(
    r"^\s*\d+ ?x ?|\(.*?\)|\b\d+ ?[GM]i?B\b|\bSXM\d?\b|\bPCI-?E\b|-(?:PCIE"
    r"|SXM\d)-\d+GB",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=512)
def gpu_of(text: str) -> Gpu | None:
    """The GPU that a short text names (the first of several), or None."""
    from rung.hardware import catalog  # it takes longer than everything else here: only where a name is to be found

    first = re.split(r"[,;/&+]| and ", text)[0]
    if found := _AMD.search(text):
        arch = re.search(r"gfx\w+", text)
        return Gpu(found[0].strip(), "amd", arch=arch[0].lower() if arch else _arch(found[0]))
    if found := _INTEL.search(text):
        return Gpu(found[0].strip(), "intel", arch="xe")
    if found := _APPLE.search(text):
        return Gpu(found[0].strip(), "apple", arch="apple")
    for candidate in (first, _NOISE.sub(" ", first).strip()):
        product = catalog.find(candidate) if 1 < len(candidate) < 60 else None
        if product is not None:
            cc = catalog.architectures()[product.arch].cc
            vendor = catalog.architectures()[product.arch].vendor
            return Gpu(product.name, vendor, capability(cc), product.arch)
    for pattern, value in _SERIES:
        if re.search(pattern, first, re.IGNORECASE) or re.search(pattern, text, re.IGNORECASE):
            return Gpu(first.strip(), "nvidia", value, f"sm_{value}")
    if re.search(r"\bAMD\b(?! (?:Ryzen|EPYC|Threadripper))|\bATI\b", text):
        return Gpu("the AMD GPU", "amd")
    return None


def _arch(name: str) -> str:
    from rung.hardware import catalog

    product = catalog.find(name)
    return product.arch if product is not None else ""


#: A number alone is a major one below this, else major and minor together.
_MAJORS = 20


def capability(text: str) -> int | None:
    """``7.5``, ``(7, 5)``, ``sm_75``, ``75``, ``>= 8.9`` as major * 10 + minor; None when there is none."""
    if found := re.search(r"(\d{1,2})[.,] ?(\d)", text):
        return int(found[1]) * 10 + int(found[2])
    if found := re.search(r"(?:sm_?|compute_)(\d{2,3})", text):
        return int(found[1])
    if found := re.fullmatch(r"\s*(\d{1,3})\s*", text):
        number = int(found[1])
        return number * 10 if number < _MAJORS else number
    return None


def capability_text(value: int) -> str:
    """75 as ``7.5``."""
    return f"{value // 10}.{value % 10}"
