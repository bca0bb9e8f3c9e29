"""The lean decoder for language models: loading, KV cache, tokenizers, chat, sampling."""

import os

# Read when torch loads its OpenMP library. Threads that spin at every barrier cost whole time slices on a busy
# machine (a tenth of the speed was measured); those that sleep at once are late for the next of the short products
# of a token: a layer in 16 bits took 1.7 ms beside its weights, and takes 0.5 when they turn for some 100 us first.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
