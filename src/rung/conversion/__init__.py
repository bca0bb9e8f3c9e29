"""Model files written anew: quantized, or as another kind of file; a tensor at a time, without torch.

``quantize`` and ``convert`` make a ``Job`` (which tensors, in which format, under which names), ``writing`` does it.
"""
