"""Say a fix in words and with a command: those of the program, the device and the system at hand.

``fixes/`` holds the rows. A command is written for Linux and turned into one for PowerShell where the system is
Windows. What it names (a package, a model, a file, a script) comes from the log; where the log does not name it there
is no command.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.evidence import Scene
from rung.diagnosis.fixes.supplies import NAMED_PACKAGE, libraries, package
from rung.diagnosis.gpus import capability_text
from rung.diagnosis.logs.mentions import compiled
from rung.diagnosis.logs.programs import TORCH, Program, program_of
from rung.diagnosis.tables import tables

#: What stands in the lines of a Python program that a fix changes (an extended regular expression).
_IN_CODE = {
    **dict.fromkeys(("use-fp32", "use-fp16", "use-bf16", "upcast-part", "cast-to-match"), r"dtype|half\(|fp16|bf16"),
    **dict.fromkeys(("use-cpu", "use-gpu", "move-to-one-device"), r"cuda|device"),
    **dict.fromkeys(("change-quantization", "dequantize-first"), r"from_pretrained|quantization|load_in_"),
    "offload": r"from_pretrained|device_map|\.cuda\(",
    "reduce-memory": r"batch_size|max_length|num_workers|from_pretrained",
    "use-fallback-kernel": r"attn_implementation|flash_attn|xformers|compile\(",
    "adjust-shape": r"head_dim|group_size|num_heads|batch_size",
}
#: Causes of a model that is too large, and the fixes that make it smaller: ``rung check`` says what fits.
_HOST = "host-out-of-memory"
_MEMORY = ("gpu-out-of-memory", _HOST)
_SMALLER = ("reduce-memory", "change-quantization", "offload")
#: What shows the state that a fix changes, on Linux and in PowerShell.
_SHOWN = {
    "add-host-memory": ("free -h", "SystemPropertiesPerformance.exe"),
    "set-environment-override": (
        "env | grep -iE 'cuda|torch|hip|hsa|ggml|nccl|hf_'",
        'Get-ChildItem env: | Where-Object Name -Match "cuda|torch|hip|hsa|ggml|nccl|hf_"',
    ),
    "set-library-path": ("ldconfig -p | grep -iE 'cuda|cudnn|cublas|nccl'", '$env:PATH -split ";"'),
    "upgrade-driver": (
        "lspci -nnk | grep -iEA3 'vga|3d|display'",
        "Get-CimInstance Win32_VideoController | Format-List Name, DriverVersion",
    ),
}
#: A name of the program's that an error quotes.
_QUOTED = re.compile(r"['\u2018\u201c`\"]([A-Za-z_][\w.]{2,40})['\u2019\u201d`\"]")
_COUNT_GPUS = 'python -c "import torch; print(torch.cuda.device_count())"'
_CMAKE = "cmake -B build && cmake --build build --config Release"
#: How programs are compiled in the folder of their source.
_BUILDS = {
    **dict.fromkeys(("llama.cpp", "whisper.cpp", "stable-diffusion.cpp", "faiss", "ctranslate2", "openvino"), _CMAKE),
    "tensorflow": "./configure && bazel build //tensorflow/tools/pip_package:wheel",
    "onnxruntime": "./build.sh --config Release --build_wheel --parallel",
    "cupy": "pip install --no-cache-dir --no-binary cupy cupy",
    "mlx": "pip install --no-cache-dir --no-binary mlx mlx",
}
#: Packages of the index that bring a program.
_PACKAGE_NAMES = {"paddle": "paddlepaddle", "opencv": "opencv-python", "faiss": "faiss-cpu"} | {
    name: name
    for name in (
        *("tensorflow", "onnxruntime", "openvino", "jax", "cupy", "numba", "dlib", "ctranslate2", "mlx", "mxnet"),
        *("diffusers", "vllm", "sglang"),
    )
}
_BLOCKING = ("export CUDA_LAUNCH_BLOCKING=1", '$env:CUDA_LAUNCH_BLOCKING = "1"')
_TORCH_SOURCE = "git clone --recursive https://github.com/pytorch/pytorch && cd pytorch && "


@dataclass(frozen=True)
class Defaults:
    """Hold what goes with the fixes of one log, where that is the likeliest cause. ``variables`` stand before a
    build; ``module`` is what the texts of the fixes call the package that failed."""

    scene: Scene
    cause: str
    program: Program
    system: str
    maker: str
    variables: str
    module: str

    def location(self, label: str) -> str:
        """Return ``train.py, line 12``, where a fix is a change of code and the log names the line; else empty."""
        return self.scene.mentions.location if label in _IN_CODE or label == "fix-user-code" else ""

    def command(self, label: str) -> str | None:
        """Return the command, None where there is none or the place says it."""
        mentions = self.scene.mentions
        by_size = mentions.runs or not self.program.torch or self.cause == _HOST
        if label in _SMALLER and self.cause in _MEMORY and by_size:
            return self._check()
        if label in _IN_CODE and self.program.python:
            return None if mentions.location else self._search(_IN_CODE[label])
        if label in _IN_CODE or label == "use-other-backend":
            return self._check()
        if label == "build-from-source":
            return self._build()
        if label == "requantize-or-reconvert":
            return (
                f"rung quantize {mentions.runs} new.gguf --format q4_k_m" if mentions.runs else "rung quantize --help"
            )
        if label in ("fix-gpu-visibility", "change-hardware"):
            return (
                f"rung check {mentions.model} --fits"
                if mentions.model and label == "change-hardware"
                else "rung devices"
            )
        if label == "upgrade-driver" and self.maker == "nvidia":
            return "nvidia-smi"
        if label in _SHOWN and self.system != "macos":
            return _SHOWN[label][self.system == "windows"]
        return self._of_python(label)

    def _of_python(self, label: str) -> str | None:
        library = self.scene.mentions.library.partition(" ")[0] or _PACKAGE_NAMES.get(self.program.name, "")
        if not library and self.module == TORCH.name:
            library = TORCH.name
        if not (library or self.program.python):
            return None
        if label == "upgrade-library":
            return f"pip install -U {library}" if library else None
        if label == "downgrade-library":
            return f"pip index versions {library}" if library else None
        if label == "fix-user-code":
            return self._in_own_code()
        return {"install-matching-build": "rung setup --check", "align-package-versions": "pip check"}.get(label)

    def _in_own_code(self) -> str | None:
        """Return the search for the name that the error quotes, or what counts the GPUs there are."""
        if self.scene.mentions.location:
            return None
        if self.cause == "gpu-not-visible":
            return _COUNT_GPUS
        if self.cause == "async-bad-input":
            return _BLOCKING[self.system == "windows"]
        lines = [hit.line for hit in self.scene.hits] or self.scene.ending.splitlines()
        named = [name for line in lines for name in _QUOTED.findall(line) if not name.endswith(".py")]
        return self._search(named[-1].replace(".", r"\.")) if named else None

    def _search(self, pattern: str) -> str:
        """Return the command that lists the lines of the Python files here that a pattern is found in."""
        if self.system == "windows":
            return f'Get-ChildItem -Recurse -Filter *.py | Select-String -Pattern "{pattern}"'
        return f"grep -rnE '{pattern}' --include='*.py' ."

    def _build(self) -> str | None:
        """Return how torch, the program, or a package in the folder of its source is compiled."""
        if self.program.name in _BUILDS:
            return _BUILDS[self.program.name]
        if not self.program.python:
            return None
        source = _TORCH_SOURCE if self.scene.mentions.library == "torch" else ""
        return f"{source}{self.variables}pip install --no-build-isolation --no-cache-dir ."

    def _check(self) -> str:
        """Return ``rung check`` for the model of the log, else for all that are known, on the GPU that is named."""
        from rung.hardware import catalog  # where a GPU is named it was found there

        gpu, model = self.scene.facts.gpu, self.scene.mentions.runs
        device = f" --device '{gpu.name}'" if gpu is not None and catalog.find(gpu.name) is not None else ""
        return f"rung check{' ' + model if model else ''}{device}"


#: What is filled in from the log: a name, and after a bar the words for where the log does not say it.
_HOLE = re.compile(r"\{(\w+)(?:\|([^{}]*))?\}")


@dataclass(frozen=True)
class Fix(Value):
    """A way out: its label, what to do in words, and a command to paste where there is one."""

    label: str
    text: str
    command: str | None = None

    @property
    def nameless(self) -> bool:
        """Return whether it asks for another release of something that the log does not name."""
        return self.label in _OF_RELEASES and self.text in _without_name()


@dataclass(frozen=True)
class Wording:
    """One row of ``fixes/``: all that it names must hold. ``program``, ``cause`` and ``maker`` are lists of names (no
    maker: ``none``), ``below`` is a compute capability (70) that the GPU has not."""

    label: str
    text: str
    when: str = ""
    program: str = ""
    cause: str = ""
    maker: str = ""
    system: str = ""
    below: int = 0
    command: str | None = None

    @property
    def plain(self) -> bool:
        """Return whether it asks for nothing."""
        return not (self.when or self.program or self.cause or self.maker or self.system or self.below)


@functools.cache
def wordings(table: str = "fix") -> tuple[Wording, ...]:
    """All wordings of fixes (``tell``: of what tells causes apart), in the order of the file."""
    return tuple(Wording(**row) for row in tables()[table])


#: Fixes by another release of what failed.
_OF_RELEASES = ("upgrade-library", "downgrade-library")
#: A build that must be started in the folder of a source.
_IN_FOLDER = re.compile(r"(?!git clone).*pip install .* \.$")
#: A page to read stands in place of a command.
_LINK = re.compile(r"https?://")
_compiled = functools.cache(re.compile)  # more than the cache of ``re`` holds beside those of the rules
#: Of torch's own builds and of what is built for each of them.
_INDEX = "https://download.pytorch.org/whl"
#: It takes the index's own build, whatever the card: ``rung setup``'s command stands in its place.
_PLAIN_TORCH = "pip install -U torch"
#: What asks this machine which build it needs.
_ASK_SETUP = "rung setup"
#: What asks the machine for its GPU where nobody named it.
_ASK_CUDA = "$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader)"
_ASK_ROCM = "$(rocminfo | grep -o -m 1 'gfx[0-9a-f]*')"
#: Makers of GPUs by their run times, where no GPU is named.
_MAKERS = (
    ("nvidia", r"(?i)\bnvidia|\bcu(?:da|blas|dnn)|geforce|\bRTX\b"),
    ("amd", r"\bHIP |\bhip[A-Z]\w+|(?i:\brocm|rocblas|miopen|amdgpu|\bradeon)"),
    ("intel", r"(?i)\bsycl\b|ggml_sycl|oneapi|level[_ -]zero|UR_RESULT_|PI_ERROR_|\bxpu\b|\bipex\b"),
    ("apple", r"\bMPS\b|(?i:ggml_metal|\bmetal\b)|\bmlx\b"),
)
_LAST_GCC = re.compile(r"gcc versions? later than (\d+)")
#: A variable and its value in a command, and those before a program's name.
_VALUE = r"(?:\"[^\"]*\"|\$\([^)]*\)|\S+)"
_VARIABLE = re.compile(rf"(\w+)=({_VALUE})")
_BEFORE_PROGRAM = re.compile(rf"(?:[A-Z]\w+={_VALUE} )+(?=\w)")
#: The first CUDA whose toolkit NVIDIA's channel has, and the first by whose major number packages of CuPy are named.
_IN_CHANNEL, _BY_MAJOR = (11, 3), 11


class Speaker:
    """Words what to do in one scene, where that is the likeliest cause."""

    def __init__(self, scene: Scene, cause: str) -> None:
        self._scene, self._cause = scene, cause
        self.program = program_of(scene)
        facts = scene.facts
        self._around = "\n".join([scene.text, scene.excerpt, facts.stated, facts.gpu.arch if facts.gpu else ""])
        self._maker = (
            self._scene.vendor
            or ("none" if facts.without_gpu else "")
            or next(
                (maker for maker, pattern in _MAKERS if re.search(pattern, self._around)),
                "apple" if facts.apple else "nvidia",
            )
        )
        self._system = "macos" if facts.apple else "windows" if facts.windows else "linux"

    def fix(self, label: str) -> Fix:
        """The fix in the first wording that holds here."""
        rows = [row for row in wordings() if row.label == label]
        row = next((row for row in rows if self._holds(row)), rows[-1])
        text, command = self._worded(row.text), self._filled(row.command) if row.command else None
        if command is None and not _LINK.search(text):
            command, where = self._default(label)
            text += f" ({where})" if where else ""
            text += ", in the folder of its source" if _IN_FOLDER.match(command or "") else ""
        return Fix(label, text, command)

    def _default(self, label: str) -> tuple[str | None, str]:
        """The command of a fix whose row gives none, else the line of the program to change."""
        variables = "TORCH_CUDA_ARCH_LIST={cc} "
        if self._cause == "cpu-instruction-missing":
            variables = 'CFLAGS="-march=native" '
        elif self._maker != "nvidia":
            variables = "PYTORCH_ROCM_ARCH={gfx} " if self._maker == "amd" else ""
        module = self._named("module") or ""
        found = Defaults(self._scene, self._cause, self.program, self._system, self._maker, variables, module)
        command = found.command(label)
        return self._filled(command) if command else None, "" if command else found.location(label)

    def tell(self, cause: str) -> str:
        """The command that tells a cause from the others; empty where it needs a name that the log does not hold."""
        found = next((row for row in wordings("tell") if row.label == cause and self._holds(row)), None)
        if found is not None:
            return self._filled(found.text) or ""
        return self._filled(next(str(row["tell"]) for row in tables()["cause"] if row["label"] == cause)) or ""

    def run(self) -> Fix | None:
        """``rung run`` with the model that the log names, None where it names none."""
        model = self._scene.mentions.runs
        return Fix("rung-run", "let rung choose what works on this device", f"rung run {model}") if model else None

    def exec(self) -> Fix:
        """``rung exec`` before the command of the log, in words where that is not known."""
        command = self._scene.mentions.command
        if command:
            return Fix("rung-exec", "without changing code", f"rung exec -- {command}")
        return Fix("rung-exec", "without changing code: write rung exec -- before the command that failed")

    def exec_on_cpu(self) -> Fix:
        """``rung exec --device cpu`` before the command of the log, in words where that is not known."""
        command = self._scene.mentions.command
        if command:
            return Fix(
                "rung-exec-cpu", "on this processor, without changing code", f"rung exec --device cpu -- {command}"
            )
        return Fix("rung-exec-cpu", "on this processor: write rung exec --device cpu -- before the command that failed")

    def again(self) -> str:
        """The command that gives a log which says more; empty where the log names none."""
        command = self._scene.mentions.command
        return f"{command} 2>&1 | rung explain" if command else ""

    def _worded(self, text: str) -> str:
        return _HOLE.sub(lambda hole: self._named(hole[1]) or hole[2] or "", text)

    def _named(self, name: str) -> str | None:
        """Return the log's own word for the thing of that name, or None."""
        mentions = self._scene.mentions
        module = mentions.module or self._module_of_hits() or (TORCH.name if self.program == TORCH else "")
        found = {
            "module": module.replace("_", "-"),
            "library": mentions.library or package(module) if module else "",
            "built": package(module) if compiled(module) and module != "torch" else "",
            "model": mentions.model,
            "hub_model": mentions.model if "/" in mentions.model else "",
            "file": mentions.file,
            "image": mentions.image,
            "command": mentions.command,
            "binary": mentions.executable,
            "llamafile": self._llamafile(),
        }
        return found[name] or None

    def _module_of_hits(self) -> str:
        """The package that a matched line names, where no traceback leads to one."""
        lines = (hit.line for hit in self._scene.hits)
        return next((found[0].lower() for line in lines if (found := NAMED_PACKAGE.search(line))), "")

    def _llamafile(self) -> str:
        mentions = self._scene.mentions
        if not mentions.executable or mentions.executable.endswith(".llamafile"):
            return mentions.executable
        return f"{mentions.executable} -m {mentions.file}" if mentions.file else ""

    def _holds(self, row: Wording) -> bool:
        return (
            (not row.cause or self._cause in row.cause.split())
            and (not row.maker or self._maker in row.maker.split())
            and (not row.system or self._system in row.system.split())
            and (not row.below or self._scene.below(row.below))
            and (not row.program or self._is(row.program.split()))
            and (not row.when or _compiled(row.when).search(self._around) is not None)
        )

    def _is(self, names: list[str]) -> bool:
        return self.program.name in names or (self.program.torch and TORCH.name in names)

    def _filled(self, command: str) -> str | None:
        """A command with the facts in it; None where one that it needs is not known."""
        facts = self._scene.facts
        arch = facts.gpu.arch if facts.gpu else ""
        cuda = facts.cuda or (12, 6)
        digits = facts.build[1] if facts.build else "cu126"
        filled: dict[str, Callable[[], str | None]] = {
            "torch_install": lambda: _torch(self._scene),
            "torch_for_driver": lambda: _torch(self._scene) if facts.driver else _ASK_SETUP,
            "torch_index": lambda: f"{_INDEX}/{digits}",
            "cc": lambda: capability_text(facts.capability) if facts.capability else _ASK_CUDA,
            "cc_digits": lambda: str(facts.capability) if facts.capability else "native",
            "gfx": lambda: arch if arch.startswith("gfx") else None if self._system == "windows" else _ASK_ROCM,
            "cuda_digits": lambda: f"{cuda[0]}{cuda[1]}",
            "cupy": lambda: f"cupy-cuda{cuda[0]}x" if cuda[0] >= _BY_MAJOR else f"cupy-cuda{cuda[0]}{cuda[1]}",
            "cuda_release": lambda: f"{cuda[0]}.{cuda[1]}" if cuda >= _IN_CHANNEL else None,
            "related_gfx": lambda: _related_gfx(arch),
            "gcc": lambda: (found := _LAST_GCC.search(self._around)) and found[1],
            "libraries": lambda: libraries(self._around, cuda[0]),
            "package": lambda: package(self._scene.words.get("package", "")),
        }
        for hole in dict.fromkeys(found[1] for found in _HOLE.finditer(command)):
            known = filled[hole]() if hole in filled else self._named(hole)
            if known is None:
                return None
            command = command.replace("{" + hole + "}", known)
        if command == _PLAIN_TORCH:
            return _torch(self._scene)
        if command.startswith(_ASK_SETUP):
            return _ASK_SETUP
        return _for_powershell(command) if self._system == "windows" else command


