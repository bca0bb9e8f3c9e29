"""The lean decoder for language models: loading, KV cache, tokenizers, chat, sampling."""

import os

# Read when torch loads its OpenMP library. Threads that spin at every barrier cost whole time slices on a busy
# machine (a tenth of the speed was measured) and win nothing on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
