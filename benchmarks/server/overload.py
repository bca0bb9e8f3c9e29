"""Ten times as many clients as a server holds: what is answered in that time, and whether ``Retry-After`` holds.

    python -m benchmarks.server.overload [--count 680] [--seed 0] [--tokens 128]

First so many clients as are computed at once send one request after another: the unloaded rate. Then ``--count``
clients come together, each with a stream of its own. Who is refused comes again when the refusal says, half of them by
``retry-after-ms``, as OpenAI's and Anthropic's clients do, half by ``retry-after`` in whole seconds. Prints the rate of
answers beside the unloaded one, and how the named times compare with those after which a retry was taken.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.server.parts import (
    ANSWER_SECONDS,
    Findings,
    Server,
    arguments,
    at_once,
    connected,
    endless,
    request,
    serving,
)

#: Answers that are computed at once, and clients: ten times these and the queue of 64.
PARALLEL, CLIENTS = 4, 680
#: Of the unloaded rate, what must be left; of a named time, what it may be wrong by, and the seconds that a step and
#: two processes may take on a busy machine.
LEAST_RATE, MOST_ERROR, SLACK = 0.9, 0.3, 0.25
#: Requests of which the unloaded rate is.
_UNLOADED = 96
#: Number of the first of these.
_OTHERS = 10**6


@dataclass
class Refusal:
    """The first refusal of a request: the seconds that it names, and those after which a retry was taken."""

    named: float
    taken: float


@dataclass
class Client:
    """The part that all requests share: where to, a seed, tokens of each answer, and biases that keep it going."""

    port: int
    seed: int
    tokens: int
    bias: dict[str, int]

    def body(self, number: int) -> dict[str, Any]:
        """Return a request that no other client sends."""
        text, seed = f"the model {number} runs", self.seed + number
        more = {"temperature": 1, "seed": seed, "stream": True, "logit_bias": self.bias}
        return {"prompt": text, "max_tokens": self.tokens, **more}


async def stream(port: int, data: dict[str, Any]) -> tuple[float, dict[str, str]]:
    """Return when a stream began that has come whole, or when it was refused and the headers of that."""
    async with asyncio.timeout(ANSWER_SECONDS), connected(port) as (reader, writer):
        writer.write(request("/v1/completions", data))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, came = int(head.split(" ")[1]), time.monotonic()
        if status == 200:
            if b"[DONE]" not in await reader.read(-1):
                raise RuntimeError("a stream has no end")
            return came, {}
        if status != 503:
            raise RuntimeError(f"{status}: {await reader.read(-1)!r}")
        return came, {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}


async def insist(client: Client, number: int, found: Findings, refusals: list[Refusal]) -> None:
    """Send a request until it is answered, when each refusal says."""
    refused = named = 0.0
    while True:
        came, headers = await stream(client.port, client.body(number))
        if not headers:
            break
        found.count("refusals")
        wait = float(headers["retry-after"]) if number % 2 else float(headers["retry-after-ms"]) / 1000
        found.expect(wait <= float(headers["retry-after"]) < wait + 1 + SLACK, f"two times: {headers}")
        if not refused:
            refused, named = came, wait
        await asyncio.sleep(wait)
    found.count("answers")
    if refused:
        refusals.append(Refusal(named, came - refused))


async def unloaded_rate(client: Client, count: int) -> float:
    """Return the answers in a second where nobody waits for long."""
    found = Findings()
    begun = time.monotonic()
    jobs = [partial(insist, client, _OTHERS + number, found, []) for number in range(count)]
    await at_once(jobs, 2 * PARALLEL)
    return count / (time.monotonic() - begun)


async def run(server: Server, count: int, seed: int, tokens: int = 24) -> Findings:
    """Have so many clients come at once; return what was found."""
    client = Client(server.port, seed, tokens, await endless(server.port))
    found, chance, refusals = Findings(), random.Random(seed), list[Refusal]()
    await unloaded_rate(client, 2 * PARALLEL)  # what was not loaded yet
    unloaded = await unloaded_rate(client, min(_UNLOADED, count))
    numbers = list(range(count))
    chance.shuffle(numbers)
    begun = time.monotonic()
    await asyncio.gather(*(insist(client, number, found, refusals) for number in numbers))
    rate = count / (time.monotonic() - begun)
    wrong = [each for each in refusals if abs(each.taken - each.named) > max(MOST_ERROR * each.named, SLACK)]
    errors = sorted(abs(each.taken / each.named - 1) for each in refusals)
    found.counts |= {
        "answers in a second, unloaded": unloaded,
        "answers in a second, overloaded": rate,
        "ratio": rate / unloaded,
        "requests that were refused": len(refusals),
        "longest named time, s": max((each.named for each in refusals), default=0),
        "median error of a named time": errors[len(errors) // 2] if errors else 0,
        "named times that did not hold": len(wrong),
    }
    for each in wrong:
        found.expect(False, f"a retry was taken after {each.taken:.2f} s, and {each.named:.2f} s were named")
    found.expect("Traceback" not in server.said(), f"the server wrote a traceback: {server.said()[-2000:]}")
    return found


def main() -> int:
    """Overload a server and print what was found."""
    parser = arguments(__doc__, CLIENTS)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    with serving(options.model, "--parallel", str(PARALLEL)) as server:
        found = asyncio.run(run(server, options.count, options.seed, options.tokens))
    found.expect(found.counts["ratio"] >= LEAST_RATE, f"the rate is {found.counts['ratio']:.2f} of the unloaded one")
    return found.show()


if __name__ == "__main__":
    sys.exit(main())
