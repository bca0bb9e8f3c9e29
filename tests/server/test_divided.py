"""The process of a divided model: what other machines compute for it comes to it alone, and so do their errors."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from rung.engine.load import load
from rung.engine.open_model import open_any
from rung.engine.scheduling.stages import load_stage
from rung.models.lookup import find_path
from rung.server.errors import ApiError
from rung.server.model_pool import ModelPool
from rung.server.protocol import Delta, Generate, Load

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
OPTIONS = {"context": 128, "parallel": 3, "threads": 1, "device": "cpu"}
PROMPT, FIRST = "a b c 1", 3  # layers of the process that is tested


async def text(engine) -> str:
    request = Generate(prompts=[PROMPT], options={"max_tokens": 12, "temperature": 0})
    return "".join([each.text async for each in engine.generate(request) if isinstance(each, Delta)])


async def served(forward_of):
    """Return the result of a coroutine of (engine, compute), with the layers behind the first in this process."""
    card = open_any(find_path("demo"))
    stage = load_stage(card, FIRST, len(card.decoder.layers), OPTIONS)
    pool = ModelPool({"demo": Load("demo", dict(OPTIONS), layers=FIRST, stages=2)})
    engine = pool.engines["demo"]

    async def compute(batch: bytes, hidden: bytes) -> bytes:
        return stage.compute(batch, hidden)

    try:
        return await asyncio.wait_for(forward_of(engine, compute), 120)
    finally:
        await pool.stop()


def test_an_error_of_any_kind_ends_the_answer_and_the_next_one_is_right():
    async def run(engine, compute):
        engine.forward = compute
        await engine.loaded()
        before = await text(engine)

        async def broken(batch, hidden):
            raise ValueError("a defect")

        engine.forward = broken
        with pytest.raises(ApiError) as refused:
            await text(engine)
        engine.forward = compute
        return before, refused.value, await text(engine)

    before, error, after = asyncio.run(served(run))
    assert error.code == "fleet-stage-lost"
    assert before == after != ""


def test_what_was_computed_for_a_process_that_was_killed_comes_to_no_other():
    async def run(engine, compute):
        late, is_loaded = asyncio.Event(), False

        async def forward(batch, hidden):
            if is_loaded and engine.starts == 1:  # of the answer, in the first process
                os.kill(engine.process_id, signal.SIGKILL)
                await late.wait()
                return bytes(len(hidden))
            if is_loaded and engine.is_ready:  # of the answer, in the second one
                late.set()
                await asyncio.sleep(0.2)
            return await compute(batch, hidden)

        engine.forward = forward
        await engine.loaded()
        is_loaded = True
        return await text(engine), engine.starts

    found, starts = asyncio.run(served(run))
    whole = load("demo", **OPTIONS)
    assert starts == 2
    assert found == "".join(whole.generate(PROMPT, raw=True, max_tokens=12, temperature=0))
