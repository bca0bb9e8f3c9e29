"""Chat templates: equal to transformers', and hostile ones end in an error."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from rung.core.errors import TemplateError
from rung.engine.chat import Template

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] "
    "| trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\nTools: ' + (tools | tojson) }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + message.content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
LOOPS = """
    {% for message in messages %}
      {% if message.role == 'assistant' %}
        {% generation %}{{ message.content }}{% endgeneration %}{% continue %}
      {% endif %}
    {{ message | tojson(indent=1) }} {{ {"a": "<é>"} | tojson }} {{ dict(a=1).a }} {{ loop.index }}
      {% if loop.index > 3 %}{% break %}{% endif %}
    {% endfor %}
{{ strftime_now("%Y") }}"""
TEMPLATES = {"gemma": GEMMA, "llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "phi3": PHI3, "loops": LOOPS}
USER = {"role": "user", "content": "  Hello <|im_end|> & \"quotes\" 'n' 🚀\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
TALK: list[dict[str, str]] = [
    USER,
    {"role": "assistant", "content": " Yes?", "reasoning": "hm"},
    {"role": "user", "content": "你好"},
]


def theirs(source: str, messages: list[dict[str, str]], answer: bool) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=answer, **NAMED)
    return str(rendered[0])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", [True, False])
def test_a_template_writes_what_transformers_writes(name: str, answer: bool) -> None:
    template = Template(TEMPLATES[name], NAMED)
    for messages in ([USER], TALK):
        assert template.render(messages, answer=answer) == theirs(TEMPLATES[name], messages, answer)
    if template.has_system_role:
        assert template.render([SYSTEM, *TALK], answer=answer) == theirs(TEMPLATES[name], [SYSTEM, *TALK], answer)


@pytest.mark.parametrize(
    ("name", "has"),
    [("gemma", False), ("mistral", False), ("phi3", False), ("llama3", True), ("qwen", True)],
)
def test_system_text_goes_into_the_first_user_turn_where_there_is_no_system_role(name: str, has: bool) -> None:
    template = Template(TEMPLATES[name], NAMED)
    assert template.has_system_role is has
    found = template.render([SYSTEM, *TALK])
    assert found.count("Be brief.") == 1
    if not has:
        merged = [{"role": "user", "content": "Be brief.\n\n" + USER["content"]}, *TALK[1:]]
        assert found == template.render(merged)
        assert template.render([SYSTEM]) == template.render([{"role": "user", "content": "Be brief."}])


def test_a_template_gets_functions_as_text_and_a_date_where_it_reads_no_tools() -> None:
    template = Template("{{ functions + ' ' + datetime + ' ' + messages[0].content }}")
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    today = datetime.now().strftime("%b %d %Y")
    assert (
        template.render([{"role": "user", "content": "Hi"}], tools=[tool])
        == f"{json.dumps([tool], indent=4)} {today} Hi"
    )
    assert template.render([{"role": "user", "content": "Hi"}]) == f"[] {today} Hi"
    assert Template("{{ functions is defined }} {{ tools is none }}").render([USER]) == "False True"


def test_messages_are_left_as_they_were() -> None:
    messages = [dict(SYSTEM), dict(USER)]
    Template(GEMMA, NAMED).render(messages)
    assert messages == [SYSTEM, USER]


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(TemplateError) as caught:
        Template(GEMMA, NAMED).render([USER, USER])
    assert "must alternate" in str(caught.value)
    assert "rung run MODEL --raw" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not end within"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{{ 'x' * 99 }}{% endfor %}{% endfor %}", "characters"),
        ("{{ 10 ** (10 ** 9) }}", "did not end within"),
        ("{{ 'x' * 10 ** 9 }}", "more memory"),
        ("{{ [0] * 10 ** 9 }}", "more memory"),
        ("{{ '%2000000000d' % 1 }}", "more memory"),
        ("{{ 'x' | center(10 ** 10) }}", "more memory"),
        ("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "more memory"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ ().__class__ }}", "attribute '__class__'"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "attribute '__class__'"),
        ("{{ messages.append(1) }}", "attribute 'append'"),
        ("{{ '{0.__class__}'.format(messages) }}", "attribute '__class__'"),
        ("{{ messages | attr('__class__') }}", "__class__"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested too deeply"),
        ("{{ messages[0].content", "line 1"),
        ("{% include 'other' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('not today') }}", "not today"),
        ("x" * (2**20 + 1), "1 MB long"),
    ],
)
def test_a_hostile_template_ends_in_an_error_in_time(source: str, words: str) -> None:
    loops = words == "did not end within"  # only these are to meet the deadline, however busy the machine is
    with pytest.raises(TemplateError) as caught:
        Template(source, NAMED, seconds=0.5 if loops else 60.0).render([USER])
    assert words in str(caught.value)


def test_after_a_template_was_ended_the_next_rendering_works() -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages|length > 1 %}" + loops + "{% endif %}ok"
    template = Template(source, seconds=1.0)
    assert template.render([USER]) == "ok"
    with pytest.raises(TemplateError):
        template.render([USER, USER])
    assert template.render([USER]) == "ok"


def test_a_closed_template_renders_again_and_leaves_no_process() -> None:
    template = Template("ok")
    assert template.render([]) == "ok"
    process = template._child._process  # type: ignore[union-attr]
    template.close()
    assert process.poll() is not None
    assert template.render([]) == "ok"


def test_a_long_conversation_is_no_problem() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "é" * 200_000}] * 5
    assert len(Template(LLAMA3, NAMED).render(messages)) > 1_000_000
