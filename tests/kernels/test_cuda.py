"""Kernels in CUDA C, built for the processor: products and decoded weights against float64, in every layout."""

import numpy as np
import pytest
import torch

from rung import formats
from rung.kernels.cpu.pack.layouts import FORMATS as PACKED
from rung.kernels.cuda import fibers, source
from rung.kernels.cuda.block_readers import BLOCKS
from rung.kernels.cuda.readers import STORED
from rung.kernels.gpu import cuda_products as products
from rung.kernels.gpu.cuda_products import Weight
from rung.kernels.gpu.stored import prepare
from tests.support.weights import weight

pytestmark = pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
CPU = torch.device("cpu")
#: Formats whose layouts no other one has.
APART = ["q4_0", "q4_1", "q5_0", "q5_1", "q5_k", "q8_0", "q2_k", "q4_k", "q6_k", "q3_k"]
APART += ["int8", "llm_int8", "nf4:64", "fp4:128", "nf4:64:nested"]
OTHERS = [name for name in PACKED if name not in ("nf4", "fp4", "u2", "u4", "u8") and name not in APART]


def on_cpu(name: str, rows: int, columns: int) -> tuple[Weight, np.ndarray]:
    """A weight as kernels take it, and decoded in float64."""
    encoded = weight(formats.get(name), rows, columns)
    dense = formats.decode(encoded).astype(np.float64)
    if name.split(":")[0] in STORED:
        return products.of_parts(encoded, prepare(encoded, "f32", 1).on(CPU)), dense
    return products.packed(encoded, CPU), dense


def columns_of(name: str) -> int:
    """Three blocks and one unit more than a group of 32, where a block is as small as that."""
    block = formats.get(name).block
    return 33 * 32 if block <= 32 else 3 * max(block, 64)


def as_taken(weight: Weight, x: torch.Tensor) -> np.ndarray:
    """Activations in float64 as the kernel multiplies them: for integer codes rounded to int8 with a scale for 32."""
    blocks = x.float().numpy().reshape(len(x), -1, 32)
    if weight.layout.looks_up:
        return blocks.reshape(len(x), -1).astype(np.float64)
    most = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(all="ignore"):
        codes = np.rint(np.nan_to_num(blocks * (np.float32(127) / most)))
    return (codes.astype(np.float64) * (most / np.float32(127))).reshape(len(x), -1)


def error(weight: Weight, x: torch.Tensor, dense: np.ndarray) -> float:
    """The norm of the error, as a share of the norm that a result has for a random x of that size."""
    taken = as_taken(weight, x)
    off = products.multiply(weight, x).double().numpy() - taken @ dense.T
    size = np.linalg.norm(taken, axis=1) * np.linalg.norm(dense) / dense.shape[1] ** 0.5
    return float(np.linalg.norm(off) / np.linalg.norm(size))


