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
    "wheel-before-gpu": (
        "RuntimeError: /io/build/spconv/build/core_cc cuda execution failed with error 209 "
        "no kernel image is available for execution on the device",
        {"gpu": "RTX 5080"},
        "build-lacks-new-arch",
    ),
    "built-on-another": (
        "CUDA error: no kernel image is available for execution on the device",
        {"gpu": "RTX 3090", "library_versions": "extension built on a Tesla V100"},
        "build-wrong-arch-flags",
    ),
    "dropped-by-cuda-13": (
        "ERROR: Failed to compile PTX code",
        {"gpu": "GTX 1080", "cuda": "13.0"},
        "compiler-arch-unsupported",
    ),
    "groups-before-cuda-11": (
        'error: namespace "cooperative_groups" has no member "reduce"',
        {"cuda": "10.2"},
        "cuda-toolkit-mismatch",
    ),
    "headers-before-cuda-11": (
        "backward.cu:15:10: fatal error: cooperative_groups/reduce.h: No such file or directory",
        {"cuda": "10.1"},
        "cuda-toolkit-mismatch",
    ),
    "headers-until-cuda-12": (
        "fatal error: nvToolsExt.h: No such file or directory",
        {"cuda": "13.0"},
        "cuda-toolkit-mismatch",
    ),
    "warp-functions-of-cuda-9": (
        'reduce.cu(44): error: identifier "__shfl_down" is undefined',
        {"gpu": "RTX 2080 Ti"},
        "cuda-toolkit-mismatch",
    ),
    "warp-functions-of-fermi": (
        'reduce.cu(44): error: identifier "__shfl_down" is undefined',
        {"cuda": "8.0"},
        "build-wrong-arch-flags",
    ),
    "code-made-at-start": (
        "keras: the first session takes 3 minutes on this card",
        {"gpu": "Tesla V100", "library_versions": "TensorFlow 1.4"},
        "build-lacks-new-arch",
    ),
    "provider-of-cuda-11": (
        "FAIL : Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.11: "
        "cannot open shared object file: No such file or directory",
        {},
        "cuda-toolkit-mismatch",
    ),
    "runtime-of-extension": (
        "ImportError: libcudart.so.10.1: cannot open shared object file: No such file or directory",
        {"library_versions": "mmcv-full 1.3.9"},
        "cuda-toolkit-mismatch",
    ),
    "release-of-cuda-named": ("Does not compile with CUDA 11", {}, "cuda-toolkit-mismatch"),
    "versions-differ": ("torch and cuda version do not match", {}, "cuda-toolkit-mismatch"),
    "host-compiler-named": ("nvcc does not pick the right gcc", {}, "cuda-toolkit-mismatch"),
    "works-on-older-card": (
        "It works on a computer with an RTX 2060, but not on one with an RTX 3070 Ti",
        {"gpu": "RTX 3070 Ti"},
        "build-lacks-new-arch",
    ),
    "since-another-cuda": ("It fails since upgrading to CUDA 12.2", {}, "cuda-toolkit-mismatch"),
    "new-card-refused": ("Does not run on this card", {"gpu": "RTX 5090"}, "build-lacks-new-arch"),
    "new-cards-named": ("RTX 30 series cards are not supported", {}, "build-lacks-new-arch"),
    "words-of-nvcc": ("Unsupported GPU architecture when compiling", {}, "compiler-arch-unsupported"),
    "old-card-refused": ("P40 not working anymore", {"gpu": "Tesla P40"}, "build-lacks-old-arch"),
    "list-of-architectures": ("compile for multiple GPU architectures", {}, "build-wrong-arch-flags"),
    "compiler-refuses-card": ("Triton kernels fail on it", {"gpu": "GTX 1080"}, "compiler-arch-unsupported"),
    "tensorflow-before-ampere": ("tensorflow 1.15 on a new card", {"gpu": "RTX 3090"}, "build-lacks-new-arch"),
    "cuda-before-card": ("No output on this card with CUDA 10.2", {"gpu": "RTX 3090"}, "build-lacks-new-arch"),
    "triton-of-old-card": ("Triton is not supported on P100", {"gpu": "P100"}, "compiler-arch-unsupported"),
}
