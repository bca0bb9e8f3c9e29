"""Cases of the rules of graphics interfaces and of libraries without torch: a log, an environment, and the cause."""

IMAGE = "no kernel image is available for execution on the device"

APPLIES = {
    "graphics-in-a-container": (
        "ERROR: [Loader Message] Code 0 : vkCreateInstance: Found no drivers!",
        {"os": "Docker nvidia/cuda:12.2.0-runtime-ubuntu22.04"},
        "gpu-not-visible",
    ),
    "prebuilt-before-gpu": (
        f"cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: {IMAGE}",
        {"gpu": "RTX 3090"},
        "build-lacks-new-arch",
    ),
    "prebuilt-after-gpu": (
        f"RuntimeError: cudf/cpp/src/bitmask/null_mask.cu:93: {IMAGE}",
        {"gpu": "Tesla P100"},
        "build-lacks-old-arch",
    ),
    "floor-of-a-program": (
        "FATAL: this program requires compute capability 5.0 or higher",
        {"gpu": "Tesla K40"},
        "build-lacks-old-arch",
    ),
    "module-of-another-release": (
        'File "splatworks/models/field.py", line 31, in <module>\n    from splatops.sh import bases\n'
        "ModuleNotFoundError: No module named 'splatops.sh'",
        {},
        "package-version-mismatch",
    ),
    "absurd-request": (
        "RuntimeError: CUDA out of memory. Tried to allocate 78014.22 GiB (GPU 0; 23.69 GiB total capacity)",
        {},
        "software-defect",
    ),
    "assembler-of-the-driver": (
        "clBuildProgram: CL_BUILD_PROGRAM_FAILURE; ptxas fatal   : Value 'sm_86' is not defined for option 'gpu-name'",
        {"gpu": "RTX 3060"},
        "driver-too-old",
    ),
}
