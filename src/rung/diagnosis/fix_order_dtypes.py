"""Hold in which order fixes of dtypes and shapes are named: what was slow, what overflowed, what a kernel does not
take.

The rows are those of ``fix_order_facts``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rung.diagnosis.evidence import Scene

#: What is slow and what was quicker, in the words of reports: "fp16 slower than fp32", "fp32 faster than fp16".
_SLOWER = r"(?:slow\w*|worse|longer|more time|less(?:er)? fps).{0,20}(?:than|vs|compared).{0,20}"
_FASTER = r".{0,40}(?:fast\w*|quick\w*|better|less(?:er)?|shorter).{0,20}(?:than|vs|compared).{0,20}"
_FULL = r"(?:fp_?32|float_?32|f32|full precision|\bfloats?\b)"
_THAN_FULL = (
    f"(?i){_SLOWER}{_FULL}|(?:fast|less|better|quick)\\w{{0,4}}.{{0,30}}{_FULL}.{{0,15}}than"
    f"|{_FULL}{_FASTER}(?:(?:fp|float|f|bf|bfloat)_?16|half|q?u?int8)"
)
#: Half precision alone is named, and nothing quicker.
_HALF_IS_SLOW = r"(?i)\b(?:fp_?16|float_?16|half|amp|mixed[ -_]precision|autocast)\b"
_OTHER_TYPE = (
    r"(?i)\b(?:[48]-?bit\b|nf4|awq|gptq|bnb|bitsandbytes|float8|fp8|u?int[48]|quanti[sz]|bf_?16|bfloat|fp_?32"
    r"|gguf|q\d)"
)
#: Integers on processors, where no GPU kernel is meant.
_INTEGERS_OF_CPU = r"(?i)onnx|openvino|quantize_dynamic|qnnpack|fbgemm|tflite|\bCPU\b"

BY_DTYPE: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
    ("slow-dtype-path", lambda s: s.has("compute-dtype-wide"), ("change-compute-dtype", "use-fp16")),
    (
        "dtype-mix",
        lambda s: s.has("operand-of-other-type") and s.says(r"to be (?:float16 or )?bfloat16"),
        ("use-bf16", "cast-to-match"),
    ),
    ("slow-dtype-path", lambda s: s.has("fast-kernel-not-built"), ("build-from-source", "install-matching-build")),
    ("slow-dtype-path", lambda s: s.has("kernel-not-for-arch"), ("change-hardware", "build-from-source")),
    (
        "slow-dtype-path",
        lambda s: s.says(_THAN_FULL) and not (s.says("(?i)int8|quanti[sz]") and s.about(r"(?i)\bgpu\b|cuda|tensorrt")),
        ("use-fp32", "change-hardware"),
    ),
    (
        "slow-dtype-path",
        lambda s: (
            s.says(r"(?i)q?u?int8|8-?bit|quanti[sz]")
            and s.says(_INTEGERS_OF_CPU)
            and not s.about("(?i)cuda|fp16|float16|vulkan|tensorrt")
        ),
        ("use-fp32", "requantize-or-reconvert"),
    ),
    ("slow-dtype-path", lambda s: s.says(r"(?i)\bfp8|float8"), ("use-bf16", "change-quantization")),
    (
        "slow-dtype-path",
        lambda s: s.says(r"(?i)fp_?64|float_?64|double precision|complex128"),
        ("use-fp32", "change-hardware"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.says(_HALF_IS_SLOW) and not s.says(_OTHER_TYPE),
        ("use-fp32", "change-hardware"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.below(70) and s.says(r"(?i)\bexl[23]\b|exllama|gptq|\bawq\b|\bnf4\b|load_in_[48]bit|[48]-?bit\b"),
        ("use-other-backend", "change-quantization"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.has("tensorrt-not-native") and s.says("Int8") and (s.from_(70) or s.facts.capability == 60),
        ("use-fp16", "change-hardware"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.below(70) or s.has("compute-type-refused"),
        ("use-fp32", "use-other-backend"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.says(r"(?i)\b(?:[48]-?bit\b|nf4|awq|gptq|bnb|bitsandbytes|float8|fp8|quanti[sz])"),
        ("use-fp16", "change-quantization"),
    ),
    (  # libraries of linear algebra have none in 16 bits, and newer releases neither
        "gpu-dtype-op-missing",
        lambda s: s.says(
            r"(?i)(?:svd|cholesky|linalg|geqrf|lu_factor|inverse|eigh?|ctc_loss)\w* not impl|Low precision dtypes"
        ),
        ("upcast-part", "use-fp32"),
    ),
    (
        "mps-dtype-unsupported",
        lambda s: s.says(r"kernel_\w*bf16\w* +\(not supported\)"),
        ("use-fp16", "change-quantization"),
    ),
    ("cpu-half-op-missing", lambda s: s.has("compute-type-refused") and s.from_(70), ("use-gpu", "use-fp32")),
    (  # options with which llama.cpp is compiled to add in half precision
        "fp16-overflow",
        lambda s: s.says(r"(?:GGML|LLAMA)_(?:CUDA|CUBLAS|HIP)_F(?:16|ORCE_CUBLAS)\S*=(?:ON|1|on|TRUE)"),
        ("build-from-source", "use-fallback-kernel"),
    ),
    ("fp16-overflow", lambda s: s.has("exclamation-marks"), ("use-bf16", "use-fp32")),
    (  # pictures are empty by their decoder
        "fp16-overflow",
        lambda s: s.says(r"(?i)\bvae\b|\bblack (?:image|picture|square|output|frame|screen)|image_processor\.py"),
        ("upcast-part", "use-fp32"),
    ),
    ("kernel-shape-constraint", lambda s: s.has("divided-among-gpus"), ("adjust-shape", "use-fallback-kernel")),
    (  # of several kernels for the same weights another takes the shape
        "kernel-shape-constraint",
        lambda s: (
            s.has("shape-not-aligned")
            and s.says(r"(?i)exllama|marlin|qlinear|quantlinear")
            and s.says(r"(?i)divisible|infeatures|in_features|multiples? of")
        ),
        ("use-fallback-kernel", "change-quantization"),
    ),
    (  # settings of single layers, which older releases do not read
        "kernel-shape-constraint",
        lambda s: s.says("incompatible based on bits and group_size"),
        ("upgrade-library", "requantize-or-reconvert"),
    ),
    (
        "kernel-shape-constraint",
        lambda s: s.says(
            r"(?i)group[_ ]size|quanti[sz]\w* requires|required for i?q\d|\bi?q[2-8]_[01k]\b|k-quants|QK_K|in_features"
        ),
        ("change-quantization", "adjust-shape"),
    ),
    ("fp16-overflow", lambda s: s.below(80), ("use-fp32", "upcast-part")),
    (
        "slow-dtype-path",
        lambda s: s.says(r"please use the legacy Keras optimizer"),
        ("fix-user-code", "upgrade-library"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.about("(?i)offloaded|llama|ggml|ollama|whisper"),
        ("build-from-source", "use-gpu"),
    ),
)
