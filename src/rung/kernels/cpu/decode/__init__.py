"""Run the decode step, a whole token, as one program, and the parts between its products.

Blocks of weights are decoded in ``formats/families``, and packed for these kernels in ``kernels/cpu/pack``.
"""
