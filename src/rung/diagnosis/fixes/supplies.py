"""Hold what installs a library of CUDA or a Python package that a log names as missing."""

from __future__ import annotations

import re

#: A library of CUDA in the name of a file, of Linux or Windows, with the number that it carries.
_NAMED = re.compile(
    r"(?i)\b(?:lib)?(?P<name>cudart|cublas(?:Lt)?|cudnn|cusolver|cusparse|curand|cufft|nvrtc|nvJitLink|nccl|cupti)"
    r"[a-z_-]*(?:\.so\.(?P<number>\d+)(?:\.(?P<minor>\d))?|64_(?P<windows>\d+)[\d_]*\.dll)"
)


_CUDA_LIBRARIES = dict.fromkeys(("cublas", "cublaslt"), "cublas") | {
    "cudart": "cuda-runtime",
    "nvrtc": "cuda-nvrtc",
    "cupti": "cuda-cupti",
}


#: Libraries whose number is that of CUDA.
_NUMBERED = {"cudart", "cublas", "cublaslt", "nvrtc", "nvjitlink"}


#: The CUDA from which there are packages for pip, the one from which their names have no number, and the first cuDNN.
_FIRST, _PLAIN, _FIRST_CUDNN = 11, 13, 8


def libraries(text: str, cuda: int) -> str:
    """The command that installs the libraries of CUDA which a text names, ``cuda`` being the one in use."""
    found = list(_NAMED.finditer(text))
    packages = dict.fromkeys(filter(None, (_package_of(match, cuda) for match in found)))
    if packages:
        return f"pip install {' '.join(packages)}"
    old = next((match for match in found if match["name"].lower() != "cudnn"), None)
    if old is not None and (old["number"] or old["windows"]):
        release = f"{old['number']}.{old['minor']}" if old["minor"] else _dotted(old["windows"] or old["number"])
        return f"conda install -c conda-forge cudatoolkit={release}"
    if found:
        return f"conda install -c conda-forge cudnn={found[0]['number'] or found[0]['windows']}"
    return f"pip install {_name('cudnn' if 'cudnn' in text.lower() else 'cublas', cuda)}"


def _package_of(match: re.Match[str], cuda: int) -> str | None:
    name, number = match["name"].lower(), int(match["number"] or match["windows"])
    if name == "cudnn":
        return f'"{_name(name, max(cuda, _FIRST))}=={number}.*"' if number >= _FIRST_CUDNN else None
    major = number // 10 if number >= 100 else number  # cudart64_110.dll
    if name in _NUMBERED:
        return _name(name, major) if major >= _FIRST else None  # libcudart.so.11.0 is that of all CUDA 11
    return _name(name, cuda) if cuda >= _FIRST and not match["minor"] else None


def _name(library: str, cuda: int) -> str:
    package = f"nvidia-{_CUDA_LIBRARIES.get(library, library)}"
    return package if cuda >= _PLAIN and library not in ("cudnn", "nccl") else f"{package}-cu{max(cuda, _FIRST)}"


def _dotted(number: str) -> str:
    """``10.1`` of ``101``, as Windows numbers libraries."""
    return f"{number[:-1]}.{number[-1]}" if len(number) > 1 and number not in ("10", "11", "12", "13") else number


#: Modules whose package has their name, with hyphens; those that are compiled for the torch that is there; and others.
_SAME = re.compile(
    "accelerate|auto_gptq|autoawq|bitsandbytes|ctranslate2|datasets|deepspeed|diffusers|einops|fairscale|gguf|hqq"
    "|imageio|insightface|kornia|librosa|lightning|mlx_lm|ninja|numpy|omegaconf|onnx|onnxruntime|open3d|optimum"
    "|packaging|pandas|peft|pynvml"
    "|pytorch_lightning|safetensors|scipy|sentence_transformers|sentencepiece|soundfile|tensorboard|tiktoken|timm"
    "|huggingface_hub|lightgbm|mlx|nunchaku|outlines|spandrel|torch_scatter|torchao|ultralytics|xgboost"
    "|tokenizers|torch|torchaudio|torchmetrics|torchsde|torchvision|tqdm|transformers|trl|unsloth|vllm|wandb|xformers"
)


#: Such a package by name in an error; torch is named in errors of all that stand on it.
NAMED_PACKAGE = re.compile(
    rf"(?i)\b(?!(?:torch|numpy|packaging|git|gguf|onnx|tqdm|ninja|pandas)\b)(?:{_SAME.pattern})\b"
)


_COMPILED = {"flash_attn", "mamba_ssm", "causal_conv1d"}


#: Packages without compiled code of their own: building them again changes nothing.
PURE = frozenset(
    (
        *("accelerate", "datasets", "diffusers", "einops", "evaluate", "gradio", "hqq", "huggingface_hub", "lightning"),
        *("omegaconf", "optimum", "peft", "pip", "pytorch_lightning", "sentence_transformers", "setuptools", "timm"),
        *("torchmetrics", "torchsde", "tqdm", "transformers", "trl", "unsloth", "wandb"),
    )
)


_OTHER = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "open_clip": "open-clip-torch",
    "awq": "autoawq",
    "git": "gitpython",
    "pkg_resources": '"setuptools<81"',
    "google.protobuf": "protobuf",
    "faster_whisper": "faster-whisper",
    "llama_cpp": "llama-cpp-python",
    "whisper": "openai-whisper",
}


def package(module: str) -> str | None:
    """The package of the index that holds a module; None where that is not known for certain."""
    named = _OTHER.get(module) or (module.replace("_", "-") if _SAME.fullmatch(module) else None)
    return f"{module.replace('_', '-')} --no-build-isolation" if module in _COMPILED else named
