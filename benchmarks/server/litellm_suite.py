"""litellm's calls on ``rung serve``, through each of its providers that speaks an API of the server.

    python -m benchmarks.server.litellm_suite --python PYTHON [--model MODEL]

PYTHON is an interpreter that has litellm, jsonschema, pytest and pytest-asyncio. The model is the demo unless another
one is named. Prints the tests that do not pass, and sums.
"""

from __future__ import annotations

import sys

from benchmarks.server import parts
from benchmarks.server.langchain_suite import outcomes, show

#: The tests, for PYTHON: providers of the APIs of OpenAI, Anthropic and ollama.
_SUITE = """
import asyncio, json, os
import jsonschema, litellm, pytest

URL, NAME = os.environ["RUNG_URL"], os.environ["RUNG_MODEL"]
WITHOUT_V1 = ("anthropic", "ollama_chat", "ollama")
CHATS = ("openai", "hosted_vllm", "lm_studio", "llamafile", "anthropic", "ollama_chat")
each_chat = pytest.mark.parametrize("provider", CHATS)
MESSAGES = [{"role": "user", "content": "What is a plan?"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "measure", "description": "Measure it.", "parameters": SCHEMA}}


def shared(provider):
    base = URL if provider in WITHOUT_V1 else URL + "/v1"
    return {"model": f"{provider}/{NAME}", "api_base": base, "api_key": "none"}


def options(provider, **more):
    return {**shared(provider), "num_retries": 0, "temperature": 0, "max_tokens": 24, **more}


def text(answer):
    return answer.choices[0].message.content


@pytest.fixture(scope="session")
def expected():
    return litellm.completion(messages=MESSAGES, **options("openai"))


class TestLitellm:
    @each_chat
    def test_an_answer_is_that_of_all_providers(self, provider, expected):
        found = litellm.completion(messages=MESSAGES, **options(provider))
        assert text(found) == text(expected)
        assert found.usage.completion_tokens == expected.usage.completion_tokens
        assert found.usage.prompt_tokens == expected.usage.prompt_tokens
        assert found.choices[0].finish_reason == expected.choices[0].finish_reason

    @each_chat
    def test_a_stream_is_the_answer(self, provider, expected):
        parts = list(litellm.completion(messages=MESSAGES, stream=True, **options(provider)))
        assert "".join(each.choices[0].delta.content or "" for each in parts) == text(expected)
        assert litellm.stream_chunk_builder(parts).choices[0].finish_reason == expected.choices[0].finish_reason

    @each_chat
    def test_eight_at_once_are_each_alone(self, provider):
        questions = [[{"role": "user", "content": f"What is a plan of {number} kernels?"}] for number in range(8)]

        async def together():
            calls = (litellm.acompletion(messages=each, **options(provider)) for each in questions)
            return [text(each) for each in await asyncio.gather(*calls)]

        alone = [text(litellm.completion(messages=each, **options(provider))) for each in questions]
        assert asyncio.run(together()) == alone

    @each_chat
    def test_a_required_tool_is_called_by_its_schema(self, provider):
        more = {} if provider == "ollama_chat" else {"tool_choice": "required"}
        answer = litellm.completion(messages=MESSAGES, tools=[TOOL], **more, **options(provider, max_tokens=96))
        calls = answer.choices[0].message.tool_calls
        if more or calls:
            assert calls[0].function.name == "measure"
            jsonschema.validate(json.loads(calls[0].function.arguments), SCHEMA)
            said = {"role": "tool", "tool_call_id": calls[0].id, "content": "3 mm"}
            history = [*MESSAGES, answer.choices[0].message.model_dump(), said]
            assert litellm.completion(messages=history, tools=[TOOL], **options(provider)).usage.completion_tokens > 0

    @pytest.mark.parametrize("provider", [each for each in CHATS if each != "anthropic"])
    def test_a_form_is_kept(self, provider):
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
        answer = litellm.completion(messages=MESSAGES, response_format=form, **options(provider, max_tokens=96))
        jsonschema.validate(json.loads(text(answer)), SCHEMA)

    @each_chat
    def test_a_prompt_that_is_too_long_is_a_bad_request(self, provider):
        with pytest.raises((litellm.BadRequestError, litellm.APIConnectionError), match="(?i)context|tokens"):
            litellm.completion(messages=[{"role": "user", "content": "kernel " * 20000}], **options(provider))

    @pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
    def test_a_number_out_of_range_is_a_bad_request(self, provider):
        with pytest.raises(litellm.BadRequestError, match="top_p"):
            litellm.completion(messages=MESSAGES, **options(provider, top_p=9))

    def test_a_text_goes_on(self):
        answer = litellm.text_completion(prompt="the model", **options("text-completion-openai"))
        assert answer.choices[0].text

    def test_ollamas_generate_answers(self):
        assert text(litellm.completion(messages=MESSAGES, **options("ollama")))

    @pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "ollama"])
    def test_embeddings(self, provider):
        found = litellm.embedding(input=["a plan", "a kernel"], **shared(provider))
        assert len(found.data) == 2 and found.data[0]["embedding"] != found.data[1]["embedding"]

    def test_responses_go_on(self):
        more = {**shared("openai"), "max_output_tokens": 16}
        first = litellm.responses(input="What is a plan?", **more)
        again = litellm.responses(input="And a kernel?", previous_response_id=first.id, **more)
        assert first.output and again.output
        assert again.usage.input_tokens > first.usage.input_tokens
"""


def main() -> int:
    """Run the suite and print what came of it."""
    parser = parts.arguments(__doc__, 0)
    parser.add_argument("--python", required=True)
    parser.add_argument("--messages", action="store_true", help="print all that pytest wrote")
    options = parser.parse_args()
    with parts.serving(options.model, "--any-name") as server:
        url = f"http://127.0.0.1:{server.port}"
        found, said = outcomes(options.python, url, "rung", _SUITE, "TestLitellm")
    return 1 if show("litellm", "rung", found, said, whole=options.messages) else 0


if __name__ == "__main__":
    sys.exit(main())
