"""The page of ``rung serve`` itself, with the demo."""

from __future__ import annotations


def test_the_demo_answers_on_the_page_and_says_what_ran_it(browser, server, model):
    expected = model.chat([{"role": "user", "content": "hello"}])
    text = "".join(expected)
    with browser.tab(server.url) as tab:
        tab.wait_text("context 512")
        tab.say("hello")
        assert tab.answer() == text
        tab.wait_text(f"{len(expected.result['tokens'])} tokens · ")
        tab.js("document.querySelector('.cost summary').click()")
        facts = tab.js(
            "Object.fromEntries([...document.querySelectorAll('.cost dt')]"
            ".map((one) => [one.innerText, one.nextSibling.innerText]))"
        )
        assert facts["Runs on"].startswith("cpu")
        assert facts["Memory"].endswith(" MB)")
        assert " MB (predicted " in facts["Memory"]
        assert "tokens/s (predicted " in facts["Speed"]
        assert facts["Prompt"].startswith(f"{expected.result['prompt_tokens']} tokens")
        assert tab.problems == []
        assert all(url.startswith(server.url) for url in tab.requests)


def test_an_answer_has_what_ran_it(server, openai_client):
    answer = openai_client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "hello"}], max_tokens=4
    )
    ran = answer.model_dump()["rung"]
    assert ran["devices"] == ["cpu"]
    assert ran["steps"] == []
    assert ran["measured"]["decode_tokens_per_second"] > 0
    assert ran["predicted"]["memory_bytes"] >= ran["measured"]["memory_bytes"] > 1e6
