"""Hold what people report without an error of the program's: which of the likely causes their other words speak for."""

from __future__ import annotations

import math
import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import NAN
from rung.diagnosis.rules.packages import in_package

#: A learning rate that is spoken of, not one of a line that prints all settings.
_RATE = re.compile(
    r"(?i)\blearning[ -]rates?\b(?! ?[=:])|\b(?:high|low|large|small|big)(?:er)? (?:lr|learning[ -]?rate)\b"
    r"|\blr (?:is |was )?(?:too|of|set to)\b"
)
#: Kernels that compute attention, by name, and what passes through them.
_ATTENTION = re.compile(r"(?i)flash[-_ ]?att|\bFA-?[234]\b|\bflash-?v[23]\b|flashinfer|FlashAttn|\bxformers\b")
_THROUGH = re.compile(
    r"(?i)\b(?:bw|bwd|backw[ao]rds?)\b(?: pass)?|backward\b|\bgradients?\b|\bvarlen\b|qkv|hidden states|\bhead[ _]dim"
)
_TRAINS = re.compile(r"(?i)\b(?:epoch|fine-?tun\w+|train\w*|loss)\b")
#: It happens on some cards, or with that kernel, alone.
_ELSEWHERE = re.compile(r"(?i)\bbut not (?:in|on|with|for)\b|\bonly (?:with|on|in|when)\b|\bwithout (?:it|them)\b")
_NAN = re.compile(r"(?i)\bnans?\b")
_GARBLED = r"(?i)\b(?:gibberish|garbled|garbage|nonsens\w*|incoheren\w*|corrupted output|unrelated output)\b"
_GRAPHICS = r"(?i)\b(?:vulkan|sycl|opencl|webgpu|ggml_(?:vulkan|vk|sycl|opencl))"
_QUANTIZED = r"(?i)\bquanti[sz]|\b(?:[iI]?[qQ][1-8]_\w+|gptq|awq|exl2|nf4|[2-8]-?bit)\b"
#: Magic numbers of llama.cpp's formats and of an archive of torch's, as bytes lie in the file.
_MODELS = (b"GGUF", b"ggml", b"ggjt", b"ggmf", b"ggla", b"lmgg", b"tjgg", b"fmgg", b"algg", b"FUGG", b"PK\x03\x04")
_SHAPE = re.compile(r"shape '\[(\d+), (?:(\d+), )?(\d+), (\d+)\]' is invalid for input of size (\d+)")
#: Sizes of attention heads, and by how many fewer heads keys have than queries.
_HEADS, _FEWER = (64, 96, 128, 256), (4, 5, 6, 7, 8, 12, 16)
_REMOTE = re.compile(r"transformers_modules|trust_remote_code ?= ?True")
#: What transformers' caches of keys and values are called where they are unpacked, and how that fails.
_CACHE = re.compile(r"\b(?:kv_cache|past_key_values?|layer_past|past_kv|_extract_past_from_model_output)\b")
_UNPACKED = re.compile(r"ValueError: (?:too many|not enough) values to unpack")
_SLEPT = re.compile(
    r"(?i)\b(?:suspend\w*|hibernat\w+|(?:after|from) sleep|(?:laptop|system) sle(?:eps?|pt)|woke|wake[- ]?up)\b"
)
_FOUND = re.compile(r"ggml_\w{1,20}: found [1-9]\d* (?:CUDA|ROCm|Vulkan|SYCL) devices?|ggml_cuda_init: found")
_WARMS = re.compile(
    r"(?i)\bslow\w* (?:only )?(?:on|for|at|during) (?:the |its )?(?:very )?first\b"
    r"|\bonly (?:the )?first \w+ (?:is|are) slow"
    r"|\b(?:fast|quick|normal|fine)(?:er)? (?:after|from) (?:the |a )?(?:first|second|few|some|couple|warm)"
)
_FIRST_ONLY = re.compile(
    r"(?i)\bfirst (?:run|inference|call|request|generation|image|picture|forward|batch|iteration|prompt|step|query)s?\b"
    r".{0,20}\b(?:slow\w*|takes?|took|needs)\b.{0,60}\b(?:next|second|subsequent|later|following|others?|afterwards)\b"
    r"(?!.{0,60}\b(?:slow|longer|more))"
)
_CONVERTED = re.compile(
    r"(?i)(?:\bconvert\w*|\bmerg(?:e|ing)[-_ ]weights|\.pth to|to (?:ggml|gguf))\b.{0,80}"
    r"(?:\boom\b|out of (?:memory|RAM))"
)
_ADAPTER = re.compile(
    r"'(?!Peft|Lora)\w+' object has no attribute"
    r" '(?:merge_and_unload|print_trainable_parameters|merge_adapter|unmerge_adapter|disable_adapter|get_base_model)'"
)
_CLASSES = re.compile(r"(?i)\b(?:num|n)_?class(?:es)?\b|\b(?:number of|\d+|my) (?:classes|categories|labels)\b")
_PLAIN = ("python-plain", "attribute-of-a-class", "signature-of-other-version", "argument-unknown")
_ASSERTS = re.compile(
    r"AssertionError:? ?(?:assert )?(?:$|self\.\w+(?: (?:[=!<>]=?|is|in|not) .{0,80})?$|num_\w+ [=!<>]=? ?\w+$)", re.M
)
_ENGINE = re.compile(
    r"[/\\](?:vllm[/\\](?:v1|core|worker|engine|executor)|sglang[/\\]srt[/\\](?:managers|mem_cache)"
    r"|lmdeploy[/\\]pytorch[/\\](?:engine|paging)|torch[/\\]_(?:inductor|dynamo|functorch))[/\\]"
)
_OWN_FILES = re.compile(r"(?:site|dist)-packages|[/\\]torch[/\\]|__init__\.py")


