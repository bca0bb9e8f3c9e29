"""Test what people call first: a text where ids or messages belong, nothing where a model or an error belongs."""

from __future__ import annotations

import pytest
import torch

import rung
from rung.core.errors import UsageError


@pytest.fixture(scope="module")
def model():
    return rung.load("demo")


def test_a_text_has_the_logits_of_its_tokens(model) -> None:
    ids = model.tokenizer.encode("Hello there", bos=True)
    assert len(ids) > 1
    assert torch.equal(model.logits("Hello there"), model.logits(ids))


def test_a_text_is_a_message_of_a_user(model) -> None:
    said = "".join(model.chat("Hi", max_tokens=6))
    assert said
    assert said == "".join(model.chat([{"role": "user", "content": "Hi"}], max_tokens=6))


@pytest.mark.parametrize("messages", [[], ["Hi"], [{"role": "user"}], {"role": "user", "content": "Hi"}, [{}]])
def test_what_are_no_messages_is_told_what_they_look_like(model, messages) -> None:
    with pytest.raises(UsageError) as caught:
        model.chat(messages)
    assert caught.value.ways_out[0] == 'model.chat("Hi")'


def test_explain_takes_the_error_that_is_handled_and_else_says_how() -> None:
    with pytest.raises(UsageError, match="no error to explain"):
        rung.explain()
    try:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    except RuntimeError:
        assert rung.explain().cause == "gpu-out-of-memory"


def test_check_without_a_model_says_how_to_ask() -> None:
    with pytest.raises(UsageError) as caught:
        rung.check()
    assert 'rung.check("llama 3.1 8b", device="p2200")' in caught.value.ways_out


@pytest.mark.parametrize(
    "messages", [[], [{"role": "assistant", "content": "I"}], [{"role": "user", "content": "I"}] * 2]
)
def test_only_an_assistants_message_after_others_can_be_continued(model, messages):
    with pytest.raises(UsageError, match="can be continued"):
        model.chat_text(messages, continues_last=True)
    begun = model.chat_text([{"role": "user", "content": "hello"}])
    both = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "I am"}]
    assert model.chat_text(both, continues_last=True) == begun + "I am"
