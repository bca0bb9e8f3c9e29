"""The same kernels on a processor, for their values: a block is fibers that take turns at barriers and shuffles.

A C++ compiler builds the text with a header that stands in for CUDA, which proves kernels where no GPU is. It is
thousands of times slower than a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rung.core.errors import SoftwareMissing
from rung.core.files import written_whole
from rung.core.settings import CACHE
from rung.kernels.cuda.driver import Argument, pointers
from rung.kernels.cuda.source import THREADS, Source

_HEADER = r"""
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>
#include <utility>
#define ON_CPU
#define THREADS_OF_A_BLOCK @threads
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Place { unsigned x, y; };
#define __global__
#define __device__ static
#define __forceinline__ inline
#define __shared__ static
#define __restrict__
#define BOUNDS(threads, blocks)
static Place blockIdx;
static jmp_buf home, fibers[THREADS_OF_A_BLOCK];
static char stacks[THREADS_OF_A_BLOCK][1 << 16];
static unsigned slots[2][THREADS_OF_A_BLOCK];
static char done[THREADS_OF_A_BLOCK], parity[THREADS_OF_A_BLOCK];
static int current, entered;
static volatile int running, waiting, opened, round_, last_round;
static void (*body)(void**);
static void** given;
static __attribute__((noinline)) int thread() { return *(volatile int*)&current; }
#define THREAD thread()
// _setjmp and _longjmp switch without a call of the system, which swapcontext makes each time
static __attribute__((noinline)) void turn() { if (!_setjmp(fibers[thread()])) _longjmp(home, 1); }
static void open() { waiting = 0; opened = opened + 1; last_round = round_; }
static void enter() {
    for (;;) {  // a fiber lives as long as the library, and computes a thread of each block
        body(given);
        done[thread()] = 1;
        running = running - 1;
        if (running && waiting >= running) open();
        turn();
    }
}
// all threads that have not ended go on together in a round of their own, whatever turns they took before
static void __syncthreads() {
    const int mine = opened;
    waiting = waiting + 1;
    if (waiting >= running) open();
    do turn(); while (opened == mine || round_ == last_round);
}
static void __threadfence() {}
template <class T> static T atomicAdd(T* at, T value) { const T before = *at; *at += value; return before; }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
template <class T> static T SHUFFLE(T value, int distance) {
    T other;
    const int own = thread(), side = parity[own] ^= 1;  // nobody writes to a side before all have read it
    memcpy(&slots[side][own], &value, 4);
    turn();
    memcpy(&other, &slots[side][own ^ distance], 4);
    return other;
}
// the numbers are added in the order in which a GPU's shuffles add them, after one turn
template <int NUMBERS> static void warp_sums(float* sums) {
    static float shared[2][THREADS_OF_A_BLOCK / 32][NUMBERS][32];
    const int own = thread(), side = parity[own] ^= 1;
    for (int i = 0; i < NUMBERS; i++) shared[side][own / 32][i][own % 32] = sums[i];
    turn();
    for (int i = 0; i < NUMBERS; i++) {
        float added[16];
        const float* all = shared[side][own / 32][i];
        for (int k = 0; k < 16; k++) added[k] = all[k] + all[k + 16];
        for (int d = 8; d; d /= 2)
            for (int k = 0; k < d; k++) added[k] += added[k + d];
        sums[i] = added[0];
    }
}
static int min(int a, int b) { return a < b ? a : b; }
static int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
static float from_half(unsigned short h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    float f = exponent == 31 ? (mantissa ? NAN : INFINITY)
                             : exponent ? ldexpf(1024.0f + mantissa, exponent - 25) : ldexpf((float)mantissa, -24);
    return h >> 15 ? -f : f;
}
static unsigned short to_half(float f) {
    const unsigned short sign = __builtin_signbit(f) ? 0x8000 : 0;
    const float size = fabsf(f);
    if (f != f) return 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 6.103515625e-05f) return sign | (unsigned short)nearbyintf(ldexpf(size, 24));
    int exponent;
    const float part = frexpf(size, &exponent);
    return sign | ((unsigned)(exponent + 14 - 1 << 10) + (unsigned)nearbyintf(ldexpf(part, 11)));
}
static ucontext_t began;
static void resume(int t) {
    current = t;
    if (_setjmp(home)) return;
    if (entered > t) _longjmp(fibers[t], 1);
    static ucontext_t fiber;
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = stacks[t];
    fiber.uc_stack.ss_size = sizeof stacks[t];
    makecontext(&fiber, enter, 0);
    entered++;
    swapcontext(&began, &fiber);
}
static void launch(unsigned across, unsigned down, void (*call)(void**), void** arguments) {
    body = call; given = arguments;
    for (unsigned b = 0; b < across * down; b++) {
        blockIdx = {b % across, b / across};
        memset(done, 0, sizeof done);
        memset(parity, 0, sizeof parity);
        running = THREADS_OF_A_BLOCK;
        for (waiting = 0; running; round_ = round_ + 1)
            for (int t = 0; t < THREADS_OF_A_BLOCK; t++)
                if (!done[t]) resume(t);
    }
}

template <class... A, size_t... I> static void unpack(void (*f)(A...), void** a, std::index_sequence<I...>) {
    f(*(A*)a[I]...);
}
template <class... A> static void unpack(void (*f)(A...), void** a) { unpack(f, a, std::index_sequence_for<A...>()); }
"""
_ENTRY = """
extern "C" void run_{name}(unsigned across, unsigned down, void** given) {{
    launch(across, down, [](void** a) {{ unpack({name}, a); }}, given);
}}
"""
#: The processor's own instructions change no value: nothing is fused that the text does not fuse.
_OPTIONS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
)
_LIMIT = 120.0
#: A block's barriers and shared memory are the library's own: one launch at a time.
_lock = threading.Lock()


@functools.cache
def compiler() -> str:
    """Return the path of a C++ compiler, empty where there is none."""
    if sys.platform == "win32":
        return ""  # it has no ucontext
    return next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), "")


@functools.cache
def library(source: Source) -> ctypes.CDLL:
    """Build the kernels for this processor, or take what was built before. Raises ``SoftwareMissing``."""
    text = (
        _HEADER.replace("@threads", str(THREADS))
        + source.text
        + "".join(_ENTRY.format(name=name) for name in source.kernels)
    )
    digest = hashlib.sha256(" ".join((compiler(), *_OPTIONS, text)).encode()).hexdigest()[:32]
    folder: Path = CACHE.read() / "cuda"
    path = folder / f"{digest}.so"
    if not path.exists():
        if not compiler():
            raise SoftwareMissing("No C++ compiler is here, which kernels are built with.")
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as new:
            _build(text, new)
    return ctypes.CDLL(str(path))


def _build(text: str, out: Path) -> None:
    command = (compiler(), *_OPTIONS, "-x", "c++", "-", "-o", str(out))
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if done.returncode:
        raise SoftwareMissing(f"{compiler()} does not build kernels.", done.stderr.splitlines()[:5])


def launch(source: Source, kernel: str, grid: tuple[int, int], arguments: Sequence[Argument]) -> None:
    """Run all blocks of a kernel; ``arguments`` are C values, addresses among them."""
    built = library(source)
    with _lock:
        built[f"run_{kernel}"](*grid, pointers(arguments))
