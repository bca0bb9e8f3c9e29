"""Signatures that rules of several subjects look for."""

from __future__ import annotations

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
#: Packages that others publish and programs of this field import; any other name is likely a module of the program.
_NAMES = """
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
PACKAGES = frozenset(_NAMES.split())
#: Libraries that most people install compiled, and not from source.
PREBUILT = (
    r"(?i)\bcupy|\bcudf|\bcuml|\bcugraph|\brmm\b|\brapids|xgboost|lightgbm|catboost|tensorflow|\bjaxlib|\bxla\b|\bfaiss"
    r"|mxnet|paddle|onnx ?runtime|\bk2\b|openpose|\bdgl\b|portable|prebuilt|ollama|llama runner|D:\\a\\|/home/runner/"
    r"|/__w/|kobold|LM Studio|sgl_kernel|bitsandbytes|ctranslate2|XlaRuntime|buildkite|win-cuda|local-?ai"
    r"|cublas-[\d.]{1,9}-bin|lmdeploy|turbomind|CUDA llama\.cpp \(|/var/www/|conda-bld"
    r"|\b[A-Z]:[\\/]a[\\/]|-bin-x64|\bwheel\b|llama\.cpp \((?:windows|linux)\)|/src/csrc/ops\.cu"
)
#: The program or the GPU died under a kernel.
DIED = ("crash", "gpu-fell-off", "amd-memory-fault")
#: Somebody compiled it on their own machine.
FROM_SOURCE = r"(?i)\b(?:built|build|compiled?|compiling)\b.{0,20}\bfrom source"
#: Reported later than it happened.
LATE = ("cublas-not-initialized", "cuda-launch-failure", "cublas-execution-failed")
#: What libraries of CUDA say, among other things, where they hold no code for the GPU.
WRONG_CODE = (
    "cublas-execution-failed",
    "cudnn-not-initialized",
    "cudnn-internal",
    "cufft-internal",
    "cudnn-not-supported",
    "legacy-cublas-program-failed",
    "cudnn-internal",
    "cufft-internal",
    "device-symbol",
    "tensor-not-initialised",
    "cufft-internal",
)
#: What says that no GPU of CUDA is seen.
NO_GPU = (
    "torch-without-cuda",
    "no-cuda-device",
    "quantiser-without-gpu",
    "deserialize-cuda",
    "cuda-init-unknown",
    "nothing-to-train-on",
)
#: What asks for CUDA or a GPU of NVIDIA.
FOR_CUDA = (
    "requires-accelerate",
    "bnb-cpu-library",
    "bnb-setup-failed",
    "awq-needs-gpu",
    "gpu-demanded",
    "quantiser-without-gpu",
    "cuda-home",
    "nvcc-not-there",
)
