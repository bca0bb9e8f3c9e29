"""torch's dtypes by the short names of ``rung.core.types``, and back."""

import torch

TORCH_DTYPE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DTYPE_NAME = {dtype: name for name, dtype in TORCH_DTYPE.items()}
