"""Some tokens of one or several sequences through the whole decoder: embedding, layers, head.

Contract of every rung's ``impl`` object::

    prepare(weights: Weights, pool: Pool, *, threads: int) -> State
    apply(state, batch: Sequence[SequenceRows]) -> float32 array [outputs, vocabulary]
    rows_without_torch(state) -> int | None
    same_bytes(state) -> bool
    look_ahead(state) -> int
    embed(state, batch) -> float32 array [rows, hidden]
    through(state, batch, hidden) -> float32 array [rows, hidden]
    head(state, batch, hidden) -> float32 array [outputs, vocabulary]
    finish(state, batch, hidden) -> float32 array [outputs, vocabulary]
    choose(state, rows: SequenceRows, settings: Sequence[Row]) -> list of up to len(settings) tokens
    block: int

``weights`` (``rung.ops.decode_step.weights``) are the bound parts of a decoder, ``pool``
(``rung.ops.decode_step.parts``) is the memory of caches. A batch has rows of one or more sequences, each with its first
position, its cache and its adapter, or none; rows of a sequence follow each other. ``apply`` writes keys and values of
every row into every layer, reads those before it, and changes nothing else: a call that failed can be repeated one rung
lower. What a weight gives to a row has the change of the row's adapter in it (``low_rank.BoundAdapter``), and no
other's; rows with the same adapter are multiplied together where they follow each other. ``apply`` returns the logits
of the rows that want them, in memory that the next call may write to, and writes hidden states after the final norm
where a sequence has ``states`` for them. ``block`` are the positions of a block of the cache that the rung wants, 0 for
a whole sequence in one; only in blocks do layers with a window keep no more than that. Positions before
``parts.first_visible`` must not be read. ``same_bytes`` promises of a state that a row's logits and hidden states do
not depend on the other rows, on how a prompt is cut into batches, nor on the number of threads. ``rows_without_torch``
is how many rows a batch may have without torch being imported; None for any number. ``look_ahead`` is how many tokens
``choose`` chooses at most: those after the one token of ``rows``, each computed from those before it and chosen as
``rung.ops.sample`` does by its ``settings``, which are ``Row.simple`` and differ in their random bits alone; -1 where
the logits are no numbers. It returns fewer where it is not sure of the next one. The cache has room for all. A rung
whose ``look_ahead`` is 0 has no ``choose``.

``embed``, ``through`` and ``head`` are ``apply`` in three parts, for a model whose layers lie on several machines
(``rung.engine.scheduling.stages``): what comes before the first layer, the layers that there are, and what comes behind
the last one. They give the bytes that ``apply`` gives. ``prepare`` takes a ``LayerStack`` for layers alone, which have
``through`` alone. ``finish`` is ``through`` and ``head`` in one, whose hidden states need not come back from a device:
layers that lie on several devices of one machine (``rung.engine.scheduling.segments``) need these two. A rung that has
none of them has all layers.

Of a ``Case``: ``shape`` is (layers, hidden, feed_forward, vocabulary), ``format`` the dtype of the cache. Options:
``linears``, the rungs that multiply single rows with the weights that are bound, ``head_dim``, ``devices``, how many
hold layers, ``ordered``, whether columns of a weight lie in an order of their own (GPTQ's ``desc_act``), and ``part``,
whether another device has the other layers, with a rung of its own.
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Level, Rung, Verdict, no
from rung.core.value import FrozenDict
from rung.models.decoder_memory import IN_BLOCKS

#: Rungs of ``linear`` whose kernels a whole token can call.
ROWS = ("numba.row", "numba.mapped", "numba.stored")

#: The same, whose kernels are in CUDA C.
GRAPH = ("cuda.rows", "cuda.stored")

#: Positions of a block of the cache, of rungs that do not want a sequence in one.
BLOCKS = {"numba.step": 64, "webgpu.int8": 64, "webgpu.f32": 64}

#: Dtypes of the cache.
EXAMPLE_FORMATS = ("f32", "f16")  # those in blocks are for the rungs that write them themselves
_CACHES = (*EXAMPLE_FORMATS, "q8_0")


def shape_class(case: Case) -> str:
    """Return the rungs of its linears, and whether it is a part of a model."""
    return ("+".join(case.options.get("linears", ())) or "any") + " part" * bool(case.options.get("part", False))


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """A token of Llama 2 7B."""
    options = FrozenDict({"head_dim": 128, "linears": ("numba.row",), "devices": 1})
    return [("token", Case("decode_step", format, dtype, (32, 4096, 11008, 32000), options))]


def check_whole(case: Case, device: Device) -> Verdict:
    """Accept what is no part of a model."""
    return no("computes no part of a model") if case.options.get("part", False) else YES


def check_glue(case: Case, device: Device) -> Verdict:
    """Every length fills vectors of 16, and all layers are on this device."""
    return check_whole(case, device) and _check_lengths(case)


def _check_lengths(case: Case) -> Verdict:
    _, hidden, feed_forward, _ = case.shape
    if case.options.get("devices", 1) != 1:
        return no("the layers lie on several devices")
    for noun, length in (("hidden", hidden), ("feed_forward", feed_forward), ("head_dim", case.options["head_dim"])):
        if length % 16:
            return no(f"{noun} is {length}, no multiple of 16")
    return YES


def check_step(case: Case, device: Device) -> Verdict:
    """Accept cases that ``check_glue`` accepts and whose linears all have a kernel for single rows.

    Only compiled functions read a cache in q8_0, q5_1 or q4_0, whose heads have a multiple of 32 values.
    """
    if case.format in IN_BLOCKS:
        if case.options["head_dim"] % 32:
            return no(f"a cache in {case.format} has heads of a multiple of 32 values, not {case.options['head_dim']}")
        if "numba.stored" in case.options["linears"] and "torch" in device.software:
            return no(f"torch multiplies prompts with weights stored as floats, and reads no cache in {case.format}")
    if case.options.get("ordered", False):
        return no("columns of a weight lie in an order of their own, which a whole token has no kernel for")
    others = [rung for rung in case.options["linears"] if rung not in ROWS]
    if others:
        return no(f"a linear of this model is computed by {others[0]}, which is no kernel for single rows")
    return _check_lengths(case)


def check_webgpu(case: Case, device: Device) -> Verdict:
    """All weights and layers on this device; heads whose rows of a cache 16 bytes divide."""
    others = [rung for rung in case.options["linears"] if rung != "webgpu.rows"]
    if others:
        return no(f"a linear of this model is computed by {others[0]}, which does not have its weight on the GPU")
    if case.options.get("devices", 1) != 1:
        return no("the layers lie on several devices")
    size = 32 if case.format == "q8_0" else 8
    if case.options["head_dim"] % size:
        return no(f"head_dim is {case.options['head_dim']}, no multiple of {size}")
    return YES


def check_webgpu_int8(case: Case, device: Device) -> Verdict:
    """Accept what ``check_webgpu`` accepts, where four products of int8 are one instruction."""
    known = device.capability("dot8")
    if known.level is not Level.NATIVE:
        return no(f"multiplies int8 one by one here, which takes longer than float32 ({known.source})")
    if case.shape[1] % 32 or case.shape[2] % 32:
        return no("rows of activations are no multiple of 32")
    return check_webgpu(case, device)


def check_cuda(case: Case, device: Device) -> Verdict:
    """All weights multiplied by CUDA C and all layers on this device, and lengths that units of 32 divide."""
    if not (whole := check_whole(case, device)):
        return whole
    others = [rung for rung in case.options["linears"] if rung not in GRAPH]
    if others:
        return no(f"a linear of this model is computed by {others[0]}, which has no kernel in a whole token")
    if case.options.get("devices", 1) != 1:
        return no("the layers lie on several devices")
    _, hidden, feed_forward, _ = case.shape
    for noun, length in (("hidden", hidden), ("feed_forward", feed_forward), ("head_dim", case.options["head_dim"])):
        if length % 32:
            return no(f"{noun} is {length}, no multiple of 32")
    return YES


def check_parts(case: Case, device: Device) -> Verdict:
    """All layers on this device, and no torch that would compute what lies between the products."""
    if not (whole := check_whole(case, device)):
        return whole
    if case.options.get("devices", 1) != 1:
        return no("the layers lie on several devices")
    if "torch" in device.software:
        return no("is for where torch is missing")
    return YES


def _compiled(name: str, impl: str, check: str, *needs: str, formats: tuple[str, ...] = ("f32", "f16")) -> Rung:
    return Rung(
        "decode_step",
        name,
        f"rung.ops.decode_step.{impl}:RUNG",
        kinds=("cpu",),
        needs=("isa.kernels", "package.numba", *needs),
        formats=formats,
        check=f"rung.ops.decode_step:{check}",
    )


def _webgpu(name: str, impl: str, check: str) -> Rung:
    return Rung(
        "decode_step",
        name,
        f"rung.ops.decode_step.webgpu.step:{impl}",
        kinds=("webgpu",),
        needs=("package.wgpu",),
        formats=_CACHES,
        check=f"rung.ops.decode_step:{check}",
    )


LADDER = register_ladder(
    Ladder(
        "decode_step",
        (
            _compiled("numba.step", "numba_step", "check_step", formats=(*EXAMPLE_FORMATS, *IN_BLOCKS)),
            _webgpu("webgpu.int8", "INTEGERS", "check_webgpu_int8"),
            _webgpu("webgpu.f32", "FLOATS", "check_webgpu"),
            Rung(
                "decode_step",
                "numpy.step",
                "rung.ops.decode_step.numpy_step:RUNG",
                kinds=("cpu",),
                formats=("f32", "f16"),
                check="rung.ops.decode_step:check_parts",
            ),
            Rung(
                "decode_step",
                "cuda.step",
                "rung.ops.decode_step.cuda.step:RUNG",
                kinds=("cuda", "rocm"),
                needs=("package.torch",),
                formats=_CACHES,
                check="rung.ops.decode_step:check_cuda",
            ),
            _compiled("numba.glue", "numba_glue", "check_glue", "package.torch"),
            Rung(
                "decode_step",
                "ref",
                "rung.ops.decode_step.ref:RUNG",
                needs=("package.torch",),
                formats=("f32", "f16", "bf16"),
                check="rung.ops.decode_step:check_whole",
            ),
        ),
    )
)
