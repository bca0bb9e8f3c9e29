"""The system prompt of a server is that of conversations that have none."""

from __future__ import annotations

from tests.server.conftest import serving

OWN, SERVER = {"role": "system", "content": "Be long."}, {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hello"}


def test_a_conversation_without_a_system_prompt_gets_that_of_the_server(tmp_path, server):
    def prompt(of, *messages):
        return of.call("/apply-template", {"messages": messages})[1]["prompt"]

    with serving(tmp_path, "demo", "--system", "Be brief.") as found:
        assert prompt(found, USER) == prompt(server, SERVER, USER) != prompt(server, USER)
        assert prompt(found, OWN, USER) == prompt(server, OWN, USER)
        body = {"model": "demo", "messages": [USER], "max_tokens": 4, "temperature": 0}
        ours = found.call("/v1/chat/completions", body)[1]
        theirs = server.call("/v1/chat/completions", {**body, "messages": [SERVER, USER]})[1]
        assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
        assert ours["choices"][0]["message"] == theirs["choices"][0]["message"]
