"""Which program a log is of, so that what to do is said in its words and with its own commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.evidence import Scene


@dataclass(frozen=True)
class Program(Value):
    """A program by name, in lower case what only its output or its users' environment says, and whether it computes
    with torch."""

    name: str
    words: tuple[str, ...]
    torch: bool = False

    @property
    def repaired(self) -> bool:
        """Return whether ``rung run`` or ``rung exec`` can do what it does: with torch, with a model that rung reads,
        or with something that nobody named."""
        return self.torch or not self.name or self.name in _MODELS

    @property
    def python(self) -> bool:
        """Return whether ``rung exec`` reaches what it computes."""
        return self.torch or not self.name


#: Programs that run language models which ``rung run`` reads too.
_MODELS = {"llama.cpp", "llama-cpp-python", "ollama", "koboldcpp", "llamafile", "lm-studio", "mlx"}
#: What stands for itself comes before what it contains: a picture program before transformers, vLLM before torch.
PROGRAMS = (
    Program("text-generation-webui", ("text-generation-webui", "oobabooga"), torch=True),
    Program("kohya", ("kohya", "sd-scripts", "train_network.py"), torch=True),
    Program(
        "webui",
        (
            *("stable-diffusion-webui", "webui-user", "sd-webui", "webui.sh", "webui.bat", "automatic1111", "sd.next"),
            *(
                "modules.devices",
                "modules/devices",
                "modules\\devices",
                "modules/processing",
                "modules\\processing",
                "--no-half",
            ),
        ),
        torch=True,
    ),
    Program("comfyui", ("comfyui", "comfy/", "comfy\\", "comfy."), torch=True),
    Program("vllm", ("vllm", "aligned with the quantized weight shape", "setting the`dtype` flag in cli"), torch=True),
    Program("sglang", ("sglang", "sgl_kernel", "sgl-kernel"), torch=True),
    Program("ollama", ("ollama", "llama runner")),
    Program("llama-cpp-python", ("llama_cpp/", "llama_cpp\\", "llama-cpp-python", "llama_cpp_python")),
    Program("whisper.cpp", ("whisper.cpp", "whisper_init", "whisper_model_load", "whisper-cli")),
    Program("stable-diffusion.cpp", ("stable-diffusion.cpp", "sd-cli", "stable_diffusion.cpp")),
    Program("koboldcpp", ("koboldcpp",)),
    Program("llamafile", ("llamafile",)),
    Program("lm-studio", ("lm studio", "lm-studio", "lmstudio")),
    Program("llama.cpp", ("llama.cpp", "llama_", "ggml", "llama-cli", "llama-server", "llm_load_", "gguf")),
    Program(
        "ctranslate2",
        (
            "ctranslate2",
            "faster_whisper",
            "faster-whisper",
            "whisperx",
            "compute type",
            "is not found or cannot be loaded",
        ),
    ),
    Program("tensorrt", ("tensorrt", "trtexec", "[trt]")),
    Program("onnxruntime", ("onnxruntime", "onnx runtime", "executionprovider", "sherpa-onnx")),
    Program("openvino", ("openvino",)),
    Program(
        "tensorflow",
        ("tensorflow", "keras", "stream_executor", "cuda_dnn.cc", "cuda_blas.cc", "gpu_device.cc", "tf_gpu_allocator"),
    ),
    Program("jax", ("jaxlib", "jax", "jnp.", "xla_bridge", "xlaruntimeerror", "xla_extension")),
    Program("paddle", ("paddle",)),
    Program("mxnet", ("mxnet", "mshadow")),
    Program("cupy", ("cupy",)),
    Program("numba", ("numba",)),
    Program("faiss", ("faiss",)),
    Program("boosting", ("xgboost", "lightgbm", "catboost")),
    Program("dlib", ("dlib",)),
    Program("opencv", ("opencv", "cv2", "cv::")),
    Program("darknet", ("darknet",)),
    Program("caffe", ("caffe",)),
    Program("mlx", ("mlx",)),
    Program("candle", ("candle",)),
    Program("burn", ("burn-", "burn_", "cubecl", "cmma on inputs", "accelerated strategy should be", "brush-")),
    Program("cargo", ("cudarc", "tch-rs", "torch-sys", "cargo ")),
    Program(
        "webgpu",
        ("transformers.js", "transformersjs", "webllm", "web-llm", "webgpu", "navigator.gpu", "requestadapter"),
    ),
    Program("wgpu", ("wgpu", "naga")),
    Program("tiny-cuda-nn", ("tinycudann", "tiny-cuda-nn"), torch=True),
    Program("openmm", ("openmm", "gromacs", "amber", "namd")),
    Program("blender", ("blender",)),
    Program("ffmpeg", ("ffmpeg", "nvenc", "obs-studio")),
    Program("whisper", ("openai-whisper", "whisper/transcribe", "fp16 is not supported on cpu"), torch=True),
    Program("diffusers", ("diffusers", "diffusionpipeline"), torch=True),
)
TORCH = Program(
    "torch",
    (
        *(
            "torch",
            "c10::",
            "aten::",
            "aten/",
            "at::cuda",
            "runtimeerror: cuda error",
            "runtimeerror: hip error",
            "triton",
            "inductor",
        ),
        *("transformers", "bitsandbytes", "peft", "flash_attn", "flash-attn", "xformers", "deepspeed", "accelerate"),
        *("nvidia driver on your system", "not implemented for '", "expected scalar type", "mat1 and mat2"),
        *("expected all tensors", "out of memory. tried to allocate", "to have the same dtype", "device-side assert"),
        *("mps framework", "mps backend", "mps tensor", "flashattention", "tensors to be on the same device"),
    ),
    torch=True,
)
NONE = Program("", ())
_LLAMAFILE = next(row for row in PROGRAMS if row.name == "llamafile")


def program_of(scene: Scene) -> Program:
    """The llamafile that was started; else the program that the matched lines name, the weightiest first, else the rest
    of the log or the environment. What imports another one beside torch (transformers looks for TensorFlow) is still a
    program of torch."""
    if scene.mentions.executable:
        return _LLAMAFILE
    torch = scene.facts.torch is not None
    for hit in sorted(scene.hits, key=lambda hit: -max(hit.signature.causes.values(), default=0.0)):
        if found := _first(hit.line.lower(), among=PROGRAMS):
            return found
        if _first(hit.line.lower(), among=(TORCH,)):
            torch = True
            break
    texts = f"{scene.text}\n{scene.excerpt}".lower(), scene.facts.stated.lower()
    torch = torch or any(_first(text, among=(TORCH,)) for text in texts)
    rows = [row for row in PROGRAMS if row.torch or not torch]
    found = next(filter(None, (_first(text, among=rows) for text in texts)), None)
    return found or (TORCH if torch else NONE)


def _first(text: str, among: Iterable[Program]) -> Program | None:
    return next((row for row in among if any(word in text for word in row.words)), None)
