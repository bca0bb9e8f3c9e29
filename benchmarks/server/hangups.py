"""Clients that hang up at random moments: before their turn, in their prompt, in their answer.

    python -m benchmarks.server.hangups [--count 5000] [--seed 0]

A place is free within one step of its client's end, beside the step that is computed then: the steps that the engine
begins for it are counted. Of others who are answered meanwhile no byte changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterable
from typing import Any

from benchmarks.server.parts import (
    Findings,
    Server,
    arguments,
    call,
    connected,
    endless,
    events,
    idle,
    metric,
    request,
    serving,
)

#: Answers at a time of clients that stay, and of those that hang up.
STAYING, LEAVING = 3, 9
#: Seconds after which a client hangs up at most, and in which its place must be free: some steps of a busy machine.
MOST_SECONDS, FREE_SECONDS = 0.3, 2.0
#: Seconds in which the server notices a hang-up, and tells a client what a step computed.
NOTICE_SECONDS = 0.1


def staying(number: int) -> dict[str, Any]:
    """Return a body of which the answer is drawn by a seed."""
    return {"prompt": f"the model {number % 7} runs", "max_tokens": 24, "temperature": 1, "seed": number % 13}


async def hang_up(port: int, chance: random.Random, found: Findings, bias: dict[str, int]) -> None:
    """Begin an answer that would go on for long, and go away."""
    kind = chance.choice(["/v1/completions", "/v1/chat/completions", "/api/chat", "/v1/messages"])
    text = "the memory of the GPU is small " * chance.choice([1, 4, 8])
    messages = [{"role": "user", "content": text}]
    stream = chance.random() < 0.7
    long = {"max_tokens": 400, "temperature": 1, "logit_bias": bias, "n": chance.choice([1, 1, 2]), "stream": stream}
    body = {
        "/v1/completions": {"prompt": text, **long},
        "/v1/chat/completions": {"messages": messages, **long},
        "/api/chat": {"model": "demo", "messages": messages, "stream": stream, "options": {"num_predict": 400}},
        "/v1/messages": {"model": "demo", "messages": messages, "max_tokens": 400, "stream": stream},
    }[kind]
    async with connected(port) as (_, writer):
        writer.write(request(kind, body))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await asyncio.sleep(chance.random() * MOST_SECONDS)
        if chance.random() < 0.5:
            writer.transport.abort()  # a reset
    found.count("hang-ups")


async def steps_after(server: Server, bias: dict[str, int], found: Findings, tries: int, chance: random.Random) -> None:
    """Count the steps that the engine begins for the only answer after its client has gone.

    It stands still while the client goes and the server notices: however busy the machine is, what it computes then is
    the step in which it stood still, and what it begins after that.
    """
    body = {"prompt": "the", "n_predict": 400, "temperature": 1, "logit_bias": bias, "stream": True}
    steps = await _steps(server)
    whole = await call(server.port, "/completion", {**body, "n_predict": 8})
    lines = whole.content.decode().splitlines()
    parts = _parts(json.loads(line[6:]) for line in lines if line.startswith("data: {"))
    silent = await _steps(server) - steps - parts  # steps of an answer that tell its client nothing
    for _ in range(tries):
        steps = await _steps(server)
        parts = await _hang_up_on_halted(server, body, chance)
        seconds = await idle(server.port)
        begun = max(await _steps(server) - steps - silent - parts - 1, 0)
        found.most("slowest place that became free, s", seconds)
        found.most("steps begun after a hang-up, at most", begun)
        found.count("hang-ups of the only client")
        found.expect(seconds < FREE_SECONDS, f"a place was free after {seconds:.1f} s")
        found.expect(begun <= 1, f"{begun:.0f} steps were begun after a hang-up")


async def _steps(server: Server) -> float:
    """Return how many steps the engine has computed, when it computes none."""
    await idle(server.port)
    return await metric(server.port, "rung_n_decode_total")


def _parts(documents: Iterable[dict[str, Any]]) -> int:
    """Return how many events of a stream have tokens: one for each step."""
    return sum(bool(each["tokens"]) for each in documents)


async def _hang_up_on_halted(server: Server, body: dict[str, Any], chance: random.Random) -> int:
    """Begin a stream, and hang up while the engine stands still; return how many steps the client has heard of."""
    (engine,) = server.engines()
    async with connected(server.port) as (reader, writer):
        writer.write(request("/completion", body))
        arrived = events(reader)
        heard = [await anext(arrived)]
        await asyncio.sleep(chance.random() * MOST_SECONDS / 10)
        os.kill(engine, signal.SIGSTOP)
        try:
            with contextlib.suppress(TimeoutError):
                while True:
                    heard.append(await asyncio.wait_for(anext(arrived), NOTICE_SECONDS))
            if chance.random() < 0.5:
                writer.transport.abort()
            writer.close()
            await asyncio.sleep(NOTICE_SECONDS)
        finally:
            os.kill(engine, signal.SIGCONT)
    return _parts(heard)


async def run(server: Server, count: int, seed: int) -> Findings:
    """Have clients hang up beside others that stay; return what was found."""
    found, chance = Findings(), random.Random(seed)
    ends = await endless(server.port)
    alone = [(await call(server.port, "/v1/completions", staying(each))).json()["choices"] for each in range(91)]
    left, done = iter(range(count)), asyncio.Event()

    async def leave() -> None:
        for _ in left:
            await hang_up(server.port, chance, found, ends)

    async def stay(first: int) -> None:
        number = first
        while not done.is_set():
            reply = await call(server.port, "/v1/completions", staying(number % 91))
            if reply.status == 200:
                found.count("answers of those who stay")
                same = reply.json()["choices"] == alone[number % 91]
                found.expect(same, f"answer {number} changed beside hang-ups")
            else:
                found.expect(reply.status == 503, f"status {reply.status}: {reply.content[:200]!r}")
                await asyncio.sleep(0.05)
            number += 7

    clients = [asyncio.create_task(stay(each)) for each in range(STAYING)]
    await asyncio.gather(*(leave() for _ in range(LEAVING)))
    done.set()
    await asyncio.gather(*clients)
    seconds = await idle(server.port)
    found.expect(seconds < FREE_SECONDS, f"answers went on for {seconds:.1f} s without a client")
    await steps_after(server, ends, found, min(count // 20 + 1, 100), chance)
    found.expect("Traceback" not in server.said(), f"the server wrote a traceback: {server.said()[-2000:]}")
    return found


def main() -> int:
    """Have clients hang up and print what was found."""
    options = arguments(__doc__, 5000).parse_args()
    with serving(options.model, "--parallel", "8") as server:
        print(f"{options.count:,} hang-ups, seed {options.seed}")
        return asyncio.run(run(server, options.count, options.seed)).show()


if __name__ == "__main__":
    sys.exit(main())
