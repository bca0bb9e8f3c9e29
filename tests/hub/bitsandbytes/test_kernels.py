"""rung's kernels beside bitsandbytes' own: codes, scales, states and decoded values are the same bits."""

import math

import pytest
import torch

bnb = pytest.importorskip("bitsandbytes")
F, ops = bnb.functional, torch.ops.bitsandbytes

from rung.core.errors import UsageError  # noqa: E402
from rung.hub.bitsandbytes import int8  # noqa: E402
from rung.hub.bitsandbytes.kernels import KERNELS  # noqa: E402
from tests.hub.bitsandbytes import replaceable  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIGNED, UNSIGNED = F.create_dynamic_map(), F.create_dynamic_map(signed=False)


@pytest.fixture(autouse=True)
def _not_installed():
    from rung.hub.bitsandbytes import uninstall

    uninstall()


def values(*shape, dtype=torch.float32, seed=0):
    """Gaussian cubes, so that there are small ones, a block of zeros and signed zeros among them."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) ** 3
    x.view(-1)[64:128] = 0
    x.view(-1)[130:140:2] = -0.0
    return x.to(dtype)


def same(name, *args, **kwargs):
    """Asserts that both compute the same bits, and returns them."""
    packet, _, overload = name.partition(".")
    want = getattr(getattr(ops, packet), overload or "default")(*args, **kwargs)
    got = KERNELS[name](*args, **kwargs)
    pairs = zip(*((each if isinstance(each, tuple) else (each,)) for each in (got, want)), strict=True)
    for one, other in pairs:
        if other is None:
            assert one is None
        else:
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert torch.equal(one, other)
    return got


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [32, 64, 4096])
@pytest.mark.parametrize("shape", [(64, 4096), (7, 63), (5, 130), (3,)])
def test_four_bits(dtype, kind, block, shape):
    x = values(*shape, dtype=dtype) if math.prod(shape) > 140 else torch.tensor([0.5, -0.25, 0.0], dtype=dtype)
    codes, absmax = same("quantize_4bit", x, block, kind, torch.uint8)
    if len(shape) > 1:  # of one row bitsandbytes makes a matrix
        same("dequantize_4bit", codes, absmax, block, kind, shape, dtype)
    out = torch.empty(shape, dtype=dtype)
    KERNELS["dequantize_4bit.out"](codes, absmax, block, kind, shape, dtype, out)
    assert torch.equal(out, KERNELS["dequantize_4bit"](codes, absmax, block, kind, shape, dtype))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_ties_go_to_the_smaller_value(kind):
    table = F.get_4bit_type(kind, device="cpu").sort().values
    middles = (table[:-1] + table[1:]) / 2
    same("quantize_4bit", torch.cat([middles, torch.ones(49)])[None], 64, kind, torch.uint8)


def test_other_storage_and_damaged_values():
    x = values(64, 64)
    same("quantize_4bit", x, 64, "nf4", torch.bfloat16)
    x[3, 5] = math.nan
    got, want = (run(x, 64, "nf4", torch.uint8) for run in (KERNELS["quantize_4bit"], ops.quantize_4bit))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1]) or torch.equal(got[1].isnan(), want[1].isnan())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [64, 100, 256, 1 << 20])
@pytest.mark.parametrize("code", [SIGNED, UNSIGNED, F.create_linear_map()], ids=["signed", "unsigned", "linear"])
def test_blocks_of_eight_bits(dtype, block, code):
    x = values(5000, dtype=dtype)
    codes, absmax = same("quantize_blockwise", x.abs() if code is UNSIGNED else x, code, block)
    same("dequantize_blockwise", codes, absmax, code, block, dtype)


def test_the_table_of_eight_bits_follows_its_code():
    code, x = SIGNED.clone(), values(512)
    same("quantize_blockwise", x, code, 256)
    code.copy_(F.create_linear_map())
    same("quantize_blockwise", x, code, 256)


@replaceable
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_nested_states(kind):
    from rung.hub.bitsandbytes import install, uninstall

    x = values(256, 512)
    codes, state = F.quantize_4bit(x, quant_type=kind, compress_statistics=True)
    install()
    try:
        again, other = F.quantize_4bit(x, quant_type=kind, compress_statistics=True)
    finally:
        uninstall()
    assert torch.equal(codes, again)
    for name, part in state.as_dict(packed=True).items():
        assert torch.equal(part, other.as_dict(packed=True)[name]), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [0.0, 3.0])
def test_int8(dtype, threshold):
    x = values(33, 65, dtype=dtype)
    x[3] = 0
    codes, stats, *_ = same("int8_vectorwise_quant", x, threshold)
    same("int8_vectorwise_dequant", codes, stats)
    other, others, *_ = KERNELS["int8_vectorwise_quant"](values(20, 65, seed=1))
    sums = same("int8_linear_matmul", codes, other)
    same("int8_mm_dequant", sums, stats, others, dtype, torch.ones(20, dtype=dtype))
    same("int8_scaled_mm", codes, other, stats, others, dtype=dtype)


def test_int8_products_are_exact_for_long_rows():
    ones = torch.full((20, 4096), 127, dtype=torch.int8)
    assert int(KERNELS["int8_linear_matmul"](ones, ones)[0, 0]) == 127 * 127 * 4096


def test_llm_int8_leaves_outliers_out():
    x, weight = values(8, 64, dtype=torch.float16).clamp(-3, 3), values(32, 64, seed=1)
    x[:, 5] = 20
    codes, stats, columns = KERNELS["int8_vectorwise_quant"](x, 6.0)
    quantized, scales, _ = KERNELS["int8_vectorwise_quant"](weight.half())
    arguments = (x, codes, quantized, stats, scales, columns)
    (out, apart), (other, _) = KERNELS["int8_mixed_scaled_mm"](*arguments), ops.int8_mixed_scaled_mm(*arguments)
    assert 5 in columns
    assert torch.equal(apart, x[:, columns])
    torch.testing.assert_close(out, other, rtol=2e-3, atol=2e-2)
    want = x.float() @ (quantized * (scales / 127)[:, None]).T
    assert float((out - want).norm() / want.norm()) < 0.02


def test_rows_and_columns_of_int8():
    x = values(33, 64, dtype=torch.float16)
    row, column, rows, columns, outliers = KERNELS["int8_double_quant"](x)
    assert outliers is None
    torch.testing.assert_close(row * rows[:, None] / 127, x.float(), rtol=0, atol=float(rows.max()) / 127)
    torch.testing.assert_close(column * columns / 127, x.float(), rtol=0, atol=float(columns.max()) / 127)
    assert (KERNELS["int8_double_quant"](x.T)[0].int() - column.T).abs().max() <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products(dtype, kind, nested, rows):
    weight, x = values(96, 128, seed=2), values(2, rows, 128, dtype=dtype, seed=3)
    codes, state = F.quantize_4bit(weight, quant_type=kind, compress_statistics=nested, quant_storage=torch.bfloat16)
    more = {}
    if nested:
        more = {"absmax_8bit": state.absmax, "absmax_code": state.state2.code, "absmax_offset": state.offset}
    scales = state.state2.absmax if nested else state.absmax
    bias = torch.ones(96, dtype=dtype)
    got = KERNELS["gemm_4bit"](x, codes, [96, 128], scales, 64, kind, bias, **more)
    want = x.double() @ F.dequantize_4bit(codes, state).double().T + 1
    assert (got.dtype, got.shape) == (dtype, (2, rows, 96))
    assert float((got - want).norm() / want.norm()) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gemv_multiplies_the_weight_in_the_dtype_of_the_activations(dtype):
    """As bitsandbytes' own does; its tests hold it to that within half a percent of an error."""
    weight, x = values(96, 128, seed=2), values(1, 128, dtype=dtype, seed=3)
    codes, state = F.quantize_4bit(weight, quant_type="fp4")
    got = KERNELS["gemv_4bit"](x, codes, [96, 128], state.absmax, state.code, 64)
    rounded = F.dequantize_4bit(codes, state).to(dtype)
    assert got.dtype == dtype
    assert torch.equal(got, (x.float() @ rounded.float().T).to(dtype))


