"""Test that no answer over HTTP depends on what is computed beside it: each alone, and again beside 15 others.

    python -m benchmarks.server.answers [--count 10000] [--seed 0]

Requests differ in prompt, endpoint, sampling, log probabilities, forms and streaming; in company they come in another
order. Prints how many answers differ in any byte (ids, times and counts of cached tokens apart).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from functools import partial
from typing import Any

from benchmarks.server.parts import Findings, Server, arguments, at_once, call, serving

COMPANY = 16
_TEXTS = ("the model", "the memory is small and the GPU", "hello", "a kernel runs", "what is a plan?")
#: Of an answer, what is not its own: names, its slot, times, and what others computed before.
_APART = {
    "id",
    "created",
    "rung",
    "prompt_tokens_details",
    "cached_tokens",
    "timings",
    "tokens_cached",
    "cache_n",
    "id_slot",
}
_OF_TIME = {"created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


def random_request(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a path and a body."""
    text = " ".join(chance.choices(_TEXTS, k=chance.randint(1, 6)))
    most = chance.randint(1, 24)
    sampling: dict[str, Any] = {"temperature": chance.choice([0, 0.7, 1.5]), "seed": chance.randrange(100)}
    sampling |= chance.choice([{}, {"top_p": 0.9}, {"top_k": 20, "min_p": 0.02}, {"presence_penalty": 0.5}])
    form = chance.choice([{}, {}, {}, {"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}}])
    messages = [{"role": "user", "content": text}]
    match chance.randrange(5):
        case 0:
            more = chance.choice([{}, {"logprobs": 3}, {"n": 2}, {"echo": True}])
            return "/v1/completions", {"prompt": text, "max_tokens": most, **sampling, **more, **form}
        case 1:
            more = chance.choice([{}, {"logprobs": True, "top_logprobs": 2}, {"n": 3}])
            return "/v1/chat/completions", {"messages": messages, "max_tokens": most, **sampling, **more, **form}
        case 2:
            return "/v1/chat/completions", {"messages": messages, "max_tokens": most, "stream": True, **sampling}
        case 3:
            options = {"num_predict": most, "seed": sampling["seed"], "temperature": sampling["temperature"]}
            return "/api/chat", {"model": "demo", "messages": messages, "stream": False, "options": options}
        case _:
            return "/completion", {"prompt": text, "n_predict": most, "n_probs": 2, **sampling}


_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def own(value: Any) -> Any:
    """Return of a response what must be the same."""
    if isinstance(value, dict):
        return {name: own(each) for name, each in value.items() if name not in _APART | _OF_TIME}
    return [own(each) for each in value] if isinstance(value, list) else value


def of_stream(content: bytes) -> list[Any]:
    """Return the text of a stream, put together: its pieces may be cut elsewhere."""
    said: dict[int, list[Any]] = {}
    for line in content.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text, end = said.setdefault(choice["index"], ["", None])
                said[choice["index"]] = [text + (choice["delta"].get("content") or ""), choice["finish_reason"] or end]
    return [said[index] for index in sorted(said)]


async def answer(port: int, request: tuple[str, dict[str, Any]]) -> str:
    """Return an answer as text that must be the same; a refusal for want of room is repeated."""
    path, body = request
    while (reply := await call(port, path, body)).status == 503:
        await asyncio.sleep(0.1)
    if reply.status != 200:
        raise RuntimeError(f"{path} {body}: {reply.status} {reply.content[:300]!r}")
    return json.dumps(of_stream(reply.content) if body.get("stream") is True else own(reply.json()), sort_keys=True)


async def run(server: Server, count: int, seed: int) -> Findings:
    """Answer so many requests alone and in company; return what differs."""
    found, chance = Findings(), random.Random(seed)
    requests = [random_request(chance) for _ in range(count)]
    alone = [await answer(server.port, each) for each in requests]
    order = list(range(count))
    chance.shuffle(order)
    differing: list[int] = []

    async def compare(number: int) -> None:
        said = await answer(server.port, requests[number])
        if said != alone[number]:
            differing.append(number)
            found.expect(False, f"{requests[number]}\n  alone      {alone[number]}\n  in company {said}")

    await at_once([partial(compare, number) for number in order], COMPANY)
    found.counts = {"requests": count, "answers that differ": len(differing)}
    return found


def main() -> int:
    """Compare answers and print how many differ."""
    options = arguments(__doc__, 10_000).parse_args()
    with serving(options.model, "--parallel", str(COMPANY)) as server:
        return asyncio.run(run(server, options.count, options.seed)).show()


if __name__ == "__main__":
    sys.exit(main())
