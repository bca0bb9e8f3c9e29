"""The next token of each row of logits: the likeliest, or one drawn.

Contract of every rung's ``impl`` object::

    prepare(*, threads: int) -> State
    apply(state, logits, rows: Sequence[Row]) -> list[Chosen]

``logits`` is f32 [rows, vocabulary] on the CPU and stays as it is; ``rows`` (``rung.ops.token_choice``) are the
settings of each. What is chosen of a row does not depend on the other rows, nor on the rung. The order of changes and
filters is that of transformers (``GenerationMixin._get_logits_processor``); where it has none, that of OpenAI's
formula:

1. ``bias`` is added to the logits of ``bias_ids``.
2. ``repeat_penalty`` of ``previous`` tokens (each named once): negative logits are multiplied by it, others divided.
3. ``frequency_penalty`` times ``counts`` (how often each was said in the answer) is subtracted, and
   ``presence_penalty`` where that is not 0.
4. ``mask`` forbids the tokens whose bits are 0: uint64 words, bit t % 64 of word t // 64 is that of token t.
5. At ``temperature`` 0 (or below 1e-30) the highest logit is chosen, of equal ones the lowest id. Else logits are
   divided by it.
6. ``top_k`` keeps what is not below the k-th highest, 0 all.
7. ``top_p`` keeps the likeliest until they have that probability together, of equal ones the lower ids; at least one.
8. ``min_p`` keeps what has at least that share of the likeliest token's probability.
9. ``typical_p`` keeps those whose -log p is nearest to the entropy, until they have that probability together, and all
   that are as near (Meister et al. 2023, Locally Typical Sampling).
10. ``random``, 64 random bits, draws one of what is left: the first token, in the order of ids, at which the sum of
    masses is above ``random`` * total / 2^64. Masses are probabilities as whole numbers
    (``rung.kernels.cpu.sample.masses``), so that every sum is exact.

``Chosen.error`` is ``not-numbers`` for a row with a NaN, with an infinite logit or with none above -inf, and
``nothing-allowed`` where bias and mask leave none. Ids outside the vocabulary are passed over. With ``top_logprobs`` a
number, ``Chosen`` has the natural logarithm of the token's probability in the softmax of the logits before any change,
at temperature 1, and of so many of the likeliest tokens, likeliest first.

Of a ``Case``: ``shape`` is (rows, vocabulary), ``format`` f32.
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import Case, Ladder, Rung

#: What logits are.
EXAMPLE_FORMATS = ("f32",)


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """Return a token of Llama 2 7B."""
    return [("token", Case("sample", format, dtype, (1, 32000)))]


LADDER = register_ladder(
    Ladder(
        "sample",
        (
            Rung(
                "sample",
                "numba.sample",
                "rung.ops.sample.numba_sample:RUNG",
                kinds=("cpu",),
                needs=("isa.kernels", "package.numba"),
                formats=("f32",),
                dtypes=("f32",),
            ),
            Rung(
                "sample",
                "numpy.sample",
                "rung.ops.sample.numpy_sample:RUNG",
                kinds=("cpu",),
                formats=("f32",),
                dtypes=("f32",),
            ),
            Rung("sample", "ref", "rung.ops.sample.ref:RUNG", needs=("package.torch",), formats=("f32",)),
        ),
    )
)
