"""Rules about facts and signatures: rows of when one holds, which causes it weighs, and a sentence to show.

Weights are nats, as in the signatures; a negative one speaks against. A row stays as long as one of the founding five
needs it, or the cause of a public thread were wrong without it, or its sentence is evidence for the right cause of five
threads or more (``benchmarks/explain.py --rules`` counts both). The sentence may name {gpu}, {cc} and {archs}.
"""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule
from rung.diagnosis.rules import conditions as c

RULES: tuple[Rule, ...] = (
    Rule(
        "built-on-another",
        lambda s: s.has(*c.MISSING) and s.about(c.ON_ANOTHER),
        {"build-wrong-arch-flags": 2.8},
        "it was compiled on a machine with another GPU, for that one",
        "torch, cpp_extension.py: without a list the GPU that is there is the list",
    ),
    Rule(
        "newer-than-the-build",
        lambda s: c.newer_than_build(s) and s.has(*c.LISTED, *c.MISSING),
        {"build-lacks-new-arch": 3.5, "build-lacks-old-arch": -3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}; the build holds code for {archs} only",
        c.TORCH,
    ),
    Rule(
        "older-than-the-build",
        lambda s: c.older_than_build(s) and s.has(*c.LISTED, *c.MISSING),
        {"build-lacks-old-arch": 3.5, "build-lacks-new-arch": -3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}; the build holds code for {archs} only",
        c.TORCH,
    ),
    Rule(
        "new-gpu",
        lambda s: s.from_(89) and s.has("torch-arch-warning", "device-not-for-torch", *c.MISSING),
        {"build-lacks-new-arch": 2, "build-lacks-old-arch": -3},
        "{gpu} has compute capability {cc}: newer than many builds",
        c.TORCH,
    ),
    Rule(
        "old-gpu",
        lambda s: (
            (
                s.below(70)
                and s.has(
                    "torch-arch-warning", "device-not-for-torch", "cudnn-arch", "cublas-arch-mismatch", *c.MISSING
                )
            )
            or (s.below(75) and s.has("machine-capability-refused"))
        ),
        {"build-lacks-old-arch": 2, "build-lacks-new-arch": -3},
        "{gpu} has compute capability {cc}: newer builds have dropped it",
        c.TORCH,
    ),
    Rule(
        "local-build",
        lambda s: (
            s.has(*c.MISSING)
            and re.search(c.EXTENSION, c.OF_TORCH.sub("", s.text)) is not None
            and not s.about(c.PREBUILT)
        ),
        {"build-wrong-arch-flags": 2},
        "the code that is missing belongs to an extension that was compiled apart",
        "ggml and torch extensions are compiled for a list of architectures",
    ),
    Rule(
        "built-here",
        lambda s: s.has(*c.MISSING) and s.about(c.FROM_SOURCE),
        {"build-wrong-arch-flags": 2.8},
        "it was compiled on a machine, for a list of GPUs of its own",
        c.TORCH,
    ),
    Rule(
        "amd-missing-code",
        lambda s: s.vendor == "amd" and s.has(*c.MISSING, "gpu-ignored-as-old"),
        {"rocm-arch-unsupported": 4, "build-lacks-new-arch": -2, "build-lacks-old-arch": -2},
        "{gpu} is an AMD GPU: what holds no code for it was built for ROCm",
        "AMD, ROCm compatibility matrix",
    ),
    Rule(
        "hip-missing-code",
        lambda s: s.has(*c.MISSING) and s.says(r"\bHIP error|\bhip[A-Z]|\bROCm\b|\w\.hip\b"),
        {"rocm-arch-unsupported": 3, "build-wrong-arch-flags": -1.5},
        "the message is HIP's, AMD's runtime",
        "HIP runtime",
    ),
    Rule(
        "cpu-wheel-on-windows",
        lambda s: (
            s.facts.windows
            and s.has("is-available-false", "quantiser-without-gpu", "torch-without-cuda")
            and s.facts.build is None
            and not s.facts.without_gpu
        ),
        {"cpu-only-build": 1.2},
        "on Windows the package index gives torch without CUDA unless its own index is named",
        c.TORCH,
    ),
    Rule(
        "bnb-on-windows",
        lambda s: s.facts.windows and s.has(*c.BITSANDBYTES, "bnb-cpu-symbol"),
        {"platform-binary-missing": 2.5},
        "older bitsandbytes has no libraries for Windows",
        "bitsandbytes, release notes of 0.43",
    ),
    Rule(
        "build-before-gpu",
        lambda s: s.has(*c.MISSING, *c.WRONG_CODE) and c.cuda_before_gpu(s),
        {"build-lacks-new-arch": 3.5, "build-wrong-arch-flags": -2.5, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}, which the CUDA of this build does not know yet",
        c.CATALOG,
    ),
    Rule(
        "no-gpu-named",
        lambda s: s.facts.without_gpu and s.has("torch-without-cuda", "deserialize-cuda"),
        {"not-a-compatibility-problem": 2.5, "cpu-only-build": -0.5},
        "there is no GPU here: the program must ask for another device",
        "torch, Tensor.cuda",
    ),
    Rule(
        "no-gpu-to-see",
        lambda s: s.has("no-nvidia-driver") and s.facts.without_gpu and not s.facts.apple,
        {"gpu-not-visible": 2, "not-a-compatibility-problem": -1},
        "there is no NVIDIA GPU here: the program must ask for another device",
        "torch, Tensor.cuda",
    ),
    Rule(
        "driver-reads-ptx",
        lambda s: s.has("ptx-version") and s.says(c.LINKED),
        {"driver-too-old": 3, "cuda-toolkit-mismatch": -1},
        "it is the driver's own assembler that refuses what a newer compiler wrote",
        "CUDA driver API, cuLinkAddData",
    ),
    Rule(
        "in-a-container",
        lambda s: s.has(*c.UNSEEN) and s.about(c.CONTAINER),
        {"gpu-not-visible": 1.5, "cpu-only-build": -0.5},
        "the program runs in a container or a virtual machine",
        "NVIDIA container toolkit",
    ),
    Rule(
        "jetson-wheel",
        lambda s: s.has(*c.UNSEEN, "torch-without-cuda") and s.about(r"(?i)\bjetson|\btegra|\bjetpack|\bL4T\b"),
        {"cpu-only-build": 3},
        "on Jetson the package index gives torch without CUDA: NVIDIA builds its own for JetPack",
        "NVIDIA, PyTorch for Jetson",
    ),
    Rule(
        "metal-of-one-release",
        lambda s: s.has("mlx-kernel") and s.has("known-regression"),
        {"software-defect": 3, "mps-dtype-unsupported": -3.5},
        "another release of MLX has the kernel on the same machine",
        "https://github.com/ml-explore/mlx/releases",
    ),
    Rule(
        "webui-on-amd",
        lambda s: s.has("webui-without-gpu") and s.vendor == "amd" and s.facts.windows,
        {"platform-binary-missing": 5, "cpu-only-build": -0.5},
        "torch has no build for AMD's GPUs on Windows, but for the newest",
        "torch, installation",
    ),
    Rule(
        "bf16-before-ampere",
        lambda s: s.below(80) and s.has(*c.BF16) and ("bf16" in s.facts.dtypes or s.about(r"(?i)\bbf16\b|bfloat16")),
        {"bf16-unsupported-gpu": 3.5, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}; bfloat16 matrices need 8.0, or a torch that emulates them",
        c.NVIDIA,
    ),
    Rule(
        "bf16-in-cublas-call",
        lambda s: (
            s.has("cublas-not-supported")
            and (
                s.says("(?:CUDA|HIP)_R_16BF") or ("bf16" in s.facts.dtypes and not s.says("when calling|(?i:int8|fp8)"))
            )
            and not s.from_(80)
        ),
        {"bf16-unsupported-gpu": 2.5},
        "the refused multiplication is in bfloat16",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "compiled-before-ampere",
        lambda s: s.below(80) and s.from_(70) and s.says("PTX codegen error") and not s.says("gpu-name"),
        {"bf16-unsupported-gpu": 4.2, "compiler-arch-unsupported": -1},
        "{gpu} has compute capability {cc}; what its assembler refuses in Triton's code is most often bfloat16",
        "PTX ISA, cvt",
    ),
    Rule(
        "bf16-kernel-left-out",
        lambda s: not s.from_(80) and s.has("named-symbol") and s.says("(?i)bf16|bfloat16"),
        {"bf16-unsupported-gpu": 5.5, "build-wrong-arch-flags": -2.5},
        "kernels in bfloat16 are compiled from compute capability 8.0 on",
        "candle, candle-kernels",
    ),
    Rule(  # else such a card were repaired by itself, for a dtype that it computes
        "trainer-misses-bf16",
        lambda s: s.from_(80) and s.has("bf16-training-arguments"),
        {"bf16-unsupported-gpu": -5, "software-defect": 3.2, "cpu-only-build": 1.1, "gpu-not-visible": 1.1},
        "{gpu} has compute capability {cc} and computes bfloat16: the check asks too early, or sees no GPU",
        "transformers, utils/import_utils.py",
    ),
    Rule(
        "refused-before-ampere",
        lambda s: (
            s.has("cublas-not-supported")
            and s.below(75)
            and s.facts.torch is not None
            and s.facts.torch >= c.UNASKED
            and not s.says("when calling|(?i:half|float16|fp16|int8|8.?bit)")
        ),
        {"bf16-unsupported-gpu": 3, "software-defect": -1},
        "{gpu} has compute capability {cc}; what cuBLAS refuses such a card is most often bfloat16",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(  # no thread needs it; one of the founding five does
        "f16-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says(r"(?i)CUDA_R_16F\b"),
        {"cuda-toolkit-mismatch": 1.5},
        "half precision is multiplied by every GPU since 5.3, so another cuBLAS than torch's own may answer",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "int8-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and (s.says(c.INT8) or bool(re.search(r"\b_?igemm", s.excerpt))),
        {"int8-matmul-unsupported-gpu": 6, "cuda-toolkit-mismatch": -1, "software-defect": -1},
        "the refused multiplication is in int8",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "kernel-of-the-cpu",
        lambda s: c.kernel(s, c.OF_CPU) and not c.kernel(s, "cuda") and not s.says(r"_cuda\"|\bhip\b"),
        {"cpu-half-op-missing": 3, "gpu-dtype-op-missing": -2},
        "the kernel that is missing is the CPU's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "kernel-of-the-gpu",
        lambda s: c.kernel(
            s,
            r"cuda|(?<!avg_pool[23]d)_out_frame|upsample|interpolat|index_|scatter|fft|reduce|nll_loss|cdist|grid_sampl|roi_"
            r"|_gpu|_out_template|nms\w*_(?:impl|cuda)|cublas|cusolver|deform|im2col_(?!cpu)|align_\w*ward|dcn|_dim_kernel"
            # extensions that are written for GPUs
            r"|fused_bias|upfirdn|selective_scan|grid_encode|raymarch|wkv|rasteri|voxel|ball_query|furthest|three_(?:nn|interp)"
            r"|group_points|corr_|correlation|chamfer|spmm",
        ),
        {"gpu-dtype-op-missing": 3, "cpu-half-op-missing": -1.5},
        "the kernel that is missing is the GPU's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "half-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype", "").lower() == "half",
        {"cpu-half-op-missing": 1},
        "half precision is what CPUs lack most often",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "bf16-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype", "").lower() == "bfloat16",
        {"gpu-dtype-op-missing": 0.8},
        "bfloat16 kernels came to GPUs one by one",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "gtx-16-half",
        lambda s: s.facts.gpu is not None and s.facts.gpu.half_is_broken and s.has(*c.NAN, "dtype-expected-found"),
        {"fp16-broken-on-gpu": 5, "fp16-overflow": -1.5, "dtype-mix": -1.5},
        "{gpu} gives NaN in half precision in several libraries",
        "https://github.com/pytorch/pytorch/issues/58123",
    ),
    Rule(
        "int8-before-turing",
        lambda s: s.below(75) and s.has("int8-refused", "bitsandbytes-no-cublaslt", "int8-slow"),
        {"int8-matmul-unsupported-gpu": 1.5},
        "{gpu} has compute capability {cc}; int8 matrix units came with 7.5",
        c.NVIDIA,
    ),
    Rule(
        "fp8-before-ada",
        lambda s: s.below(89) and "fp8" in s.facts.dtypes and s.has(*c.FP8),
        {"fp8-fp4-unsupported-gpu": 1.5, "compiler-arch-unsupported": -0.5},
        "{gpu} has compute capability {cc}; 8-bit floating point came with 8.9",
        c.NVIDIA,
    ),
    Rule(
        "driver-of-earlier-cuda",
        lambda s: s.has("forward-compat", "driver-combination") and c.driver_of_earlier_cuda(s),
        {"driver-too-old": 2.4},
        "the driver named came with an earlier CUDA than the one that asks",
        "NVIDIA, CUDA toolkit release notes: drivers",
    ),
    Rule(
        "driver-changed-under-it",
        lambda s: s.has("nvml") and s.says("Driver/library version mismatch"),
        {"gpu-not-visible": 3, "driver-too-old": -2},
        "the driver was updated and the old one is still loaded: a restart loads the new one",
        "NVML, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    ),
    Rule(
        "prebuilt-after-gpu",
        lambda s: c.prebuilt(s) and s.below(70),
        {"build-lacks-old-arch": 3, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}; the library is one that most people install compiled",
        "PyPI, conda",
    ),
    Rule(
        "generation-is-here",
        lambda s: (generation := c.unbuilt(s)) is not None and s.from_(generation),
        {"build-wrong-arch-flags": 2.5, "kernel-min-compute-capability": -3},
        "{gpu} has compute capability {cc}, enough for the kernels that are missing: they were not compiled",
        "the message names the generation",
    ),
    Rule(
        "compiled-for-this-gpu",
        lambda s: s.has("ggml-no-device-code") and s.facts.compiled_for == (s.facts.capability,),
        {"software-defect": 5, "build-wrong-arch-flags": -4},
        "it was compiled for {cc} and for nothing else: the program chose a kernel that has no code there",
        "ggml-cuda, choice of kernels",
    ),
    Rule(
        "older-arch-asked",
        c.requests_older_arch,
        {"build-wrong-arch-flags": 6, "compiler-arch-unsupported": -3},
        "{gpu} has compute capability {cc}: the list of architectures asks for an older one, which the toolkit dropped",
        c.NVIDIA,
    ),
    Rule(
        "xformers-before-gpu",
        lambda s: (
            s.has("xformers-none") and s.from_(100) and not s.has("xformers-no-cuda", "requires-device-capability")
        ),
        {"build-lacks-new-arch": 3},
        "{gpu} has compute capability {cc}, newer than the kernels of many xFormers",
        "xFormers, release notes",
    ),
    Rule(
        "compute-type-on-gpu",
        lambda s: s.has("compute-type-refused") and not s.facts.on_cpu and c.cuda_known(s),
        {"slow-dtype-path": 1.5},
        "the GPU is known, and this dtype is slow on it",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-on-cpu",
        lambda s: s.has("compute-type-refused") and not c.cuda_known(s) and s.facts.gpu is None,
        {"cpu-half-op-missing": 1},
        "no GPU is known: CPUs have no fast half precision",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-of-int8",
        lambda s: s.has("compute-type-refused") and not s.facts.on_cpu and c.int8_of_gpu(s),
        {"int8-matmul-unsupported-gpu": 6, "slow-dtype-path": -2, "cpu-half-op-missing": -2},
        "{gpu} has compute capability {cc}: CTranslate2 multiplies int8 from 6.1 on, and on 12.0 in some releases only",
        "CTranslate2, cuda/utils.cc",
    ),
    Rule(
        "shared-memory-of-old-gpu",
        lambda s: (
            s.has("shared-memory-limit")
            and s.vendor != "amd"
            and not s.says("too many resources")
            and (s.below(80) or s.says(r"limit: (?:49152|65536)\b"))
        ),
        {"kernel-min-compute-capability": 3.5, "kernel-shape-constraint": -1},
        "a block has 64 KB of shared memory or less before compute capability 8.0: the kernel is made for newer GPUs",
        c.NVIDIA,
    ),
    Rule(
        "compiled-for-older-too",
        lambda s: (
            s.has("half-operation-missing")
            and not s.says(c.DOUBLE)
            and not s.below(70)
            and (s.from_(70) or s.says(r"arch=compute_[2-6]\d"))
        ),
        {"build-wrong-arch-flags": 3, "kernel-min-compute-capability": -1},
        "the code is compiled for a GPU older than 7.0, which no card here needs",
        c.NVIDIA,
    ),
    Rule(
        "assertion-first",
        lambda s: s.has("index-assertion") and s.has(*c.LATE),
        {"async-bad-input": 2},
        "an assertion about an index came first; what follows is its consequence",
        "CUDA, asynchronous errors",
    ),
    Rule(
        "fills-over-time",
        lambda s: s.has("memory-grows") and s.has(*c.FULL),
        {"software-defect": 4.5, "gpu-out-of-memory": -2},
        "it fitted at first and grew until it no longer did: memory that nothing needs is kept",
        "torch, frequently asked questions: history across a training loop",
    ),
    Rule(  # one of the founding five has it as evidence
        "units-not-offered",
        lambda s: s.has("cmma-not-supported") and s.from_(70),
        {"graphics-api-feature-missing": 0.6},
        "{gpu} itself has matrix units (compute capability {cc}): the program does not get them by this interface",
        "NVIDIA, CUDA C++ programming guide, compute capabilities",
    ),
    Rule(
        "slow-on-old-gpu",
        lambda s: s.has(*c.COMPLAINTS) and s.facts.capability is not None,
        {"slow-dtype-path": 1},
        "{gpu} has compute capability {cc}",
        c.NVIDIA,
    ),
    Rule(
        "intel-gpu",
        lambda s: s.vendor == "intel" and s.has("xpu-other", "xpu-no-f64", "directml-npu", "operator-not-registered"),
        {"xpu-directml-unsupported": 2},
        "{gpu} is an Intel GPU",
        "Intel, XPU backend",
    ),
    Rule(
        "image-by-compiler",
        lambda s: s.has("invalid-ptx") and s.about(c.COMPILERS) and not s.says("cuLinkComplete"),
        {"compiler-arch-unsupported": 2.5},
        "the kernel was made by a compiler at run time",
        "Triton",
    ),
    Rule(
        "library-of-other-cuda",
        c.other_cuda,
        {"cuda-toolkit-mismatch": 3, "cuda-library-not-found": -1},
        "the library that is missing belongs to another version of CUDA than the one here",
        "CUDA toolkit, names of its libraries",
    ),
    Rule(
        "provider-of-cuda-11",
        lambda s: s.says(c.PROVIDER_OF_11) and not c.other_cuda(s),
        {"cuda-toolkit-mismatch": 2.5, "cuda-library-not-found": -0.5},
        "this ONNX Runtime was built for CUDA 11, and the machine has another",
        "ONNX Runtime, CUDA execution provider: releases of the package index before 1.19",
    ),
    Rule(
        "runtime-of-extension",
        lambda s: (
            any("libcudart" in line for line in c.missing(s)) and s.about(c.TORCH_LIBRARIES) and not c.other_cuda(s)
        ),
        {"cuda-toolkit-mismatch": 2.2, "cuda-library-not-found": -0.5},
        "torch brings its own CUDA run time: this extension was built for another",
        "torch, wheels and extensions",
    ),
    Rule(
        "built-by-others",
        lambda s: s.has(*c.MISSING) and s.about(c.PREBUILT) and not s.about(c.FROM_SOURCE),
        {"build-wrong-arch-flags": -3, "build-lacks-old-arch": 0.5, "build-lacks-new-arch": 0.5},
        "the binary was compiled by those who publish it, not here",
        "builders of published binaries",
    ),
    Rule(
        "kernels-before-their-floor",
        c.below_floor,
        {"kernel-min-compute-capability": 5, "build-wrong-arch-flags": -2, "build-lacks-old-arch": -2},
        "{gpu} has compute capability {cc}, and kernels of this name begin with newer ones",
        "flash-attention, Marlin, FlashInfer, AutoAWQ, ExLlama and KTransformers, requirements",
    ),
    Rule(
        "build-for-cpus-is-named",
        c.cpu_build,
        {"cpu-only-build": 4.5, "gpu-not-visible": -2, "cuda-toolkit-mismatch": -2, "cpu-half-op-missing": -2},
        "the torch that is installed is a build without CUDA",
        c.TORCH,
    ),
    Rule(
        "bnb-beside-other-makers",
        lambda s: (
            s.has("bnb-cpu-library", "bnb-cpu-symbol", "bnb-native-missing", "bnb-setup-failed", "bnb-setup-path")
            and (s.vendor in ("amd", "intel", "apple") or s.about(r"(?i)\bnpu\b|\brocm|\bxpu\b|\bhpu\b"))
        ),
        {"platform-binary-missing": 3.5, "cpu-only-build": -1},
        "older bitsandbytes has libraries for NVIDIA's GPUs only",
        "bitsandbytes, release notes",
    ),
    Rule(
        "four-bit-kernels-left-out",
        lambda s: (
            s.has(*c.MISSING, "cuda-not-supported-here")
            and s.says("(?i)nunchaku|gemv_awq|gemm_w4a4")
            and c.without_four_bits(s)
        ),
        {"kernel-min-compute-capability": 9, "build-wrong-arch-flags": -3.5, "build-lacks-old-arch": -2},
        "{gpu} has compute capability {cc}: these kernels are written for some generations with 4-bit matrix units",
        "nunchaku, supported GPUs",
    ),
    Rule(
        "refused-by-kfd",
        lambda s: s.has("kfd-refuses-card") and s.has("kfd", "hsa-resources"),
        {"rocm-arch-unsupported": 1, "gpu-not-visible": -4},
        "what cannot be opened is what the kernel's driver left out for this card",
        "Linux, amdkfd",
    ),
    Rule(
        "symbol-of-backend",
        lambda s: s.has("undefined-symbol") and s.says(c.BACKEND_LIBRARY),
        {"package-version-mismatch": 5, "cuda-toolkit-mismatch": -2},
        "the package that brings the backend was built for another release of torch",
        "torch_npu, IPEX, torch_xla: the releases of torch that they belong to",
    ),
    Rule(
        "tensorflow-on-metal",
        lambda s: s.facts.apple and s.has("tensorflow-kernel-missing"),
        {"mps-dtype-unsupported": 5, "gpu-dtype-op-missing": -2},
        "on macOS the GPU is reached through Metal, which has kernels for part of the operations",
        "Apple, tensorflow-metal",
    ),
    Rule(
        "accelerator-of-its-own",
        lambda s: s.has("torch-without-cuda") and s.about(c.OTHERS),
        {"xpu-directml-unsupported": 4, "cpu-only-build": -2, "not-a-compatibility-problem": -1},
        "the device is another accelerator than CUDA: what asks for CUDA by name was not written for it",
        "torch, PrivateUse1 backends",
    ),
    Rule(
        "backend-in-environment",
        lambda s: (
            re.search(c.BACKENDS, s.facts.stated) is not None
            and (bool(s.hits) or s.says(c.AMISS))
            and not s.has(*c.LOADING)
        ),
        {"xpu-directml-unsupported": 1.8},
        "the program runs on a backend that has fewer operations and dtypes than CUDA",
        "DirectML, IPEX, torch_npu",
    ),
    Rule(
        "processor-of-onnxruntime",
        lambda s: (
            s.has("operator-not-registered")
            and bool({"bf16", "f16"} & s.facts.dtypes)
            and s.says("ONNXRuntimeError|NOT_IMPLEMENTED : Could not find an implementation")
            and (s.facts.apple or s.facts.without_gpu or s.says("CPUExecutionProvider"))
        ),
        {"cpu-half-op-missing": 3, "gpu-dtype-op-missing": -2, "xpu-directml-unsupported": -1},
        "ONNX Runtime ran on the processor, which has few operations in 16 bits",
        "ONNX Runtime, OperatorKernels.md",
    ),
    Rule(
        "module-of-the-host",
        lambda s: (
            s.has("package-missing")
            and c.OF_HOST.match(s.words.get("package", "")) is not None
            and re.search("custom_nodes|extensions", s.excerpt) is not None
        ),
        {"package-version-mismatch": 3.2, "not-a-compatibility-problem": -1},
        "an extension asks its program for a module that came, or went, with another version of it",
        "ComfyUI and Stable Diffusion web UIs, extensions",
    ),
    Rule(
        "module-of-the-program",
        lambda s: bool(c.module(s)) and c.module(s) not in c.PACKAGES and not c.part(s) and not c.in_package(s),
        {"not-a-compatibility-problem": 1.8, "package-version-mismatch": -0.4, "platform-binary-missing": -0.5},
        "the module that is missing is no package that many programs share",
        "PyPI",
    ),
    Rule(
        "half-on-the-processor",
        lambda s: (
            s.has("torch-dtype-not-implemented")
            and (s.facts.on_cpu or s.facts.without_gpu or c.says(s, "(?i)without (?:a )?GPU"))
            and s.words.get("dtype", "").lower() in ("half", "bfloat16")
            and "cuda" not in s.words.get("kernel", "").lower()
        ),
        {"cpu-half-op-missing": 4, "gpu-dtype-op-missing": -2},
        "the log or the environment says that it runs on the processor",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "released-without-gpu",
        lambda s: c.released(s) == -1,
        {"build-lacks-old-arch": 4, "build-wrong-arch-flags": -2, "build-lacks-new-arch": -2},
        "{gpu} has compute capability {cc}, which this release of torch holds no code for any more",
        c.WHEELS,
    ),
    Rule(
        "torch-before-gpu",
        c.before_its_first,
        {"build-lacks-new-arch": 4, "build-wrong-arch-flags": -1, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}, which no build of this release of torch holds code for yet",
        c.WHEELS,
    ),
    Rule(
        "named-like-torch",
        c.of_torch,
        {"not-a-compatibility-problem": 4.5, "package-version-mismatch": -2.5},
        "nothing shows that it is torch's own files that import each other: most often a file has its name",
        "Python, the path that modules are looked for on",
    ),
)
