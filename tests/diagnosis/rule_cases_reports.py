"""Cases of the rules of reports without an error: a log, an environment, and the cause spoken for."""

APPLIES = {
    "diverged-by-learning-rate": (
        "loss is nan with learning rate 5e-3, 2e-5 is fine",
        {},
        "not-a-compatibility-problem",
    ),
    "nan-from-a-kernel": ("flash_attn: NaN gradients in the backward pass for head dim 96", {}, "software-defect"),
    "garbled-by-graphics": ("Vulkan: garbled answers from some models on an Intel iGPU", {}, "software-defect"),
    "text-for-a-model": ("gguf_init_from_file: invalid magic number 73726576", {}, "not-a-compatibility-problem"),
    "fewer-keys-than-queries": (
        "RuntimeError: shape '[2, 512, 64, 128]' is invalid for input of size 1048576",
        {},
        "software-defect",
    ),
    "named-like-torch": (
        "AttributeError: partially initialized module 'torch' has no attribute 'nn' (most likely "
        "due to a circular import)",
        {},
        "not-a-compatibility-problem",
    ),
    "code-of-the-model": (
        "KeyError: 'rope_type' when trust_remote_code=True",
        {},
        "package-version-mismatch",
    ),
    "converted-in-memory": (
        "OOM: merging is fine, but convert.py of the 30B model is out of memory",
        {},
        "host-out-of-memory",
    ),
    "layers-not-asked-for": (
        "ggml_cuda_init: found 1 CUDA devices:\nllm_load_tensors: offloaded 0/29 layers to GPU",
        {},
        "not-a-compatibility-problem",
    ),
    "mask-named": (
        "torch.cuda.is_available() is False; the script has export CUDA_VISIBLE_DEVICES=3",
        {},
        "gpu-not-visible",
    ),
    "meta-of-sentences": (
        'NotImplementedError: Cannot copy out of meta tensor; no data!\nSentenceTransformer("all-mpnet-base-v2")',
        {},
        "software-defect",
    ),
    "asserts-in-an-engine": (
        '  File "/opt/venv/lib/python3.11/site-packages/vllm/core/scheduler.py", line 812, in _schedule\n'
        "    assert num_new_tokens > 0\nAssertionError",
        {},
        "software-defect",
    ),
    "slow-at-first": ("inference is slow on the first picture, fast after that", {}, "not-a-compatibility-problem"),
    "method-of-an-adapter": (
        "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'print_trainable_parameters'",
        {},
        "not-a-compatibility-problem",
    ),
    "cache-unpacked": (
        "    cache_k, cache_v = kv_cache\nValueError: too many values to unpack (expected 2)",
        {},
        "package-version-mismatch",
    ),
    "context-lost-in-sleep": (
        "RuntimeError: CUDA error: unspecified launch failure (only after suspend)",
        {},
        "gpu-not-visible",
    ),
    "classes-beside-late-error": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\nnum_classes=9",
        {},
        "async-bad-input",
    ),
}