def _rate_and_nan(scene: Scene) -> bool:
    """Return whether the report speaks of the learning rate where it speaks of values that are no numbers."""
    lines = {hit.line for hit in scene.hits if hit.signature.id in NAN}
    return any(_RATE.search(line) for line in lines)


def _kernel_and_nan(scene: Scene) -> bool:
    found = next((line for line in scene.said.splitlines() if _NAN.search(line) and _ATTENTION.search(line)), "")
    if not found:
        return False
    return _ELSEWHERE.search(found) is not None or bool(_THROUGH.search(found) and not _TRAINS.search(found))


def _magic(scene: Scene) -> bytes:
    """The magic number that a file begins with, as its bytes lie there; empty where none is named."""
    found = re.search(r"invalid magic (?:number )?(?:0x)?([0-9a-fA-F]{8})\b", scene.said)
    return bytes.fromhex(found[1])[::-1] if found else b""


def _text_for_a_model(scene: Scene) -> bool:
    magic = _magic(scene)
    return magic == bytes(4) or (magic not in (b"", *_MODELS) and all(32 <= byte < 127 or byte == 10 for byte in magic))


def _fewer_keys(scene: Scene) -> bool:
    """Return whether a tensor has so many times fewer or more numbers than its shape as there are queries for a key."""
    found = _SHAPE.search(scene.said)
    if found is None or int(found[4]) not in _HEADS:
        return False
    asked, there = math.prod(int(size) for size in found.groups()[:4] if size), int(found[5])
    small, large = sorted((asked, there))
    return small > 0 and large % small == 0 and large // small in _FEWER


def _asserts_in_engine(scene: Scene) -> bool:
    places: list[str] = re.findall(r'File "([^"\n]+)"', scene.said)
    return bool(places) and _ENGINE.search(places[-1]) is not None and _ASSERTS.search(scene.said) is not None


def _of_torch(scene: Scene) -> bool:
    half = re.search(r"partially initialized module '(?:torch|numpy)'", scene.said) is not None
    return half and _OWN_FILES.search(scene.said) is None and not in_package(scene)


