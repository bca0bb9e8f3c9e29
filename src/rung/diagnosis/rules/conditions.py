"""Name what rules look at: groups of signatures, names of programs and packages, and numbers of releases."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Scene
from rung.diagnosis.gpus import capability

#: The library holds no code for the GPU.
MISSING = (
    "cuda-no-kernel-image",
    "no-kernel-image-short",
    "cuda-number-no-image",
    "cuda-invalid-device-function",
    "invalid-device-function-short",
    "legacy-invalid-device-function",
    "machine-capability-refused",
    "machine-generation-refused",
    "torch-arch-range",
    "named-symbol",
    "ggml-without-arch",
    "invalid-ptx",
)
ON_ANOTHER = (
    r"(?i)\b(?:built|compiled) (?:it )?(?:on|for) (?:an? |the |my )?"
    r"(?:other|another|different|Tesla|RTX|GTX|[AVPTHK]\d{2,3}\b)"
)
#: Where a log lists the architectures of a build.
LISTED = ("torch-arch-warning", "torch-arch-list", "arch-list-shown")
TORCH = "torch, build configuration of the wheels"


def newer_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability > max(facts.compiled_for))


def older_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability < min(facts.compiled_for))


#: Libraries that most people install compiled, and not from source.
PREBUILT = (
    r"(?i)\bcupy|\bcudf|\bcuml|\bcugraph|\brmm\b|\brapids|xgboost|lightgbm|catboost|tensorflow|\bjaxlib|\bxla\b|\bfaiss"
    r"|mxnet|paddle|onnx ?runtime|\bk2\b|openpose|\bdgl\b|portable|prebuilt|ollama|llama runner|D:\\a\\|/home/runner/"
    r"|/__w/|kobold|LM Studio|sgl_kernel|bitsandbytes|ctranslate2|XlaRuntime|buildkite|win-cuda|local-?ai"
    r"|cublas-[\d.]{1,9}-bin|lmdeploy|turbomind|CUDA llama\.cpp \(|/var/www/|conda-bld"
    r"|\b[A-Z]:[\\/]a[\\/]|-bin-x64|\bwheel\b|llama\.cpp \((?:windows|linux)\)|/src/csrc/ops\.cu"
)
#: Extensions that are compiled apart from torch.
EXTENSION = (
    r"(?i)ggml|llama_cpp|llama-cpp|llama\.cpp|csrc|setup\.py|docker|build_ext|_ext\b|rasteriz|pointnet|\.cu:\d+"
    r"|_cuda_kernel|im2col|mmcv|detectron|tiny-?cuda|tcnn|apex|deepspeed|gsplat|simple.knn|cudaCheckError|darknet"
    r"|\bdlib|relion|gromacs|sanity checking device|lammps|kokkos|openfold|minkowski|torchsparse|fused.?ssim|colmap"
    r"|CUDA_ARCH|-gencode|correlation|kernel_wrapper|roi_?align|deform|spconv|torch_scatter|exllama|auto_?gptq|awq_"
    r"|opencv|cv::cuda|\bcv2\b"
)
#: Places in torch's own sources, which stand in messages of old releases.
OF_TORCH = re.compile(r"[^\s:]{0,200}(?:aten/src|/THC/|/THCGeneral|c10/cuda)[^\s:]{0,200}:\d+")
#: Somebody compiled it on their own machine.
FROM_SOURCE = r"(?i)\b(?:built|build|compiled?|compiling)\b.{0,20}\bfrom source"
BITSANDBYTES = ("bnb-setup-path", "bnb-required-library", "bnb-native-missing", "bnb-cpu-library", "bnb-setup-failed")
#: What libraries of CUDA say, among other things, where they hold no code for the GPU.
WRONG_CODE = (
    "cublas-execution-failed",
    "cudnn-not-initialized",
    "cudnn-internal",
    "cufft-internal",
    "cudnn-not-supported",
    "legacy-cublas-program-failed",
    "device-symbol",
    "tensor-not-initialised",
)
CATALOG = "NVIDIA, CUDA toolkit release notes, first toolkit of an architecture"
#: From this compute capability on, code for the first GPUs of a generation serves the later ones.
MINOR = 80


def first_cuda(value: int | None) -> tuple[int, int] | None:
    """Return the first toolkit whose code runs on a compute capability, as the catalog has it.

    Since Ampere code for an older one of the same generation does; before, CUDA's libraries did not.
    """
    from rung.hardware import catalog  # rarely asked, and slow to read

    found: list[tuple[int, int]] = []
    for row in catalog.architectures().values() if value is not None else ():
        own = capability(row.cc) if row.vendor == "nvidia" and row.min_cuda else None
        if (
            own is not None
            and value is not None
            and (own == value or (value >= MINOR and own // 10 == value // 10 and own < value))
        ):
            major, _, minor = str(row.min_cuda).partition(".")
            found.append((int(major), int(minor or 0)))
    return min(found, default=None)


def cuda_before_gpu(scene: Scene) -> bool:
    first = first_cuda(scene.facts.capability) if scene.facts.cuda else None
    return first is not None and scene.facts.cuda is not None and scene.facts.cuda < first


#: What the driver's assembler says, as against the toolkit's.
LINKED = "application ptx input|cuLink(?:AddData|Complete)|cuModuleLoad"
CONTAINER = r"(?i)docker|container|podman|nvidia/cuda:|\bwsl|kubernetes|\bvm\b|proxmox"
UNSEEN = (
    "is-available-false",
    "gpu-unused-symptom",
    "gpu-hidden",
    "no-cuda-device",
    "quantiser-without-gpu",
    "cuda-init-unknown",
    "device-is-the-processor",
    "webui-without-gpu",
)
BF16 = (
    "cublas-not-supported",
    "torch-bf16-gemm-build",
    "bf16-symptom",
    "cudnn-not-supported",
    "xformers-none",
    "type-of-cuda-missing",
    "half-not-for-processor",
)
NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
#: Releases of torch whose programs load models in bfloat16 unasked.
UNASKED = (2, 1)
#: Products in int8 of programs that do not name the type in their call.
INT8 = r"(?i:CUDA_R_8I)|abc?Type 3|_int_mm|int8_(?:dynamic|mode)|COL32|(?i:\bw8a8\b|\bint8\b)"
#: Names of kernels that only the CPU has.
OF_CPU = (
    r"_?cpu|channels_last|KernelImpl|_vml|lastdim|unfolded2d|baddbmm|^addmm(?!_cuda)|_with_gemm|slow_conv|RoundKernel|host_softmax"
    r"|compute_indices_weights|avg_pool[23]d_out_frame|clamp_m\w+_scalar|GeluKernel|sorting_kernel|^lerp_kernel"
    r"|^(?:m(?:in|ax)_all|sort_stable|topk|multinomial|pdist|reflection_pad[123]d|dot|batch_norm|polar|\w+_pool[123]d)$"
)


def kernel(scene: Scene, pattern: str) -> bool:
    named = scene.words.get("kernel", "")
    return scene.has("torch-dtype-not-implemented") and re.search(pattern, named, re.IGNORECASE) is not None


#: Values became NaN.
NAN = (
    "nan-symptom",
    "nan-line",
    "nan-logits",
    "half-nan-symptom",
    "half-against-wide",
    "nan-probabilities",
    "invalid-cast",
    "empty-picture",
    "exclamation-marks",
    "loss-is-zero",
)
FP8 = ("triton-no-fp8", "torch-fp8-gemm", "fp8-gate", "triton-lowering")
#: The CUDA that each branch of the driver came with.
CAME_WITH = dict(
    zip(
        (440, 450, 455, 460, 465, 470, 495, 510, 515, 520, 525, 530, 535, 545, 550, 555, 560, 565, 570, 575, 580),
        ((10, 2), *((11, minor) for minor in range(9)), *((12, minor) for minor in range(10)), (13, 0)),
        strict=True,
    )
)


def driver_of_earlier_cuda(scene: Scene) -> bool:
    named = re.match(r"\d{3}", scene.facts.driver)
    own = CAME_WITH.get(int(named[0])) if named else None
    return own is not None and scene.facts.cuda is not None and own < scene.facts.cuda


BUILT_HERE = r"(?i)\bjetson|build\.sh|\bCUDA_ARCH\b|CMAKE_CUDA_ARCH|from source|\bsetup\.py\b|\bcmake\b"


def prebuilt(scene: Scene) -> bool:
    return scene.has(*MISSING) and scene.about(PREBUILT) and not scene.about(BUILT_HERE)


def unbuilt(scene: Scene) -> int | None:
    """Return the generation of GPUs, as a compute capability, whose kernels a message says are not there."""
    named = scene.words.get("generation")
    return int(named) if named else None


def requests_older_arch(scene: Scene) -> bool:
    """Return whether an assembler was asked for an architecture that is older than the GPU."""
    match = re.match(r"(?:sm|compute)_(\d+)", scene.words.get("arch", ""))
    return scene.has("ptxas-arch", "nvcc-arch") and match is not None and scene.from_(int(match[1]) + 10)


def cuda_known(scene: Scene) -> bool:
    facts = scene.facts
    return facts.capability is not None or facts.cuda is not None or scene.says(r"device=.?cuda")


def type(scene: Scene) -> str:
    """Return the compute type that CTranslate2 was asked for, empty where it is not named."""
    return scene.words.get("type", "")


def int8_of_gpu(scene: Scene) -> bool:
    """Return whether a GPU refuses int8, which CPUs take: alone, or with float16, which all from 7.0 on compute."""
    named = re.match("(?i)int8(?P<half>_b?float16)?", type(scene))
    return scene.facts.capability is not None and named is not None and (not named["half"] or scene.from_(100))


DOUBLE = r"\((?:const )?double \*, (?:const )?double\)"
#: Reported later than it happened.
LATE = ("cublas-not-initialized", "cuda-launch-failure", "cublas-execution-failed")
FULL = ("cuda-out-of-memory", "cuda-driver-oom", "gpu-oom-short")
COMPLAINTS = ("slow-symptom", "slow-wording", "speeds-compared", "emulated-symptom")
COMPILERS = "(?i)triton|inductor|ptxas|cupy|CUDA_ERROR_INVALID_SOURCE"
LIBRARY = re.compile(r"lib(cudart|cublasLt|cublas|nvrtc|cusparse|cusolver|cufft)\.so\.(\d+)(?:\.(\d+))?")
#: Numbers of the libraries' files, by the CUDA that they came with; others bear that of CUDA itself.
NUMBERS = {
    "cusparse": {10: (10,), 11: (11,), 12: (12, 13)},
    "cusolver": {10: (10, 11), 11: (11, 12), 12: (13,)},
    "cufft": {10: (10, 11), 11: (12,), 12: (13,)},
    "cudart": {},
    "cublas": {},
    "cublasLt": {},
    "nvrtc": {},
}


def missing(scene: Scene) -> list[str]:
    found = ("library-missing", "cuda-library-not-loaded")
    return [hit.line for hit in scene.hits if hit.signature.id in found]


def other_cuda(scene: Scene) -> bool:
    here = scene.facts.cuda
    for line in missing(scene) if here else ():
        found = LIBRARY.search(line)
        if found is None or here is None:
            continue
        number, minor = int(found[2]), found[3]
        if number < 10 or (number == 10 and minor is not None):  # their names had the number of CUDA, all of it
            return number != here[0] or (minor is not None and int(minor) != here[1])
        return here[0] not in NUMBERS[found[1]].get(number, (number,))
    return False


#: What ONNX Runtime of CUDA 11 looks for, as against cuDNN, which is never in CUDA.
PROVIDER_OF_11 = r"onnxruntime_providers_cuda\S* with error: lib(?:cublas(?:Lt)?|cudart|cufft)\.so\.1[01]\b"
#: Extensions of torch, which use the CUDA that torch brings.
TORCH_LIBRARIES = (
    r"(?i)\bmmcv|\bmmdet|deform_conv|detectron2|torchvision|torchaudio|torch_(?:scatter|sparse|cluster|spline)|flash_attn"
    r"|\bapex\b|pytorch3d|exllama|auto_?gptq|pointnet|nvdiffrast|maskrcnn|causal_conv1d|selective_scan|mamba_ssm|fairseq|roi_?align|_rasterization"
)
#: Kernels that say nothing of the GPU they were written for, and the compute capability where they begin.
FLOORS = (
    (
        80,
        re.compile(
            r"(?i)marlin|sage_?att|flash_?attn|flash_?attention|flashinfer|BatchPrefill|BatchDecode|BatchMLA|sgl_kernel"
            r"|machete|deep_?gemm|ktransformers|exllama_?v3|\bexl3_"
        ),
    ),
    (75, re.compile(r"(?i)\bawq_(?:ext|inference)|autoawq|exllama")),
)


def below_floor(scene: Scene) -> bool:
    named = scene.has(*MISSING, "named-symbol")
    return named and any(scene.below(floor) and words.search(scene.excerpt) for floor, words in FLOORS)


#: How builds of torch without CUDA are named.
CPU_BUILD = r"\d\+cpu\b|\bcpu_(?:generic|mkl|openblas)|\bcpuonly\b|\d_cpu_\d"
#: What a program says that found no GPU, in whatever words.
WITHOUT_GPU = (
    "trainer-asks-for-gpu",
    "bf16-training-arguments",
    "gpu-demanded",
    "awq-needs-gpu",
    "half-cpu-symptom",
    "is-available-false",
    "gpu-unused-symptom",
    "no-cuda-device",
    "quantiser-without-gpu",
    "xformers-no-cuda",
    "xformers-none",
    "requires-accelerate",
    "quantised-on-processor",
    "bnb-cpu-library",
    "bnb-no-device",
    "type-of-cuda-missing",
    "environment-without-gpu",
)


def cpu_build(scene: Scene) -> bool:
    return scene.has(*WITHOUT_GPU) and not scene.facts.without_gpu and scene.about(CPU_BUILD)


def without_four_bits(scene: Scene) -> bool:
    return scene.below(80) or (scene.from_(90) and scene.below(100))


#: Libraries of packages that bring a backend to torch.
BACKEND_LIBRARY = (
    r"libtorch_npu|\d(?:c10|at|torch)_npu\d|_ZNK?2ge\d|libintel-ext|intel_extension_for|_XLAC|torch_xla"
    r"|torch_directml|habana"
)
#: Accelerators that torch reaches by a package of its own.
OTHERS = r"(?i)\btorch[_-](?:npu|gcu|mlu|musa|hpu|sdaa|xla|xmlir)\b|\bascend\b|\+xpu\b|\bHabana\b|\bCambricon\b"
AMISS = r"(?i)error|exception|\bfail|unsupported|not (?:supported|implemented)|\bfloat64\b|\bdouble\b"
#: Backends that are packages of their own, as an environment lists them.
BACKENDS = r"(?i)\b(?:(?:pytorch|torch|onnxruntime|tensorflow)[_-]directml|torch[_-](?:npu|gcu|mlu|musa|xla)|ipex)\b"
#: What says that a library was not found or is another's.
LOADING = ("library-missing", "undefined-symbol", "dll-load", "cuda-module-missing")
#: Modules that a program gives those who extend it, and their packages.
OF_HOST = re.compile(
    r"(?:comfy|comfy_api|comfy_execution|comfy_extras|node_helpers|modules|modules_forge|invokeai)(?:\.|$)"
)
#: Packages that others publish and programs of this field import; any other name is likely a module of the program.
NAMES = """
accelerate addict albumentations amp_C ane_transformers apex asyncore auto_gptq auto_round av awq awq_ext axolotl
basicsr batchgenerators bitblas bitsandbytes came_pytorch catboost causal_conv1d chex clip clip_interrogator
comfy_kitchen comfyui_embedded_docs comfyui_frontend_package comfyui_workflow_templates compressed_tensors
controlnet_aux coremltools cpm_kernels ctransformers ctranslate2 cuda cudf cudnn cumesh cuml cumm cupy
custom_rasterizer cutlass cv2 dac dadaptation datasets decord deep_ep deep_gemm deepspeed deepspeed_mii depthai
detectron2 dgl diff_gaussian_rasterization diffoctreerast diffusers distutils dlib dropout_layer_norm easydict eetq
einops encodec evaluate executorch exllama exllamav2 exllamfacexlib face_alignment face_recognition facexlib fairscale
fairseq faiss fastapi faster_whisper fire fla flash_attn flash_attn_interface flash_mla flashinfer flax flex_gemm ftfy
funasr fused fvcore gdown gfpgan gguf glfw gpt4all gptq gptqmodel gradio gradio_client gradio_rangeslider
groundingdino gsplat h5py habana_frameworks haiku horovod hqq hqq_aten huggingface_hub hydra imageio imageio_ffmpeg
imp importlib_metadata insightface intel_extension_for_pytorch invisible_watermark iopath ipex ipywidgets isaacgym
isaaclab jax jaxlib joblib k_diffusion kaolin keras kernels kornia langchain lap librosa liger_kernel lightgbm
lightglue lightning lightning_fabric lion_pytorch llama_cpp llama_index llguidance llvmlite lm_eval lmcache lmdb
lmdeploy lmformatenforcer loguru lpips ltx_video lycoris mamba_ssm matplotlib mediapipe megatron mgds mindspore
MinkowskiEngine mistral_common mlc_llm mlflow mlx mlx_lm mlx_vlm mmaction mmcv mmdet mmdet3d mmengine mmpose
mmpretrain mmseg mmsegmentation modelopt modelscope monai moviepy mpi4py MultiScaleDeformableAttention mxnet natten
nemo nerfacc nerfstudio neuronxcc nibabel ninja nltk nncf nnunetv2 numba numpy nunchaku nvdiffrast o_voxel omegaconf
omni onediff onnx onnx_graphsurgeon onnxruntime onnxruntime_extensions onnxruntime_genai onnxsim open3d open_clip
openai OpenGL openmm openvino openvino_genai openvino_tokenizers optax optimum optimum_quanto optree orbax outlines
outlines_core packaging paddle paddleocr paddlex pandas panopticapi peft piexif PIL pillow_heif pkg_resources plyfile
polygraphy prodigyopt psutil pyannote pyarrow pycocotools pycoral pycuda pydantic pyiqa pymeshlab pynvml pyopencl
pyramid pyrender pytorch3d pytorch_lightning pytorch_optimizer pyvista q8_kernels quanto ray realesrgan rembg requests
rich rmm rotary_emb rouge_score sacrebleu safetensors sageattention sam2 schedulefree scipy seaborn segment_anything
segment_anything_hq sentence_transformers sentencepiece setuptools sfast sgl_kernel sglang shapely simple_knn
SimpleITK skimage sklearn soundfile spacy spandrel spandrel_extra_arches spas_sage_attn spconv speechbrain
sse_starlette stable_fast starlette starlette_context statsmodels supervision sympy taichi taming tensorboard
tensorboardX tensorflow tensorflow_addons tensorflow_hub tensorflow_probability tensorflow_text tensorrt
tensorrt_bindings tensorrt_dispatch tensorrt_libs tensorrt_llm termcolor tf_keras tflite_runtime thinc tiktoken timm
tinycudann tokenizers torch torch_cluster torch_directml torch_geometric torch_neuronx torch_npu torch_scatter
torch_sparse torch_tensorrt torch_xla torchao torchaudio torchcodec torchdata torchdiffeq torchinfo torchmcubes
torchmetrics torchrec torchsde torchsnapshot torchsparse torchtext torchvision tqdm transformer_engine transformers
transformers_stream_generator trimesh triton triton_kernels tritonclient trl tvm typer tyro ultralytics unsloth
uvicorn uvloop vllm vllm_flash_attn vtk wandb webdataset whisper whisperx xatlas xdit xformers xfuser xgboost xgrammar
yacs yaml yunchang zoedepth
"""
PACKAGES = frozenset(NAMES.split())


def module(scene: Scene) -> str:
    """Return the package that is not there, without the modules in it."""
    return scene.words.get("package", "").partition(".")[0] if scene.has("package-missing") else ""


#: Directories that many programs have: one of another program is found in their place.
COMMON = re.compile(
    r"(?:utils?|models?|modules|src|lib|libs|scripts|data|datasets?|tools?|common|core|configs?|train\w*|test\w*|app|api"
    r"|nodes?|extensions?|helpers?|main|lora_\w+|networks|options|engine|losses|layers)$"
)


def part(scene: Scene) -> bool:
    """Return whether it is a module inside a package that is there itself."""
    top, dot, _ = scene.words.get("package", "").rstrip(".").partition(".")
    return scene.has("package-missing") and bool(dot) and COMMON.match(top) is None


#: The package of a path that was shortened: by people who took its beginning away, or by the program itself.
SHORT = re.compile(r"(?:\.\.\.[/\\])?(\w+)[/\\](?!examples|tests|scripts)")


def in_package(scene: Scene) -> bool:
    """Return whether the last place that a traceback names is in a package of others, of a shortened path too."""
    if scene.raised_in_package:
        return True
    paths: list[str] = re.findall(r'File "([^"\n]+)"', scene.excerpt)
    found = SHORT.match(paths[-1]) if paths else None
    return found is not None and found[1] in PACKAGES


def shown(scene: Scene) -> str:
    """Return the kept lines of the log, its last lines, and the facts of the environment."""
    return f"{scene.text}\n{scene.excerpt}\n{scene.facts.os} {scene.facts.stated}"


def says(scene: Scene, pattern: str) -> bool:
    """Return whether any of that holds a pattern."""
    return re.search(pattern, shown(scene)) is not None


WHEELS = "the catalog of torch's releases: rung devices CARD --software TORCH"


def reach(release: str, name: str, value: int) -> int | None:
    """Return where a compute capability lies for a released build of torch: 0 it runs there, 1 newer than its code,
    -1 older, None when the catalog does not know."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.releases import builds

    rows = architectures().values()
    architecture = next((row for row in rows if row.vendor == "nvidia" and capability(row.cc) == value), None)
    build = next((b for b in builds() if (b.release, b.name, b.platform) == (release, name, "")), None)
    if architecture is None or build is None:
        return None
    return 0 if build.image(architecture) else 1 if value > max(filter(None, map(capability, build.code))) else -1


