"""Cases of the rules of compilers, loaders and released programs: a log, an environment, and the cause spoken for."""

XFORMERS = "xFormers can't load C++/CUDA extensions. xFormers was built for:\n    PyTorch 2.1.2+cu121 with CUDA 1201 "
PROCEDURE = "OSError: [WinError 127] The specified procedure could not be found. Error loading "

APPLIES = {
    "instruction-of-this-gpu": (
        "ptxas gemm.ptx, line 928; error   : Feature '.m16n8k16' requires .target sm_80 or higher",
        {"gpu": "RTX 3090"},
        "build-wrong-arch-flags",
    ),
    "pinned-memory": (
        'File "torch/utils/data/_utils/pin_memory.py", in pin_memory\nRuntimeError: CUDA error: out of memory',
        {},
        "host-out-of-memory",
    ),
    "built-for-other-torch": (XFORMERS + "(you have 2.2.0+cu121)", {}, "package-version-mismatch"),
    "procedure-of-a-cuda-library": (PROCEDURE + '"torch\\lib\\cudnn_adv64_8.dll"', {}, "cuda-toolkit-mismatch"),
    "binary-for-intel-on-arm": (
        "zsh: illegal hardware instruction  python",
        {"os": "macOS 13", "cpu": "Apple M2"},
        "platform-binary-missing",
    ),
    "module-shadowed": (
        'File "/home/me/work/torch.py", line 1, in <module>\n'
        "AttributeError: partially initialized module 'torch' has no attribute 'nn'",
        {},
        "not-a-compatibility-problem",
    ),
    "tensorflow-before-gpu": (
        "InternalError: Blas GEMM launch failed : a.shape=(64, 784), b.shape=(784, 128)",
        {"gpu": "RTX 3080", "library_versions": "tensorflow-gpu 1.15"},
        "build-lacks-new-arch",
    ),
    "onnxruntime-before-gpu": (
        "[E:onnxruntime:] Status Message: CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED_CUDART",
        {"gpu": "RTX 5090"},
        "build-lacks-new-arch",
    ),
    "arch-list-misread": (
        "ValueError: Unknown CUDA arch (7.2+PTX 8.7) or GPU not supported",
        {},
        "build-wrong-arch-flags",
    ),
    "versions-named": (
        "RuntimeError: Unable to load cuSPARSE. Is it installed?\n"
        "Found cuBLAS version 120103, but JAX was built against version 120205, which is newer.",
        {},
        "cuda-toolkit-mismatch",
    ),
    "module-of-unix": ("ModuleNotFoundError: No module named 'fcntl'", {}, "platform-binary-missing"),
    "architectures-not-seen": (
        'File "torch/utils/cpp_extension.py", in _get_cuda_arch_flags\nIndexError: list index out of range',
        {},
        "build-wrong-arch-flags",
    ),
    "syntax-of-newer-python": (
        'File "/venv/lib/python3.7/site-packages/transformers/utils.py", line 12\n    if (n := len(a)) > 10:\n'
        "SyntaxError: invalid syntax",
        {"library_versions": "Python 3.7"},
        "package-version-mismatch",
    ),
}