def test_a_weight_that_changes_is_seen():
    weight, x = values(64, 64), torch.eye(64)
    codes, state = F.quantize_4bit(weight, quant_type="nf4")
    product = [KERNELS["gemv_4bit"](x, codes, [64, 64], state.absmax, state.code, 64)]
    codes.bitwise_not_()
    product.append(KERNELS["gemv_4bit"](x, codes, [64, 64], state.absmax, state.code, 64))
    state.absmax.mul_(2)
    product.append(KERNELS["gemv_4bit"](x, codes, [64, 64], state.absmax, state.code, 64))
    assert not torch.equal(product[0], product[1])
    assert torch.equal(product[2], 2 * product[1])
    torch.testing.assert_close(product[2].T, F.dequantize_4bit(codes, state))


def test_rows_that_blocks_do_not_divide():
    """With AVX-512 bitsandbytes gives each row blocks of its own when it decodes, though it encodes them flattened."""
    weight, x = values(10, 96), values(3, 96, seed=1)
    codes, state = F.quantize_4bit(weight, quant_type="nf4")
    indices = torch.stack([codes >> 4, codes & 15], dim=1).view(-1).long()
    plain = state.code[indices] * state.absmax.repeat_interleave(64)[:960]
    assert torch.equal(KERNELS["dequantize_4bit"](codes, state.absmax, 64, "nf4", (10, 96), x.dtype).view(-1), plain)
    got = KERNELS["gemm_4bit"](x, codes, [10, 96], state.absmax, 64, "nf4")
    torch.testing.assert_close(got, x @ plain.view(10, 96).T)


