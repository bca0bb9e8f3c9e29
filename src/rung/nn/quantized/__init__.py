"""A quantized weight, the kernels it is bound to, and products with it."""
