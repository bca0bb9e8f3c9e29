"""Signatures that rules of several subjects look for."""

from __future__ import annotations

#: The library holds no code for the GPU.
MISSING = (
    "cuda-no-kernel-image",
    "no-kernel-image-short",
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
)
#: Packages that others publish and programs of this field import; any other name is likely a module of the program.
_NAMES = """
accelerate albumentations apex auto_gptq auto_round av awq awq_ext axolotl basicsr bitsandbytes causal_conv1d clip
compressed_tensors cuda cudnn cupy cv2 datasets decord deepspeed detectron2 diffusers einops evaluate exllama
exllamav2 facexlib fairscale fairseq faiss fastapi faster_whisper fla flash_attn flash_attn_interface flashinfer flax
ftfy fused fvcore gfpgan gguf gptq gptqmodel gradio hqq huggingface_hub hydra importlib_metadata insightface
intel_extension_for_pytorch invisible_watermark ipex jax jaxlib k_diffusion keras kernels kornia langchain librosa
liger_kernel lightning lightning_fabric llama_cpp llvmlite lmdeploy loguru mamba_ssm matplotlib mediapipe mmcv mmdet
mmengine mmpose modelscope natten ninja nncf numba numpy nvdiffrast omegaconf onnx onnxruntime openai optimum optree
packaging pandas peft pkg_resources polygraphy pyarrow pycocotools pydantic pynvml pyramid pytorch3d pytorch_lightning
quanto ray realesrgan requests rotary_emb safetensors sageattention scipy seaborn segment_anything
sentence_transformers sentencepiece setuptools sgl_kernel sglang skimage sklearn soundfile spas_sage_attn spconv
taming tensorboard tensorflow tensorrt tensorrt_llm tiktoken timm tinycudann tokenizers torch torch_cluster
torch_directml torch_npu torch_scatter torch_sparse torch_xla torchao torchaudio torchdiffeq torchmetrics torchsde
torchsparse torchtext torchvision tqdm transformer_engine transformers trimesh triton trl unsloth vllm wandb whisperx
xatlas xformers yaml zoedepth asyncore distutils imp
"""
PACKAGES = frozenset(_NAMES.split())
#: Reported later than it happened.
LATE = ("cublas-not-initialized", "cuda-launch-failure", "cublas-execution-failed")
#: What libraries of CUDA say, among other things, where they hold no code for the GPU.
WRONG_CODE = (
    "cublas-execution-failed",
    "cudnn-not-initialized",
    "cudnn-not-supported",
    "legacy-cublas-program-failed",
)
