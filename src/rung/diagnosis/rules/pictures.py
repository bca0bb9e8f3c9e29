"""Programs that make pictures and video: what their messages mean on this device."""

from __future__ import annotations

import math
import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.devices import says
from rung.diagnosis.rules.known import NAN

_LATE = ("cudnn-not-initialized", "cublas-not-initialized", "cudnn-algorithm", "dnn-initialisation", "cudnn-handle")
#: A smaller piece of work that went through.
_SMALLER = (
    r"(?i)\b(?:smaller|lower|less|reduc\w+) (?:batch|image|size|resolution|tile)"
    r"|batch(?:[_ ]size)?[ =]*1?\d\b.{0,20}(?:\bit runs|works?\b|\bok\b|fine)"
)
#: An attention kernel that the report says it can do without.
_KERNEL = r"(?i)sage[-_ ]?att\w*|xformers"
_WITHOUT = (
    r"(?i)\bwithout\b.{0,60}(?:fine|ok\b|works?|good|right|clean|no (?:nan|black))"
    r"|(?:sdp|sdpa|pytorch)[-_ ]?att\w* .{0,10}(?:ok\b|fine|works)|only when .{0,40}\bon\b"
)
#: A model that is being loaded, and what speaks of an end of another kind.
_LOADING = r"(?i)\bload(?:ing|ed)? |to load\b|creating model|moving model|got prompt|model_type"
_WELL = r"(?i)prompt executed|\berror|exception|traceback|\bsaved\b|100%|interrupt|\bepoch|\bstep"
_BAR = r"\[\d+:\d\d(?:<|:)"
_VIDEO = r"(?i)\b\w*cuvid|nvdec|\bdecord\b|\bffmpeg\b|hardware decod|hwaccel"


#: How long a text is and how many positions a language model has, two of which mark its ends.
_POSITIONS = ([512, 514], [1024, 1026], [4096, 4098])


def _sizes(scene: Scene) -> tuple[int, int] | None:
    """Two sizes that a message says should be one."""
    found = re.search(
        r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\)|Expected size (\d+) but got size (\d+)",
        scene.said,
    )
    if found is None:
        return None
    return int(found[1] or found[3]), int(found[2] or found[4])


def _off_by_little(scene: Scene) -> bool:
    sizes = _sizes(scene) if scene.has("shape-mismatch") else None
    return (
        sizes is not None
        and sorted(sizes) not in _POSITIONS
        and 8 <= min(sizes) < 4096
        and abs(sizes[0] - sizes[1]) in (1, 2)
    )


def _rounded(scene: Scene) -> bool:
    """Return whether a shape is refused that has a few values less than there are: a size was rounded down."""
    found = re.search(r"shape '\[([\d, ]{1,80})\]' is invalid for input of size (\d+)", scene.said)
    if found is None:
        return False
    values = math.prod(int(size) for size in re.findall(r"\d+", found[1]))
    return values < int(found[2]) < 1.15 * values


def _two_sides(scene: Scene) -> bool:
    """Return whether a message names a type of the processor's tensors and one of CUDA's."""
    side = r"(?:torch\.|CPU|(?=CUDA))(cuda\.|CUDA)?\w+"
    found = re.search(rf"Input type \({side}\) and (?:weight|bias) type \({side}", scene.said)
    return found is not None and bool(found[1]) != bool(found[2])


def _stopped(scene: Scene) -> bool:
    """Return whether a program ended while it loaded a model, without a word: only its batch file speaks."""
    quiet = all(name.startswith("topic-") for name in scene.ids)
    ended = quiet and re.search(r"(?m)>\s?pause\s*$|^\^C\s*$", scene.said) is not None
    return ended and re.search(_LOADING, scene.said) is not None and re.search(_WELL, scene.said) is None