def test_a_repacked_weight_is_refused():
    with pytest.raises(UsageError, match="own packing"):
        KERNELS["gemv_4bit"](torch.ones(1, 64), torch.ones(1), [64, 64], torch.ones(1, 64), SIGNED, 64)


@pytest.mark.parametrize("name", ["adam", "lamb", "ademamix", "momentum", "lars", "lion", "rmsprop", "adagrad"])
@pytest.mark.parametrize("bits", [8, 32])
def test_optimizers(name, bits):
    two, lead = name in ("adam", "lamb", "ademamix"), (2,) if name == "ademamix" else ()
    found = []
    for run in (KERNELS, {op: getattr(ops, op).default for op in KERNELS if op.startswith("optimizer")}):
        p, g = values(5000, seed=1), values(5000, seed=2)
        kind = torch.uint8 if bits == 8 else torch.float32
        states = [torch.zeros(*lead, 5000, dtype=kind), torch.zeros(5000, dtype=kind) if two else None]
        sizes = [torch.zeros(*lead, 20), torch.zeros(20) if two else None]
        norm = torch.zeros(1)
        for step in (1, 2, 3):
            if bits == 8:
                betas = (0.9, 0.99, 0.999, 2.0, 1e-8, step, 1e-2)
                maps = (SIGNED, UNSIGNED if two else None, *sizes)
                run["optimizer_update_8bit_blockwise"](name, g, p, *states, *betas, *maps, 0.01, 0.5)
            else:
                limit = 0.1 if name in ("lamb", "lars") else 0.0
                betas = (limit, float(p.norm()), 0.9, 0.99, 0.999, 2.0, 1e-8, 0.01, step, 1e-2, 0.5)
                run["optimizer_update_32bit"](name, g, p, *states, norm, *betas)
        found.append([each for each in (p, *states, *sizes, norm) if each is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 if one.is_floating_point() else 0)


def test_gradients_of_zero_are_not_left_alone():
    p = values(5000)
    state, sizes = torch.zeros(5000, dtype=torch.uint8), torch.zeros(20)
    run = KERNELS["optimizer_update_32bit"]
    with pytest.raises(UsageError, match="does not compute skip_zeros"):
        run("lion", p, p, p, None, None, 0.0, 1.0, 0.9, 0.99, 0.0, 0.0, 0.0, 0.0, 1, 1e-2, 1.0, skip_zeros=True)
    run = KERNELS["optimizer_update_8bit_blockwise"]
    with pytest.raises(UsageError, match="does not compute skip_zeros"):
        run("lion", p, p, state, None, 0.9, 0.99, 0.0, 0.0, 0.0, 1, 1e-2, SIGNED, None, sizes, None, 0.0, 1.0, True)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_activations_may_lie_in_any_order(threshold):
    a = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(6)).transpose(0, 1)
    for quantize in (int8.int8_vectorwise_quant, int8.int8_double_quant):
        for found, known in zip(quantize(a, threshold), quantize(a.contiguous(), threshold), strict=True):
            assert found is None if known is None else torch.equal(found, known)
