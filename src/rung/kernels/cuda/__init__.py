"""Kernels in CUDA C for NVIDIA and AMD GPUs that torch drives, compiled when they are first needed.

``layouts`` says how a weight lies in memory, ``readers`` and ``source`` are the kernels as text, ``compiler`` has NVRTC
and hipRTC, ``driver`` loads and launches what they made, and ``fibers`` compiles the same text for a processor, where
its values are proved and simulated cards compute. ``kernels.gpu.cuda_products`` calls them with tensors.
"""