@pytest.mark.parametrize("name", [*APART, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_products_and_decoded_weights_are_exact(name):
    """Every number of rows that a kernel is for, and of a weight that fills no block of threads."""
    packed, dense = on_cpu(name, 11, columns_of(name))
    assert np.array_equal(products.decode(packed, 0, 11, torch.float32).numpy(), dense.astype(np.float32))
    for rows in (1, 2, 3, 8, 16):
        x = torch.randn(rows, columns_of(name), generator=torch.Generator().manual_seed(rows))
        assert error(packed, x, dense) < 3e-7, rows


@pytest.mark.parametrize(
    "name",
    [name if name in ("q4_k", "q6_k", "iq3_s") else pytest.param(name, marks=pytest.mark.slow) for name in BLOCKS],
)
def test_blocks_of_files_are_read_as_they_are(name):
    """Rows of an odd number of blocks, so that half of them lie between words."""
    encoded = weight(formats.get(name), 7, 3 * max(formats.get(name).block, 32))
    packed, dense = products.of_parts(encoded, prepare(encoded, "f32", 1).on(CPU)), formats.decode(encoded)
    assert np.array_equal(products.decode(packed, 0, 7, torch.float32).numpy(), dense)
    assert np.array_equal(products.decode(packed, 3, 5, torch.float32).numpy(), dense[3:5])
    for rows in (1, 3):
        x = torch.randn(rows, dense.shape[1], generator=torch.Generator().manual_seed(rows))
        assert error(packed, x, dense.astype(np.float64)) < 3e-7, rows


@pytest.mark.parametrize("shape", [(1, 32), (4, 64), (5, 4128), (130, 96)])
@pytest.mark.parametrize("name", ["q4_0", "int8", "q5_1"])
def test_edge_shapes(name, shape):
    packed, dense = on_cpu(name, *shape)
    for rows in (1, 5, 9):
        assert error(packed, torch.randn(rows, shape[1]), dense) < 3e-7
    assert products.multiply(packed, torch.randn(0, shape[1])).shape == (0, shape[0])
    last = products.decode(packed, shape[0] - 1, shape[0], torch.float32)
    assert np.array_equal(last.numpy(), dense[-1:].astype(np.float32))
    assert products.decode(packed, 0, 0, torch.float32).shape == (0, shape[1])


@pytest.mark.parametrize("shape", [(1, 256), (4, 512), (5, 1280), (131, 256)])
@pytest.mark.parametrize("name", ["q3_k", pytest.param("tq1_0", marks=pytest.mark.slow)])
def test_edge_shapes_of_large_blocks(name, shape):
    """As files store them, rows of whose blocks lie at even addresses, and as packed: two rows of activations too."""
    encoded = weight(formats.get(name), *shape)
    dense = formats.decode(encoded)
    taken = [products.of_parts(encoded, prepare(encoded, "f32", 1).on(CPU)), products.packed(encoded, CPU)]
    for packed in taken:
        assert np.array_equal(products.decode(packed, 0, shape[0], torch.float32).numpy(), dense)
        for rows in (1, 2, 4, 8, 9):
            x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(rows))
            assert error(packed, x, dense.astype(np.float64)) < 3e-7, (packed.layout.blocks, rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["q4_0", "nf4:64"])
def test_16_bits_are_taken_and_given(name, dtype):
    """Rounded to the nearest as torch does, with NaN, infinity and what is subnormal."""
    packed, dense = on_cpu(name, 8, 256)
    x = torch.randn(2, 256).to(dtype)
    exact = as_taken(packed, x) @ dense.T
    step = np.spacing(np.abs(exact).astype(np.float16 if dtype is torch.float16 else np.float32)).astype(np.float64)
    step *= 1 if dtype is torch.float16 else 2**16
    assert (np.abs(products.multiply(packed, x).double().numpy() - exact) <= 0.51 * step + 1e-5).all()
    wide = torch.from_numpy(dense.astype(np.float32))
    assert torch.equal(products.decode(packed, 0, 8, dtype), wide.to(dtype))
    x[1] *= 1e-4 if dtype is torch.float16 else 1e-38
    assert torch.isfinite(products.multiply(packed, x)).all()
    x[1, 5] = torch.nan
    got = products.multiply(packed, x)
    assert got[1].isnan().all()
    assert got[0].isfinite().all()


def test_a_row_has_the_same_bits_whatever_is_beside_it():
    packed, _ = on_cpu("q4_k", 7, 512)
    x = torch.randn(4, 512)
    together = products.multiply(packed, x[:4])
    assert torch.equal(products.multiply(packed, x[[3, 2, 1, 0]]), together[[3, 2, 1, 0]])


def test_activations_that_lie_apart():
    packed, dense = on_cpu("q8_0", 5, 64)
    wide = torch.randn(3, 131)
    for x in (wide[:, 3:67], wide[:, 64:128], torch.randn(64, 3).T):
        assert error(packed, x, dense) < 3e-7
    assert not products.multiply(packed, torch.zeros(1, 64)).any()


def test_sums_of_a_warp_are_those_of_its_shuffles(monkeypatch):
    """On a processor they take one turn; with the GPU's own text they take one for each shuffle."""
    packed, _ = on_cpu("q4_0", 6, 4096)
    x = torch.randn(3, 4096)
    quick = products.multiply(packed, x)
    plain = source.product

    def by_shuffles(*arguments):
        text, kernels = plain(*arguments).text, plain(*arguments).kernels
        assert "#ifndef ON_CPU\n// the sums" in text
        return source.Source(
            text.replace("#ifndef ON_CPU\n", "#define warp_sums shuffled\n", 1).replace(
                "#endif\n#define ALIGNED", "#define ALIGNED"
            ),
            kernels,
        )

    monkeypatch.setattr(products, "product", by_shuffles)
    assert torch.equal(products.multiply(packed, x), quick)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("warp_sums<NUMBERS>(sums)", "warp_sums<NUMBERS / 2>(sums)"),
        ("t = dot4(c[r][7], high.w, t);", ""),
        ("unit < units; unit += THREADS", "unit < units - 1; unit += THREADS"),
        ("min(first + r, rows - 1)", "first"),
        ("OFFSET * (one + two)", "OFFSET * one"),
    ],
)
def test_a_planted_fault_is_found(text, fault, monkeypatch):
    packed, dense = on_cpu("q4_0", 6, 4096)
    plain = source.product
    monkeypatch.setattr(
        products,
        "product",
        lambda *arguments: source.Source(plain(*arguments).text.replace(text, fault), plain(*arguments).kernels),
    )
    assert text in plain(packed.layout, "f32", 1).text
    assert error(packed, torch.randn(1, 4096), dense) > 1e-5


def test_a_compiler_that_fails_says_what_is_wrong():
    with pytest.raises(Exception, match="does not build") as caught:
        fibers.library(source.Source("this is no C++", ("nothing",)))
    assert any("error" in fact for fact in caught.value.facts)