RULES: tuple[Rule, ...] = (
    Rule(
        "stopped-without-a-word",
        _stopped,
        {"host-out-of-memory": 6},
        "it ended while it loaded, without an error: most often the system's memory was full",
        "ComfyUI and Stable Diffusion web UIs, batch files",
    ),
    Rule(
        "slow-and-shared-memory",
        lambda s: s.has("memory-of-the-system-used") and s.has("speed-figures", "slow-symptom", "speeds-compared"),
        {"gpu-out-of-memory": 2, "slow-dtype-path": -2},
        "it is slow because the GPU's memory is full and the driver uses the system's",
        "NVIDIA driver, system memory fallback",
    ),
    Rule(
        "smaller-fits",
        lambda s: s.has("cudnn-internal", *_LATE) and says(s, _SMALLER),
        {"gpu-out-of-memory": 3, "cuda-toolkit-mismatch": -1},
        "a smaller piece of work goes through",
        "cuDNN, CUDNN_STATUS_INTERNAL_ERROR",
    ),
    Rule(
        "tactics-without-memory",
        lambda s: s.has("tensorrt-workspace") and s.has("defect-wording"),
        {"gpu-out-of-memory": 3, "software-defect": -3},
        "no implementation was found because each needs more memory than is free",
        "TensorRT, builder",
    ),
    Rule(
        "bar-beside-an-error",
        lambda s: s.has("speed-figures") and says(s, _BAR) and len(s.ids) > 1 and not s.has("slow-symptom"),
        {"slow-dtype-path": -1.5},
        "the speed is that of a progress bar, which every run prints",
        "tqdm",
    ),
    Rule(
        "nan-of-a-kernel",
        lambda s: s.has(*NAN) and says(s, _KERNEL) and says(s, _WITHOUT),
        {"software-defect": 4.4, "fp16-overflow": -2, "fp16-broken-on-gpu": -2},
        "without that attention kernel it is right: the kernel is at fault",
        "SageAttention, xFormers",
    ),
    Rule(
        "pictures-of-a-decoder",
        lambda s: s.has("empty-picture", "nan-symptom") and says(s, _VIDEO),
        {"software-defect": 4, "fp16-overflow": -3, "fp16-broken-on-gpu": -3},
        "the frames are decoded, not computed",
        "FFmpeg, decord",
    ),
    Rule(
        "picture-after-an-error",
        lambda s: s.has("empty-picture", "nan-symptom") and s.has("ncnn-queue"),
        {"gpu-out-of-memory": 2.5, "fp16-overflow": -3},
        "the picture is empty because the work on the GPU failed",
        "ncnn, Vulkan",
    ),
    Rule(
        "nan-on-apple",
        lambda s: (
            s.facts.apple
            and s.has("picture-is-noise", "empty-picture", "invalid-cast")
            and says(s, r"\bM[1-5]\b|\bMPS\b|\bmps\b|Metal")
        ),
        {"mps-dtype-unsupported": 4.5, "fp16-overflow": -2},
        "on Apple's GPUs several operations of torch are wrong or missing in half precision",
        "torch, MPS backend",
    ),
    Rule(
        "wrong-on-apple-in-float32",
        lambda s: (
            s.has(*NAN)
            and s.says(r"\b(?:MPS|mps)\b|tensorflow-metal|Metal device|Apple M\d")
            and not s.facts.dtypes & {"f16", "bf16"}
            and not s.has("empty-picture", "picture-is-noise", "invalid-cast", "exclamation-marks", "nan-logits")
        ),
        {"software-defect": 3.2, "mps-dtype-unsupported": 2, "fp16-overflow": -2, "fp16-broken-on-gpu": -1},
        "nothing speaks of half precision: early releases of the backend computed wrongly",
        "torch and TensorFlow, Metal backends",
    ),
    Rule(
        "wrong-in-both-halves",
        lambda s: (
            s.has(*NAN) and s.says(r"(?i)\b(?:fp|float)16 (?:or|and) bf(?:loat)?16\b(?! (?:is|are|works?|runs?))")
        ),
        {"software-defect": 3, "fp16-overflow": -5, "fp16-broken-on-gpu": -1.5},
        "bfloat16, which reaches as far as float32, gives the same: a range too small is not the reason",
        "IEEE 754 and bfloat16, exponents",
    ),
    Rule(
        "diverged-in-float32",
        lambda s: s.has("training-diverged") and "f16" not in s.facts.dtypes,
        {"fp16-overflow": -2.5},
        "nothing says that it computes in half precision",
        "detectron2, SOLVER.AMP",
    ),
    Rule(
        "sizes-nearly-equal",
        _off_by_little,
        {"kernel-shape-constraint": 3.2},
        "the sizes differ by a rounding: the picture's size is no multiple of the network's steps",
        "U-Net, skip connections",
    ),
    Rule(
        "shape-rounded-down",
        _rounded,
        {"kernel-shape-constraint": 3.6},
        "the shape has a few values less than there are: a size is no multiple of the window",
        "SwinIR and its kin, window_partition",
    ),
    Rule(
        "packed-and-fused",
        lambda s: (
            s.has("writes-into-quantised", "packed-weight-shape", "dtype-index-put")
            and says(s, r"(?i)fuse_?lora|\bmerg")
        ),
        {"quantized-lora-merge": 4, "dtype-mix": -2},
        "an adapter is to be merged into weights that are quantised",
        "PEFT and diffusers, fuse_lora",
    ),
    Rule(
        "types-on-two-devices",
        _two_sides,
        {"device-placement": 5.5, "dtype-mix": -2.5},
        "one of the types is the processor's, the other CUDA's: the tensors lie on two devices",
        "torch, names of tensor types",
    ),
    Rule(
        "indices-of-yolo",
        lambda s: (
            s.has("writes-into-whole-numbers", "dtype-index-put")
            and says(s, r"output type (?:long|__int64)")
            and says(s, r"(?i)yolo|build_targets")
        ),
        {"package-version-mismatch": 6, "dtype-mix": -2},
        "torch casts no longer in clamp_: the program was written for an older release",
        "YOLOv5 and YOLOv7, loss.py",
    ),
    Rule(
        "half-on-the-processor",
        lambda s: (
            s.has("torch-dtype-not-implemented")
            and (s.facts.on_cpu or s.facts.without_gpu or says(s, "(?i)without (?:a )?GPU"))
            and s.words.get("dtype", "").lower() in ("half", "bfloat16")
            and "cuda" not in s.words.get("kernel", "").lower()
        ),
        {"cpu-half-op-missing": 4, "gpu-dtype-op-missing": -2},
        "the log or the environment says that it runs on the processor",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "adapter-on-tensor-subclass",
        lambda s: s.has("tensor-subclass-built") and says(s, r"(?i)\blora|load_lora|adapter"),
        {"quantized-lora-merge": 5},
        "an adapter is applied to quantised weights",
        "diffusers and optimum-quanto",
    ),
    Rule(
        "nan-of-a-known-release",
        lambda s: s.has("xformers-defect-named") and s.has(*NAN),
        {"software-defect": 3, "fp16-overflow": -2},
        "this release of xFormers is known for it",
        "diffusers, examples",
    ),
    Rule(
        "half-named-in-nan",
        lambda s: (
            s.has(*NAN)
            and s.says(r"(?i)\b(?:bf16|bfloat16)\b.{0,40}(?:ok|works?|fine|right|normal)")
            and not s.says(r"(?i)\b16[356]0")
        ),
        {"fp16-overflow": 1},
        "bfloat16, which has a wider range, is right",
        "IEEE 754 binary16 and bfloat16",
    ),
)
