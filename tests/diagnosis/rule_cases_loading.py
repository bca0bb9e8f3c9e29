"""Cases of the rules of what loads, trains and quantises models: a log, an environment, and the cause spoken for."""

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
TRAINER = "ValueError: fp16 mixed precision requires a GPU (not 'cpu')."
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
COMPUTE_TYPE = (
    "ValueError: Requested {0} compute type, but the target device or backend do not support efficient {0} computation."
)

APPLIES = {
    "whisper-beside-a-gpu": (
        "UserWarning: FP16 is not supported on CPU; using FP32 instead",
        {"gpu": "GeForce RTX 3060"},
        "cpu-only-build",
    ),
    "build-for-cpus-is-named": (
        "ValueError: Your setup doesn't support bf16/gpu.",
        {"torch": "2.5.1+cpu", "gpu": "RTX 4070"},
        "cpu-only-build",
    ),
    "trainer-on-mac": (TRAINER, {"os": "macOS 14"}, "mps-dtype-unsupported"),
    "trainer-beside-gpu": (TRAINER, {"gpu": "RTX 3090"}, "cpu-only-build"),
    "packed-beside-shape": (
        "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n"
        "\tsize mismatch for q_proj.weight: copying a param with shape torch.Size([8388608, 1]) from checkpoint",
        {},
        "quantized-lora-merge",
    ),
    "merging-quantised-layer": (
        "    target.merge(safe_merge=safe_merge, adapter_names=adapter_names)\n"
        "AttributeError: 'QuantLinear' object has no attribute 'weight'",
        {},
        "quantized-lora-merge",
    ),
    "variant-of-dtype": (
        "SafetensorError: Error while deserializing header: InvalidHeaderDeserialization\n"
        "unknown variant `F8_E8M0`, expected one of `BOOL`, `U8`, `I8`",
        {},
        "format-or-arch-unknown",
    ),
    "type-of-model-unknown": (
        'File "/env/site-packages/transformers/models/auto/configuration_auto.py", line 734, in from_pretrained\n'
        "KeyError: 'llava'",
        {},
        "format-or-arch-unknown",
    ),
    "name-missing-in-package": (
        'File "/env/site-packages/transformers/modeling_utils.py", line 3817, in from_pretrained\n'
        "NameError: name 'is_compiled_module' is not defined",
        {},
        "package-version-mismatch",
    ),
    "eight-bits-before-turing": (f"{NAN}\nload_in_8bit=True", {"gpu": "V100"}, "int8-matmul-unsupported-gpu"),
    "marlin-types-are-listed": (
        "ValueError: Marlin does not support weight_bits = uint3. Only types = [uint4b8, uint8b128] are supported",
        {},
        "kernel-shape-constraint",
    ),
    "compiler-before-ampere": (
        "Pass execution failedLLVM ERROR: Failed to translate TritonGPU to LLVM IR.",
        {"gpu": "GTX 1080 Ti"},
        "compiler-arch-unsupported",
    ),
    "fell-back-on-windows": (
        "UserWarning: Failed to launch Triton kernels, likely due to missing CUDA toolkit",
        {"os": "Windows 11"},
        "platform-binary-missing",
    ),
    "transform-in-half-on-cpu": ("RuntimeError: Unsupported dtype Half", {"os": "macOS 13"}, "cpu-half-op-missing"),
    "loss-in-half-on-cpu": (
        "RuntimeError: \"nll_loss_out_frame\" not implemented for 'Half'",
        {},
        "cpu-half-op-missing",
    ),
    "two-in-a-byte": (
        "RuntimeError: shape '[3072, 3072]' is invalid for input of size 4718592",
        {},
        "quantized-lora-merge",
    ),
    "added-to-bytes": (
        "RuntimeError: result type Half can't be cast to the desired output type Char",
        {},
        "quantized-lora-merge",
    ),
    "name-after-what-is-not-found": (
        "UserWarning: flash_attn was requested, but nvcc was not found.\nNameError: name 'cuda_release' is not defined",
        {},
        "cuda-library-not-found",
    ),
    "too-large-beside-gpu": (
        "ValueError: Found modules on cpu/disk. Using Exllama backend requires all the modules to be on GPU.",
        {"gpu": "RTX 3060 Laptop"},
        "gpu-out-of-memory",
    ),
    "bnb-beside-other-makers": (
        "UserWarning: The installed version of bitsandbytes was compiled without GPU support.",
        {"gpu": "AMD Radeon RX 7900 XTX"},
        "platform-binary-missing",
    ),
    "bnb-beside-nvidia": (
        "AttributeError: bitsandbytes/libbitsandbytes_cpu.so: undefined symbol: cget_col_row_stats",
        {"gpu": "RTX 3060"},
        "cuda-library-not-found",
    ),
    "nvidia-asked-of-mac": (
        "NotImplementedError: No NVIDIA GPU found? This program currently only supports GPUs!",
        {"os": "macOS 14"},
        "platform-binary-missing",
    ),
    "part-of-a-package": (
        "ModuleNotFoundError: No module named 'outlines.fsm'",
        {},
        "package-version-mismatch",
    ),
    "wheel-not-published": (
        "Guessing wheel URL:  https://github.com/releases/flash_attn-2.4.2+cu122torch2.1-cp310-win_amd64.whl\n"
        "error: urllib.error.HTTPError: HTTP Error 404: Not Found",
        {},
        "platform-binary-missing",
    ),
    "flash-asked-of-old-gpu": (
        "AssertionError: Paged attention required Flash Attention 2.5.7 or later",
        {"gpu": "Tesla V100"},
        "kernel-min-compute-capability",
    ),
    "extension-on-windows": (
        "NameError: name 'awq_ext' is not defined",
        {"os": "Windows 11"},
        "platform-binary-missing",
    ),
    "named-like-the-package": (
        "AttributeError: partially initialized module 'paddleocr' has no attribute 'OCR' (/home/me/paddleocr.py)",
        {},
        "not-a-compatibility-problem",
    ),
    "merged-into-narrow-floats": (
        "RuntimeError: Promotion for Float8 Types is not supported, attempted to promote Float8_e4m3fn and Float\n"
        "    model = model.merge_and_unload()",
        {},
        "quantized-lora-merge",
    ),
    "ids-beside-late-error": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n"
        "tokenizer.json has 32004 entries, embed_tokens 32000",
        {},
        "async-bad-input",
    ),
}
