"""Threads that run already when a simulation begins are in it from their next instruction on, and plain after it."""

from __future__ import annotations

import _thread
import cProfile
import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from queue import Queue, SimpleQueue

import pytest
import torch

import rung
from rung.simulation.dispatch import dispatch_hook, threads


def see_and_be_refused(x):
    """Compute with a tensor on the card, by operations alone, nothing patched; return the findings of the thread."""
    before = torch.cuda.memory_allocated()
    product = x @ x
    taken = torch.cuda.memory_allocated() - before
    with pytest.raises(RuntimeError) as mixed:
        x @ HOST
    with pytest.raises(torch.cuda.OutOfMemoryError) as full:
        x.expand(2**20, 32, 32).clone()
    return product.device.type, taken, str(mixed.value)[:54], str(full.value)[:47]


HOST = torch.ones(32, 32)
EXPECTED = (
    "cuda",
    32 * 32 * 4,
    "Expected all tensors to be on the same device, but got",
    "CUDA out of memory. Tried to allocate 4.00 GiB.",
)


def is_simulated():
    return torch._C._dispatch_tls_is_dispatch_key_included(dispatch_hook._KEY)


class Worker:
    """Calls one function after the other in a thread; ``spin``: it looks for the next all the time."""

    def __init__(self, jobs=None, start=lambda run: threading.Thread(target=run, daemon=True).start()):
        self.jobs, self.results, begun = jobs or SimpleQueue(), SimpleQueue(), threading.Event()

        def run():
            begun.set()
            while True:
                job = self.jobs.get()
                if job is None:
                    return
                try:
                    self.results.put(job())
                except BaseException as error:
                    self.results.put(error)

        start(run)
        assert begun.wait(20)

    def __call__(self, function, *args):
        self.jobs.put(lambda: function(*args))
        return self.results.get(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.jobs.put(None)


class Spinning:
    """A queue whose ``get`` does not wait but looks again and again."""

    def __init__(self):
        self._items, self.put = SimpleQueue(), lambda item: self._items.put(item)

    def get(self):
        while self._items.empty():
            pass
        return self._items.get()


WORKERS = {
    "waits in C": Worker,
    "waits in Python": lambda: Worker(Queue()),
    "spins": lambda: Worker(Spinning()),
    "of _thread": lambda: Worker(start=lambda run: _thread.start_new_thread(run, ())),
}


@pytest.mark.parametrize("kind", WORKERS)
def test_a_thread_begun_before_is_in_the_simulation_and_plain_after_it(kind):
    with WORKERS[kind]() as worker:
        for _ in range(2):
            with rung.simulate("v100", memory="2GB"):
                x = torch.ones(32, 32, device="cuda")
                see_and_be_refused(x)  # what cuBLAS takes at the first product
                assert worker(see_and_be_refused, x) == EXPECTED
            assert worker(lambda: (x @ HOST).device.type) == "cpu"  # noqa: B023 (it is called at once)
            assert worker(is_simulated) is False


def test_threads_of_a_pool_inside_a_pool_begun_before():
    with ThreadPool(2) as outer, ThreadPool(2) as inner:
        outer.map(inner.apply, [int] * 8)
        with rung.simulate("v100", memory="2GB"):
            x = torch.ones(32, 32, device="cuda")
            see_and_be_refused(x)
            assert outer.apply(inner.apply, (see_and_be_refused, (x,))) == EXPECTED


def test_a_thread_of_thread_begun_inside():
    with rung.simulate("v100", memory="2GB"):
        x = torch.ones(32, 32, device="cuda")
        see_and_be_refused(x)
        for start in (_thread.start_new_thread, _thread.start_new):
            with Worker(start=lambda run, start=start: start(run, ())) as worker:
                assert worker(see_and_be_refused, x) == EXPECTED
        with pytest.raises(TypeError):
            _thread.start_new_thread("no function", ())


def test_not_one_operation_passes_unseen_where_a_thread_waits_in_the_midst_of_a_line():
    inputs, found = SimpleQueue(), SimpleQueue()

    def double():
        while True:
            found.put(inputs.get() * 2)  # no line, call or return between the waiting and the product

    threading.Thread(target=double, daemon=True).start()
    for _ in range(20):
        with rung.simulate("v100"):
            inputs.put(torch.ones(2, device="cuda"))
            assert found.get(timeout=20).device.type == "cuda"
        inputs.put(HOST)
        assert found.get(timeout=20).device.type == "cpu"


def test_not_one_operation_passes_unseen_where_a_thread_computes_all_the_time():
    inputs, found = [HOST], SimpleQueue()

    def double():
        while inputs:
            (x,) = inputs
            y = x * 2
            if x is not HOST:
                inputs[0] = HOST
                found.put(y)

    threading.Thread(target=double, daemon=True).start()
    for _ in range(20):
        with rung.simulate("v100"):
            inputs[0] = torch.ones(2, device="cuda")
            assert found.get(timeout=20).device.type == "cuda"
    inputs.clear()


def test_an_operation_that_is_under_way_when_the_block_ends_is_finished():
    under_way, ended = threading.Event(), threading.Event()
    with Worker() as worker:
        with rung.simulate("v100"):
            handler = dispatch_hook.current_handler

            def slowly(*operation):
                under_way.set()
                ended.wait(20)
                return handler(*operation)

            dispatch_hook.handle_by(slowly)
            worker.jobs.put(lambda: (HOST * 2).sum().item())
            under_way.wait(20)
        ended.set()
        assert worker.results.get(timeout=20) == 2 * 32 * 32
        assert not worker(is_simulated)


def test_threads_come_and_go_meanwhile():
    over, reached = threading.Event(), []

    def coming_and_going():
        while not over.is_set():
            short = [threading.Thread(target=time.sleep, args=(0.0001 * n,)) for n in range(4)]
            for thread in short:
                thread.start()
            for thread in short:
                thread.join()

    busy = [threading.Thread(target=coming_and_going) for _ in range(6)]
    for thread in busy:
        thread.start()
    for _ in range(300):
        with threads.reached(lambda: reached.append(threading.get_ident())):
            time.sleep(0.0005)
    over.set()
    for thread in busy:
        thread.join(20)
    assert {thread.ident for thread in busy} <= set(reached)
    assert threading.get_ident() not in reached
    assert gc.isenabled()


def test_each_thread_is_reached_once_and_none_that_wakes_too_late():
    reached = []

    def note():
        reached.append(threading.get_ident())

    with Worker() as early, Worker() as late:
        with threads.reached(note):
            both = [early(threading.get_ident), early(threading.get_ident)]
        assert reached == both[:1]
        assert late(threading.get_ident) not in reached
        assert late(lambda: any(frame.f_trace_opcodes for frame in _stack())) is False
        assert early(lambda: any(frame.f_trace_opcodes for frame in _stack())) is False
        assert [early(sys.gettrace), early(sys.getprofile)] == [None, None]


def _stack():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def noting(events):
    def note(frame, event, arg):
        events.append((frame.f_code.co_name, event, frame.f_lineno))
        return note

    return note


def three_lines(wait, after):
    wait()
    after.append(1)
    return after


@pytest.mark.parametrize("setter", [sys.settrace, sys.setprofile])
def test_a_tracer_or_profiler_of_its_own_stays_and_misses_nothing(setter):
    getter, found = {sys.settrace: sys.gettrace, sys.setprofile: sys.getprofile}[setter], []
    for reaching in (False, True):
        go, waits, events, kept, reached = threading.Lock(), threading.Event(), [], [], []

        def run(go=go, waits=waits, events=events, kept=kept):
            own = noting(events)
            setter(own)
            waits.set()
            three_lines(go.acquire, [])
            kept.append(getter() is own)
            setter(None)

        go.acquire()
        thread = threading.Thread(target=run)
        thread.start()
        waits.wait(20)
        while three_lines.__code__ is not sys._current_frames()[thread.ident].f_code:
            time.sleep(0.001)
        if reaching:
            with threads.reached(lambda reached=reached: reached.append(threading.get_ident())):
                go.release()
                thread.join(20)
            assert reached == [thread.ident]
        else:
            go.release()
            thread.join(20)
        assert kept == [True]
        found.append([event for event in events if event[0] in ("run", "three_lines")])
    assert found[0] == found[1]
    assert len(found[0]) > 4


def test_cprofile_in_the_thread_goes_on():
    def profiled(wait):
        profile = cProfile.Profile()
        with profile:
            x = wait()
            product = x @ x
            sorted([2, 1])
        return product.device.type, {entry.code for entry in profile.getstats() if isinstance(entry.code, str)}

    inputs = SimpleQueue()
    with Worker() as worker:
        worker.jobs.put(lambda: profiled(inputs.get))
        with rung.simulate("v100"):
            inputs.put(torch.ones(2, 2, device="cuda"))
            device, called = worker.results.get(timeout=20)
    assert device == "cuda"
    assert "<built-in method builtins.sorted>" in called


def fail_in_a_simulation(worker):
    with rung.simulate("v100"):
        assert worker(is_simulated)
        raise KeyError


def test_an_exception_inside_leaves_the_thread_plain():
    with Worker() as worker, Worker() as idle:
        with pytest.raises(KeyError):
            fail_in_a_simulation(worker)
        worker(HOST.sum)
        assert not worker(is_simulated)
        assert not idle(is_simulated)


@pytest.mark.parametrize(
    ("name", "value"), [("implementation", type("", (), {"name": "pypy"})), ("_is_gil_enabled", lambda: False)]
)
def test_on_other_pythons_only_the_work_of_pools_is_reached(name, value, monkeypatch):
    with Worker() as worker, ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        monkeypatch.setattr(sys, name, value, raising=False)
        with rung.simulate("v100"):
            monkeypatch.undo()
            assert not worker(is_simulated)
            assert pool.submit(is_simulated).result()
        assert not pool.submit(is_simulated).result()
