"""Commands for fixes whose row has none, or none that the log fills: what finds the line to change, or what shows the
choice there is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rung.diagnosis.evidence import Scene
from rung.diagnosis.logs.programs import TORCH, Program

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
_PACKAGES = {"paddle": "paddlepaddle", "opencv": "opencv-python", "faiss": "faiss-cpu"} | {
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
        library = self.scene.mentions.library.partition(" ")[0] or _PACKAGES.get(self.program.name, "")
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