RULES: tuple[Rule, ...] = (
    Rule(
        "diverged-by-learning-rate",
        _rate_and_nan,
        {"not-a-compatibility-problem": 7, "fp16-overflow": -1},
        "the report speaks of the learning rate: training that goes in too large steps ends in NaN in any dtype",
        "wording of reports",
    ),
    Rule(
        "nan-from-a-kernel",
        _kernel_and_nan,
        {"software-defect": 6, "fp16-overflow": -1.5, "fp16-broken-on-gpu": -2, "kernel-min-compute-capability": -1},
        "it is the kernel that is called by itself and returns no numbers",
        "flash-attention, release notes",
    ),
    Rule(
        "garbled-by-graphics",
        lambda s: s.says(_GARBLED) and s.says(_GRAPHICS) and not s.says(_QUANTIZED),
        {"software-defect": 4, "graphics-api-feature-missing": -2, "fp16-overflow": -2, "fp16-broken-on-gpu": -1},
        "the interface offers what is needed, and a shader of the program computes something else",
        "llama.cpp, Vulkan and SYCL backends",
    ),
    Rule(
        "text-for-a-model",
        _text_for_a_model,
        {"not-a-compatibility-problem": 8, "format-or-arch-unknown": -4},
        "the magic number is text, or nothing: a page, a pointer of git-lfs or half of a download lies there",
        "llama.cpp, gguf.cpp",
    ),
    Rule(
        "fewer-keys-than-queries",
        _fewer_keys,
        {
            "software-defect": 4.4,
            "package-version-mismatch": 2.6,
            "not-a-compatibility-problem": -2,
            "kernel-shape-constraint": -1,
        },
        "the model has fewer heads of keys than of queries, and the code was written before such models",
        "transformers, grouped-query attention",
    ),
    Rule(
        "named-like-torch",
        _of_torch,
        {"not-a-compatibility-problem": 4.5, "package-version-mismatch": -2.5},
        "nothing shows that it is torch's own files that import each other: most often a file has its name",
        "Python, the path that modules are looked for on",
    ),
    Rule(
        "code-of-the-model",
        lambda s: s.has(*_PLAIN) and _REMOTE.search(s.said) is not None,
        {"package-version-mismatch": 2.8, "not-a-compatibility-problem": -1.2},
        "the model brings code of its own, written for another release of transformers",
        "transformers, dynamic_module_utils.py",
    ),
    Rule(
        "meta-of-sentences",
        lambda s: s.has("meta-copy") and re.search(r"(?i)sentence[-_]?transformer", s.said) is not None,
        {"software-defect": 2, "package-version-mismatch": 1.2, "device-placement": -1, "gpu-out-of-memory": -1},
        "such a model fits any device: it was created empty by a release of transformers that its loader does not know",
        "sentence-transformers",
    ),
    Rule(
        "asserts-in-an-engine",
        _asserts_in_engine,
        {"software-defect": 3.2, "not-a-compatibility-problem": -1.5, "package-version-mismatch": -1.5},
        "an engine's own book-keeping does not agree with itself",
        "vllm, sglang, torch.compile",
    ),
    Rule(
        "layers-not-asked-for",
        lambda s: s.has("layers-not-offloaded") and _FOUND.search(s.said) is not None,
        {"not-a-compatibility-problem": 5, "cpu-only-build": -2.5, "gpu-not-visible": -2.5, "slow-dtype-path": -1},
        "the program found the GPU, and was not asked to put a layer on it (-ngl, n_gpu_layers)",
        "llama.cpp, load_tensors",
    ),
    Rule(
        "mask-named",
        lambda s: (
            s.has("is-available-false", "gpu-unused-symptom", "no-cuda-device")
            and re.search(r"CUDA_VISIBLE_DEVICES\W{0,4}[=:] ?\W?\d", s.said) is not None
        ),
        {"gpu-not-visible": 2.6, "cpu-only-build": -1},
        "CUDA_VISIBLE_DEVICES is set: CUDA shows the process these GPUs alone, counted from 0",
        "CUDA, environment variables",
    ),
    Rule(
        "slow-at-first",
        lambda s: (
            (s.has("slow-symptom", "slow-wording", "speed-figures") and _WARMS.search(s.said) is not None)
            or _FIRST_ONLY.search(s.said) is not None
        ),
        {"not-a-compatibility-problem": 5, "slow-dtype-path": -1.5},
        "only the first of several is slow: libraries are loaded, kernels compiled and chosen then",
        "torch, benchmark: warm-up",
    ),
    Rule(
        "converted-in-memory",
        lambda s: _CONVERTED.search(s.said) is not None and re.search(r"(?i)cuda|gpu|vram|\bhip\b", s.said) is None,
        {"host-out-of-memory": 6, "gpu-out-of-memory": -3},
        "files of weights are converted or merged by the processor, in the system's memory",
        "llama.cpp, converters",
    ),
    Rule(
        "method-of-an-adapter",
        lambda s: _ADAPTER.search(s.said) is not None,
        {"not-a-compatibility-problem": 5.5, "package-version-mismatch": -1},
        "the method is one of a model with an adapter, and this model has none",
        "PEFT, peft_model.py",
    ),
    Rule(
        "cache-unpacked",
        lambda s: _UNPACKED.search(s.said) is not None and _CACHE.search(s.said) is not None,
        {"package-version-mismatch": 4.5, "not-a-compatibility-problem": -1.5},
        "what transformers keeps of keys and values has another form in another release",
        "transformers, cache_utils.py",
    ),
    Rule(
        "context-lost-in-sleep",
        lambda s: s.has("cuda-launch-failure") and _SLEPT.search(s.said) is not None,
        {"gpu-not-visible": 6.5, "async-bad-input": -2},
        "the computer slept meanwhile, and the driver did not come back whole: load its module nvidia_uvm again",
        "NVIDIA, driver README: power management",
    ),
    Rule(
        "classes-beside-late-error",
        lambda s: (
            s.has("cublas-alloc-failed", "cublas-execution-failed", "cublas-not-initialized", "cudnn-not-initialized")
            and _CLASSES.search(s.said) is not None
        ),
        {"async-bad-input": 4, "gpu-out-of-memory": -1, "cuda-toolkit-mismatch": -1},
        "numbers of classes are named: a label out of range breaks the context before CUDA says so",
        "CUDA, asynchronous errors",
    ),
)
