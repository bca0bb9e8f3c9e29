"""Items of OpenAI's responses, and the events by which a stream builds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rung.engine.openai_forms import chat_logprobs
from rung.server.api.chat_parser import FunctionCall, Part, Reasoning, Text
from rung.server.api.openai_fields import new_id

#: An event: its name, and its fields without ``sequence_number``.
Event = tuple[str, dict[str, Any]]


class Output:
    """Build the items of an answer from its parts. ``entries`` of tokens go with the text that follows them."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.thought = ""
        self._open: Text | Reasoning | None = None
        self._entries: list[dict[str, Any]] = []

    def push(self, parts: Iterable[Part], entries: Iterable[dict[str, Any]] = ()) -> Iterator[Event]:
        """Yield the events of parts."""
        self._entries += entries
        for part in parts:
            if isinstance(part, FunctionCall):
                yield from self._close("completed")
                yield from self._call(part)
            else:
                if type(part) is not type(self._open):
                    yield from self._close("completed")
                    yield from self._begin(part)
                yield from self._go_on(part)

    def finish(self, status: str) -> Iterator[Event]:
        """Yield the events that end the last item; an answer has one at least."""
        if not self.items:
            yield from self._begin(Text(""))
        yield from self._close(status)

    @property
    def _at(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _begin(self, part: Text | Reasoning) -> Iterator[Event]:
        self._open = part
        item: dict[str, Any] = {"id": new_item_id("msg"), "type": "message", "role": "assistant"}
        content: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        if isinstance(part, Reasoning):
            item = {"id": new_item_id("rs"), "type": "reasoning", "summary": []}
            content = {"type": "reasoning_text", "text": ""}
        self.items.append(item | {"status": "in_progress", "content": []})
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": dict(self.items[-1])}
        yield "response.content_part.added", {**self._at, "content_index": 0, "part": dict(content)}
        self.items[-1]["content"] = [content]

    def _go_on(self, part: Text | Reasoning) -> Iterator[Event]:
        """Yield the event of a piece of the item that is open."""
        content = self.items[-1]["content"][0]
        content["text"] += part.text
        found: dict[str, Any] = {**self._at, "content_index": 0, "delta": part.text}
        logprobs, self._entries = chat_logprobs(self._entries), []
        if isinstance(part, Reasoning):
            self.thought += part.text
            yield "response.reasoning_text.delta", found
        else:
            assert logprobs is not None
            content["logprobs"] = [*content["logprobs"], *logprobs["content"]]
            yield "response.output_text.delta", found | {"logprobs": logprobs["content"]}

    def _close(self, status: str) -> Iterator[Event]:
        """Yield the events that end the item that is open, if one is."""
        if self._open is None:
            return
        item, content = self.items[-1], self.items[-1]["content"][0]
        at = {**self._at, "content_index": 0}
        if isinstance(self._open, Reasoning):
            yield "response.reasoning_text.done", {**at, "text": content["text"]}
        else:
            yield "response.output_text.done", {**at, "text": content["text"], "logprobs": content["logprobs"]}
        yield "response.content_part.done", {**at, "part": content}
        item["status"], self._open = status, None
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}

    def _call(self, call: FunctionCall) -> Iterator[Event]:
        item = {
            "id": new_item_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.id,
            "name": call.name,
            "arguments": "",
        }
        self.items.append(item)
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": dict(item)}
        yield "response.function_call_arguments.delta", {**self._at, "delta": call.arguments}
        item |= {"status": "completed", "arguments": call.arguments}
        yield "response.function_call_arguments.done", {**self._at, "name": call.name, "arguments": call.arguments}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}


def new_item_id(kind: str) -> str:
    """Return the name of a response (``resp``) or of an item."""
    return new_id(kind).replace("-", "_", 1)