def template(text: str) -> str:
    """A text with a hole as people read it: the words after its bar, else the name in capitals."""
    return _HOLE.sub(lambda hole: hole[2] or hole[1].upper(), text)


@functools.cache
def _without_name() -> frozenset[str]:
    """Return the texts in which other words stand for a name."""
    found = (row.text for row in wordings() if row.label in _OF_RELEASES)
    return frozenset(template(text) for text in found if any(hole[2] for hole in _HOLE.finditer(text)))


def _for_powershell(command: str) -> str:
    parts = re.split(r" && |; ", command)
    return "; ".join(_statement(part) for part in parts)


def _statement(part: str) -> str:
    if part.startswith("export "):
        return "; ".join(_assigned(part))
    found = _BEFORE_PROGRAM.match(part)
    return "; ".join([*_assigned(found[0]), part[found.end() :]]) if found else part


def _assigned(text: str) -> list[str]:
    return [f"$env:{name} = {_quoted(value)}" for name, value in _VARIABLE.findall(text)]


def _quoted(value: str) -> str:
    return value if value.startswith(('"', "$(")) else f'"{value}"'


def _torch(scene: Scene) -> str:
    """Return the arguments of ``rung setup`` for the card of this scene; a placeholder where nobody named a card."""
    # reading the catalog costs more than the rest of an explanation
    from rung.hardware.catalog import architectures
    from rung.software.companions import Host, platform_words
    from rung.software.setup import choose

    facts = scene.facts
    named = (facts.gpu.arch if facts.gpu else "", f"sm_{facts.capability}" if facts.capability else "")
    key = next((name for name in named if name in architectures()), None)
    if key is None:
        return _ASK_SETUP
    driver = facts.driver if architectures()[key].kind == "cuda" else ""
    system = "macos" if facts.apple else "windows" if facts.windows else "linux"
    machine = "aarch64" if facts.apple or architectures()[key].platform else "x86_64"
    host = Host(facts.gpu.name if facts.gpu else key, key, driver, system, machine)
    found = choose([host])
    if found is None or any(f"instead of {platform_words(host.platform)}" in need for need in found.needs):
        return _ASK_SETUP  # a build for another system would not be found here
    return found.torch.command or _ASK_SETUP


def _related_gfx(arch: str) -> str | None:
    """The version to name for an AMD GPU outside of ROCm's list, None where the catalog has none."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.capabilities import gfx_version

    row = architectures().get(arch)
    return gfx_version(row.override) if row is not None and row.override else None
