"""Hold what a log and its environment say about device and software, each with where it was found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rung.core.errors import UsageError
from rung.diagnosis.gpus import Gpu, capability, capability_text, gpu_of
from rung.diagnosis.logs.log import plain

KEYS = ("gpu", "compute_capability", "driver", "cuda", "torch", "os", "cpu", "library_versions")
#: Letters of a value that are read: what pip freeze lists has more than a page.
_LONGEST = 20_000


@dataclass
class Facts:
    """Everything known beside the error itself; None and empty mean unknown.

    ``capability`` is major * 10 + minor; ``torch`` and ``cuda`` (of torch's build, else the toolkit) are pairs of
    numbers; ``build`` is torch's as the catalog names it (2.9, cu130); ``compiled_for`` lists the architectures that
    a build names; ``dtypes`` are f16, bf16, fp8, int8; ``stated`` is all that the environment says; ``without_gpu``:
    it says that there is none.
    """

    gpu: Gpu | None = None
    capability: int | None = None
    torch: tuple[int, int] | None = None
    cuda: tuple[int, int] | None = None
    build: tuple[str, str] | None = None
    toolkit: tuple[int, int] | None = None
    driver: str = ""
    os: str = ""
    cpu: str = ""
    libraries: str = ""
    stated: str = ""
    dtypes: frozenset[str] = frozenset()
    compiled_for: tuple[int, ...] = ()
    on_cpu: bool = False
    without_gpu: bool = False
    contradictions: tuple[str, ...] = ()

    @property
    def windows(self) -> bool:
        """Return whether the system is Windows; the Linux inside of it is none."""
        return "windows" in self.os.lower() and "wsl" not in self.os.lower()

    @property
    def apple(self) -> bool:
        """Return whether the system is macOS."""
        named = re.search(r"mac|darwin|osx", self.os, re.IGNORECASE) or _APPLE.search(f"{self.cpu} {self.libraries}")
        return bool(named) or (self.gpu or _NONE).vendor == "apple"


_NONE = Gpu("", "")
#: Processors and packages that only Macs have.
_APPLE = re.compile(r"\bApple\b|^\W*M[1-5]\b|\btensorflow-(?:metal|macos)\b|\bjax-metal\b|\bmlx(?:[-_]lm)? \d")


def environment_of(environment: object) -> dict[str, str]:
    """The known keys of an environment object as strings; absent, null and unknown keys are left out.

    Raises ``UsageError`` for what is no JSON object.
    """
    if environment is None:
        return {}
    if not isinstance(environment, Mapping):
        raise UsageError(
            f"An environment is a JSON object, not {type(environment).__name__}.", [f"its keys: {', '.join(KEYS)}"]
        )
    return {key: text for key in KEYS if (text := _text(environment.get(key)))}


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):  # says nothing of which one
        return ""
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {item}" for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return plain(str(value))[:_LONGEST].strip()


_NO_GPU = re.compile(
    r"\W*(?:none|n/?a|cpu(?: only)?|(?:no|without)(?: an?)?(?: (?:nvidia|cuda|dedicated|discrete))?(?: (?:gpu|card))?)"
    r"\W*",
    re.IGNORECASE,
)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_CAPABILITY = re.compile(
    r"[Cc]apabilit(?:y|ies)(?: among GPUs detected)?[ :=]*(?:of |is )?(?:sm_(?P<sm>\d{2,3})"
    r"|\(?(?P<major>\d{1,2})[.,] ?(?P<minor>\d)\)?)"
)
#: Where a message speaks of the GPU that it met, whatever else it demands.
_OWN = re.compile(
    r"with CUDA capability sm_(?P<sm>\d{2,3})|(?:[Cc]urrent capability: ?|Target GPU SM )(?P<short>\d{2,3})\b"
    r"|Compiling entry function '\w{1,200}' for 'sm_(?P<entry>\d{2,3})\w?'"
    r"|(?:[Yy]our current GPU is|Unsupported architecture|for current compute capability:|Runtime compute cap"
    r"|GPU with CUDA compute cap) (?P<card>\d{2,3})\b"
    r"|Unsupported SM: 0x(?P<first>\d)0?(?P<second>\d)\b"
    r"|(?:[Yy]our .{0,60}(?:GPU|device)(?:'s)? (?:has )?|on device with )(?:compute )?capability"
    r" (?:is )?\(?(?P<major>\d{1,2})[.,] ?(?P<minor>\d)"
)
_DEMAND = re.compile(
    r"(?:at least|compiled for|>=?|below|lower than|less than|requires?|needs?|higher|minimum"
    r"|Min(?:imum)?)\W{0,3}(?:[Cc]ompute )?(?:[Cc]apability)?[ :]*\(?\d|supported by this|support is|[Mm]ake sure",
)
_TORCH = re.compile(
    r"(?:torch(?:_version|\.__version__|: | |==|=)+\s*[=:]?\s*"
    r"|PyTorch (?:version:? )?)v?(\d+\.\d+)[\w.]*(?:\+(cu\d+|cpu|rocm[\d.]+|xpu))?"
)
#: CUDA in the names of packages, and in paths and banners of its toolkit.
_PACKAGED = re.compile(
    r"(?i)(?:\bcu|-cu|\+cu|cuda-?|cudatoolkit[ =]+)(?P<name>\d{3}|[789]\d)\b"
    r"|\bcuda(?:toolkit)?[ =v-]*(?P<pair>\d{1,2}\.\d)"
)
_TOOLKIT = re.compile(
    r"(?i)/cuda-(\d{1,2}\.\d)\b|\\CUDA\\v(\d{1,2}\.\d)\b"
    r"|(?:\brelease|Runtime API Version:|\bcudatoolkit[= ]) ?(\d{1,2}\.\d)\b"
)
_ARCHS = re.compile(
    r"(?:supports CUDA capabilities|compiled for:?|installation with arch:|(?:ARCH_LIST|arch_list\(\))[:=)]?\s?(?=\[)"
    r"|(?m:^)(?=\['sm_\d))"
    r"((?:[ ,\['\"]+(?:sm_|compute_)?\d{2,3}\w?['\"]?)+)"
)
_DRIVER_IN_LOG = re.compile(r"(?i)\b(?:nvidia )?driver(?: version)?[:= ]{1,3}(\d{3}\.\d{2,3}(?:\.\d{2})?)\b")
_DTYPES = {
    "bf16": re.compile(r"bfloat_?16|bf16|CUDA_R_16BF", re.IGNORECASE),
    "f16": re.compile(r"\bhalf\b|(?<!b)float16|\bfp16\b|CUDA_R_16F\b", re.IGNORECASE),
    "fp8": re.compile(r"\bfp8|float8|CUDA_R_8F", re.IGNORECASE),
    "int8": re.compile(r"\bint8\b|8-?bit|CUDA_R_8I", re.IGNORECASE),
}
#: Paths and names that only one system has.
_SYSTEMS = (
    ("Windows", re.compile(r"\b[A-Z]:\\|\.dll\b|WinError|WindowsPath|\.\.\.\\")),
    ("macOS", re.compile(r"(?<![\w.])/Users/\w|/opt/homebrew/|\.dylib\b|macosx_")),
)
_OF_WINDOWS = re.compile(r"\bWinError\b|(?<![\w/])[A-Z]:\\\w|WindowsPath\(")
_GPU_IN_LOG = re.compile(
    r"(?:Device \d+: |Your |Found GPU\d+ |GPU[ :]\d* ?|on (?:a |an |the )?)?"
    r"(?P<name>\b(?:NVIDIA |AMD )?(?:GeForce |Tesla |Quadro )?(?:(?:RTX|GTX|GT|TITAN|RX) ?[A-Z]?\d{2,4}(?:xx)?"
    r"(?: ?(?:Ti|SUPER|XTX|XT|M|D))*\b"
    r"|(?:Tesla|Quadro) [A-Z]{1,3}\d{1,4}\w?|(?<!only supported on )(?:[AHVPTLK](?:100|200|800|80|40|30|10|40S)|[TL]4"
    r"|A10G)\b(?!\+)|GB10\b)"
    r"|(?<!', ')(?<![;,])gfx\d{2,4}[a-f]?\b|Intel(?:\(R\))? (?:Arc|U?HD|Iris)[\w ]*|Apple M\d"
    r"|(?<=your current machine is )(?:Kepler|Maxwell|Pascal|Volta|Turing|Ampere|Ada|Hopper|Blackwell)\b"
    r"|(?<![\w.:/#-])(?<!line )(?:16[356]0|20[678]0|30[5-9]0|40[5-9]0|50[5-9]0)(?: ?(?:Ti|Super|S|D))?(?![\w.:/-])"
    r"|\b(?:10[5-8]0|9[6-8]0) ?Ti\b|\b[1-5]0xx\b|\b16xx\b|\bMX ?[1-5][1-5]0\b)",
    re.IGNORECASE,
)

#: Where a message names the AMD GPU that it met, and not those that a library has code for.
_OWN_AMD = re.compile(
    r"(?:\bgpu_type=|GPU arch ?: ?|AMDGPU version ?: ?|One of GPU archs of \[')(?P<name>gfx\w{3,5})\b"
)


def gather(environment: Mapping[str, str], lines: Sequence[str], named: Iterable[str] = ()) -> Facts:
    """The facts of an environment, and of a log's lines where the environment says nothing; ``named`` are lines with
    names of files, which tell the system."""
    facts = Facts(
        driver=environment.get("driver", ""),
        os=environment.get("os", ""),
        cpu=environment.get("cpu", ""),
        libraries=environment.get("library_versions", ""),
        stated=" ".join(environment.values()),
    )
    _from_environment(facts, environment)
    _from_log(facts, list(lines))
    _from_paths(facts, "\n".join([*lines, *named]))
    return facts


def _from_environment(facts: Facts, environment: Mapping[str, str]) -> None:
    named_gpu = environment.get("gpu", "")
    facts.without_gpu = bool(_NO_GPU.fullmatch(named_gpu))
    facts.gpu = gpu_of(named_gpu) if named_gpu and not facts.without_gpu else None
    facts.capability = capability(environment.get("compute_capability", ""))
    listed = _TORCH.search(facts.libraries)
    version = environment.get("torch", "") or (listed[0] if listed else "")
    facts.torch = _pair(version)
    facts.cuda, facts.build = _build_cuda(version), _build(version)
    stated = environment.get("cuda", "")
    torch_cuda = re.search(r"([\d.]+) ?\(?(?:torch|pytorch)", stated)
    if torch_cuda and facts.cuda is None:
        facts.cuda = _pair(torch_cuda[1])
    facts.toolkit = _pair(stated)
    facts.cuda = facts.cuda or facts.toolkit or _packaged(facts.libraries)
    named = facts.gpu.capability if facts.gpu else None
    facts.capability = facts.capability or named
    if named and facts.capability and named != facts.capability and "," not in environment.get("gpu", ""):
        facts.contradictions += (
            f"the GPU named has compute capability {capability_text(named)}, "
            f"the environment says {capability_text(facts.capability)}: the latter is believed",
        )
    if facts.without_gpu and facts.capability:
        facts.contradictions += (
            "the environment says that there is no GPU, and its compute capability is "
            f"{capability_text(facts.capability)}: the latter is believed",
        )
    if listed and facts.torch and _pair(listed[1]) != facts.torch:
        facts.contradictions += (
            f"the environment has torch {version}, its libraries list {listed[1]}: the former is believed",
        )


def _from_log(facts: Facts, lines: list[str]) -> None:
    text = "\n".join(lines)
    met = next(filter(None, map(_met, lines)), None)
    if met is not None:
        facts.contradictions += _contradicted(facts, capability_text(met))
    for line in () if _of_another_maker(facts.gpu) else lines:
        facts.capability = facts.capability or _stated_capability(line)
    if facts.gpu is None and (found := _OWN_AMD.search(text) or _GPU_IN_LOG.search(text)):
        facts.gpu = gpu_of(found["name"])
        facts.capability = facts.capability or (facts.gpu.capability if facts.gpu else None)
    if facts.torch is None and (found := _TORCH.search(text)):
        facts.torch = _pair(found[1])
        facts.cuda, facts.build = facts.cuda or _build_cuda(found[0]), _build(found[0])
    if not facts.driver and (found := _DRIVER_IN_LOG.search(text)):
        facts.driver = found[1]
    if facts.cuda is None and (found := _TOOLKIT.search(text)):
        facts.cuda = _pair(found[1] or found[2] or found[3])
    if found := _ARCHS.search(text):
        facts.compiled_for = tuple(sorted(_arch_number(word) for word in re.findall(r"\d{2,3}", found[1])))
    facts.dtypes = frozenset(name for name, pattern in _DTYPES.items() if pattern.search(text))
    facts.on_cpu = bool(re.search(r"device[=: ]+['\"]?cpu|\bon CPU\b|_cpu_?\"|--device cpu|map_location='?cpu", text))


def _from_paths(facts: Facts, text: str) -> None:
    """The system, from the paths and the words that it alone has."""
    met_on = next((name for name, pattern in _SYSTEMS if pattern.search(text)), "")
    if _of_other_system(facts, text):
        facts.contradictions += (f"the log is of Windows, the environment says {facts.os}: the former is believed",)
        facts.os = met_on
    facts.os = facts.os or met_on


def _of_other_system(facts: Facts, text: str) -> bool:
    """Return whether a log shows what Windows alone prints, and the environment names another system."""
    return bool(facts.os) and not re.search("(?i)windows|wsl", facts.os) and _OF_WINDOWS.search(text) is not None


def _contradicted(facts: Facts, met: str) -> tuple[str, ...]:
    """Return the facts of an environment that contradict the GPU of that compute capability in the log."""
    log = f"the log speaks of a GPU of compute capability {met}, the environment"
    if facts.capability is not None:
        stated = capability_text(facts.capability)
        return (f"{log} says {stated}: the latter is believed",) if stated != met else ()
    if facts.gpu is not None and _of_another_maker(facts.gpu):
        return (f"{log} names {facts.gpu.name}, which has none: the latter is believed",)
    return (f"{log} says that there is none: the former is believed",) if facts.without_gpu else ()


def _of_another_maker(gpu: Gpu | None) -> bool:
    return gpu is not None and gpu.vendor in ("amd", "intel", "apple")


def _stated_capability(line: str) -> int | None:
    """The compute capability that a line gives its GPU; what it demands of one, and lists of a build, do not count."""
    if (met := _met(line)) is not None:
        return met
    if _DEMAND.search(line) or _ARCHS.search(line):
        return None
    found = _CAPABILITY.search(line)
    if not found:
        return None
    return int(found["sm"]) if found["sm"] else int(found["major"]) * 10 + int(found["minor"])


def _met(line: str) -> int | None:
    """The compute capability of the GPU that a line says it met."""
    found = _OWN.search(line)
    if found is None:
        return None
    major, minor = found["major"] or found["first"], found["minor"] or found["second"]
    return int(found["sm"] or found["short"] or found["entry"] or found["card"] or int(major) * 10 + int(minor))


def _arch_number(word: str) -> int:
    """ggml writes 610 for 6.1, torch 61 or 120 for 12.0."""
    number = int(word)
    return number // 10 if number >= 200 else number


def _pair(text: str) -> tuple[int, int] | None:
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None


def _packaged(text: str) -> tuple[int, int] | None:
    """The CUDA that packages name as theirs: cupy-cuda102, pt113cu117, CUDA 10.1."""
    found = _PACKAGED.search(text)
    if found is None:
        return None
    return _pair(found["pair"]) if found["pair"] else (int(found["name"][:-1]), int(found["name"][-1]))


def _build_cuda(text: str) -> tuple[int, int] | None:
    found = re.search(r"\+cu(\d{2,3})", text)
    return (int(found[1][:-1]), int(found[1][-1])) if found else None


def _build(text: str) -> tuple[str, str] | None:
    found = re.search(r"(\d+\.\d+)[\w.]*\+(cu\d{2,3})", text)
    return (found[1], found[2]) if found else None
