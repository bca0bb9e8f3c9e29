"""Refusals of requests, and how the families of endpoints write them down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rung.server.protocol import Failed, NumberTooLarge


class ApiError(Exception):
    """A refusal: HTTP status, a sentence, the field it is about, OpenAI's code for it, and the seconds after which the
    request should come again (0: nobody knows). ``closes``: the connection ends with it. ``numbers`` are facts by name,
    as of a prompt that is too long."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float = 0,
        closes: bool = False,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.numbers = dict(numbers or {})
        self.retry_after, self._closes = retry_after, closes or status in (408, 413)

    @classmethod
    def of_failure(cls, failed: Failed) -> ApiError:
        """Translate a failure of the engine for a client."""
        message = " ".join([failed.cause, *(f"({fact})" for fact in failed.facts)])
        retry_after = 1 if failed.status == 503 else 0
        return cls(failed.status, message, code=failed.code, retry_after=retry_after, numbers=failed.numbers)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that go with it."""
        found = {}
        if self.retry_after:  # OpenAI's and Anthropic's clients read milliseconds, the others whole seconds
            found["retry-after"] = str(math.ceil(self.retry_after))
            found["retry-after-ms"] = str(math.ceil(1000 * self.retry_after))
        if self._closes:
            found["connection"] = "close"  # what comes of the body is no request
        return found


#: What tasks are cancelled with where the server stops before they have ended.
STOPPING = "the server stops"


def stopping() -> ApiError:
    """Return the error of answers that have not ended when the server stops."""
    return ApiError(503, "The server stops, and this answer had not ended.", code="server_stopping")


#: Words of OpenAI and of Anthropic for a status.
_OPENAI = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "server_overloaded"}
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def openai_error(error: ApiError) -> dict[str, Any]:
    """Return an error as OpenAI writes it."""
    kind = _OPENAI.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    if "n_ctx" in error.numbers:
        kind = "exceed_context_size_error"  # llama.cpp's; OpenAI's clients read the code
    return {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code, **error.numbers}
    }


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Return an error as Anthropic writes it."""
    kind = _ANTHROPIC.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def ollama_error(error: ApiError) -> dict[str, Any]:
    """Return an error as ollama writes it."""
    return {"error": error.message}


#: Writes an error down.
ErrorStyle = Callable[[ApiError], Mapping[str, Any]]


def invalid_body(error: Exception) -> ApiError:
    """Return the refusal of a body that is no JSON, or not of the form that its struct says."""
    if isinstance(error, RecursionError):
        return ApiError(400, "The body is nested too deeply.", code="invalid_json")
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, f"The body is no JSON: {text}", code="invalid_json")
    words, _, path = text.partition(" - at `")
    param = path.rstrip("`").removeprefix("$").lstrip(".") or None
    if words.startswith("Object contains unknown field"):
        name = words.split("`")[1]
        param = f"{param}.{name}" if param else name
        return ApiError(400, f"{param} is not supported.", param=param, code="unknown_parameter")
    return ApiError(400, f"{param}: {words}" if param else words, param=param, code="invalid_value")


def number_too_large(error: NumberTooLarge) -> ApiError:
    """Return the refusal of a body with a number that no message to an engine holds."""
    return ApiError(400, f"The body has {error}.", code="invalid_value")