def released(scene: Scene) -> int | None:
    facts = scene.facts
    applies = scene.has("torch-arch-warning", "legacy-cublas-program-failed", *MISSING)
    if not applies or facts.build is None or facts.capability is None or facts.compiled_for:
        return None
    if facts.compiled_for and not min(facts.compiled_for) <= facts.capability <= max(facts.compiled_for):
        return None  # the log lists what the build holds, and knows better
    return reach(*facts.build, facts.capability)


#: The oldest release in the catalog was the first of CUDA 11, and so the first for this compute capability and later.
OLDEST_FOR = 80


def numbers(release: str) -> tuple[int, int]:
    major, _, minor = release.partition(".")
    return int(major), int(minor)


def first_release(value: int) -> tuple[int, int] | None:
    """Return the first torch of which a CUDA build holds code for a compute capability; None where the catalog
    begins too late to say."""
    from rung.hardware.catalog.releases import builds

    if value < OLDEST_FOR:
        return None
    names = {(build.release, build.name) for build in builds() if build.name.startswith("cu") and not build.platform}
    holding = [release for release, name in names if reach(release, name, value) == 0]
    return min((numbers(release) for release in holding), default=None)


def before_its_first(scene: Scene) -> bool:
    facts = scene.facts
    if facts.torch is None or facts.capability is None or facts.build or not scene.has(*MISSING, *WRONG_CODE):
        return False
    first = first_release(facts.capability)
    return first is not None and facts.torch < first


OWN_FILES = re.compile(r"(?:site|dist)-packages|[/\\]torch[/\\]|__init__\.py")


def of_torch(scene: Scene) -> bool:
    half = re.search(r"partially initialized module '(?:torch|numpy)'", scene.excerpt) is not None
    return half and OWN_FILES.search(scene.excerpt) is None and not in_package(scene)
