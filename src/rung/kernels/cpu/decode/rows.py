"""Hold what lies between the products of a layer when several tokens go through it, attention apart.

Each function takes (words, thread, threads), for ``parallel.run`` and for programs. Words are int64: the counter, then
what its docstring lists; addresses of float32 unless said otherwise. Lengths are multiples of 16, strides are bytes
between tokens. Threads take a few rows at a time.
"""

from __future__ import annotations

from enum import IntEnum

from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.decode.elementwise import add_to, cap, copy, gate, norm
from rung.kernels.isa.generic import call_fill, fetch_add, read_float, read_int

_ROWS = 8  # rows a thread takes at a time


@kernel(3)
def add_and_norm(words, thread, threads):
    """rows, columns, hidden, added or 0, post norm or 0, norm or 0, out, address of epsilon.

    hidden += added (normed in place first where there is a post norm); out = norm(hidden). Rows without gaps.
    """
    rows, columns, hidden, added = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    post_norm, weight, out = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    epsilon = read_float(read_int(words + 64))
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        for row in range(first, min(first + _ROWS, rows)):
            at = 4 * columns * row
            if added != 0:
                if post_norm != 0:
                    norm(added + at, post_norm, added + at, columns, epsilon)
                add_to(hidden + at, added + at, columns)
            if weight != 0:
                norm(hidden + at, weight, out + at, columns, epsilon)


@kernel(3)
def gate_rows(words, thread, threads):
    """rows, columns, gate, up, stride, whether gelu: gate = activation(gate) * up."""
    rows, columns, x, up = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    stride, is_gelu = read_int(words + 40), read_int(words + 48) != 0
    while True:
        row = fetch_add(words, 1)
        if row >= rows:
            break
        gate(x + stride * row, up + stride * row, columns, is_gelu)


@kernel(3)
def cap_rows(words, thread, threads):
    """rows, columns, x, stride, address of softcap: x = softcap * tanh(x / softcap), rounded up to whole vectors."""
    rows, columns, x, stride = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    softcap = read_float(read_int(words + 40))
    while True:
        row = fetch_add(words, 1)
        if row >= rows:
            break
        cap(x + stride * row, columns, softcap)


class PrepareWord(IntEnum):
    """Arguments of ``prepare_rows``: the counter, rows, columns; hidden and normed rows; the source with its stride;
    what is done first and norms as ``step.LinearWord`` has them; the fills of each row, how many a row has, and the
    address that their panels are counted from."""

    COUNTER, ROWS, COLUMNS, HIDDEN, NORMED, SOURCE, APART, BEFORE, POST_NORM, NORM, EPSILON = range(11)
    FILLS, FILL_COUNT, PANELS = range(11, 14)


_ROWS_WORD, _COLUMNS, _HIDDEN, _NORMED, _SOURCE, _APART, _BEFORE, _POST_NORM, _NORM, _EPSILON = (
    8 * word for word in list(PrepareWord)[1:11]
)
_FILLS, _FILL_COUNT, _PANELS = (8 * word for word in list(PrepareWord)[11:])
#: Words of a fill: the kernel of ``gemm.product``, the offset of its panel, and its 10 arguments.
FILL_WORDS = 12


@kernel(3)
def prepare_rows(words, thread, threads):
    """Bring the hidden state of each row up to date and fill its part of the panels; see ``PrepareWord``."""
    columns, before = read_int(words + _COLUMNS), read_int(words + _BEFORE)
    count, panels = read_int(words + _FILL_COUNT), read_int(words + _PANELS)
    while True:
        row = fetch_add(words, 1)
        if row >= read_int(words + _ROWS_WORD):
            break
        x = read_int(words + _SOURCE) + row * read_int(words + _APART)
        if before != 0:
            hidden, normed = (
                read_int(words + _HIDDEN) + 4 * columns * row,
                read_int(words + _NORMED) + 4 * columns * row,
            )
            epsilon, post_norm = read_float(read_int(words + _EPSILON)), read_int(words + _POST_NORM)
            if before == 1:
                copy(hidden, x, columns)
            elif post_norm != 0:
                norm(x, post_norm, normed, columns, epsilon)
                add_to(hidden, normed, columns)
            else:
                add_to(hidden, x, columns)
            norm(hidden, read_int(words + _NORM), normed, columns, epsilon)
            x = normed
        fill = read_int(words + _FILLS) + 8 * FILL_WORDS * count * row
        for _ in range(count):
            call_fill(read_int(fill), fill + 16, x, panels + read_int(fill + 8))
            fill += 8 * FILL_WORDS
