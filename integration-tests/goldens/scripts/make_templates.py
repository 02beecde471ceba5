"""Writes templates.json: chat templates in the shapes of well-known families, rendered by transformers.

usage: make_templates.py
The templates are short ones of our own that use the same constructs. The rendering is transformers' own `render_jinja_template`
with a fixed clock; what a template refuses is kept as its text.
"""

import datetime
import json

import jinja2
import transformers
from transformers.utils import chat_template_utils

import common as c

NOW = datetime.datetime(2026, 11, 30, 16, 1, 1)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' -%}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant!') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content']|trim + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, with the exception of an initial system message!') }}
    {%- endif %}
{%- endfor %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {{- message.tool_calls[0].function.arguments | items | list }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}{{- tool_call.arguments | tojson }}{%- endfor %}
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

DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', n=0) %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}{{ 'tool' }}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{%- if ns.is_tool %}{{'<|end|>'}}{%- else %}{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + eos_token}}{%- endif %}\
{%- set ns.n = ns.n + 1 %}{%- endif %}\
{%- endfor -%}\
{% if ns.is_tool %}{{'<|end|>'}}{% endif %}{{ '[' ~ ns.n ~ ']' }}\
{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}
"""

LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{% generation %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}
"""

CONSTRUCTS = """\
{%- macro turn(role, text='', last=false) -%}
    [{{ role|upper }}|{{ text|replace('\\n', ' ')|trim }}{{ '|last' if last }}]
{%- endmacro %}
{%- set roles = messages|map(attribute='role')|unique|list %}
{{- roles|join(',') }}{{ '\\n' }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 4 %}{% break %}{% endif %}
    {{- turn(m.role, m.content, last=loop.last) }}
    {%- if loop.previtem is defined and loop.previtem.role == m.role %}{{- '!' }}{% endif %}
    {%- generation %}{{- m['content'].split(' ')[0]|tojson -}}{% endgeneration %}
{%- endfor %}
{% set users = messages|selectattr('role', 'equalto', 'user')|list %}
{{ users|length }} of {{ messages|length }}, {{ messages|rejectattr('role', 'in', ['user', 'system'])|list|length }} left
{{ {'b': [1, 2.5, none, true], 'a': "é<&'>\\n"}|tojson }}
{{ {'b': [1, {'x': {}}], 'a': []}|tojson(indent=2) }}
{{ {'b': 1, 'a': 'é'}|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}
{{ (messages|first).content|length }} {{ (messages|last)['role'].title() }} {{ messages[-1].content[:3] }} {{ messages[0].get('name', 'none') }}
{%- set x = {'k': 1} %}
{% for k, v in x.items() %}{{ k }}={{ v }}{% endfor %}
{% filter upper %}{{ pad_token }}{{ unk_token }}{% endfilter %}
{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ 'a' ~ 1 ~ none ~ true }} {{ 'a' in 'cat' }} {{ [1, 2] + [3] }} {{ 'ab' * 2 }}
{{ '%s is %d' | format('x', 3) }} {{ messages is iterable }} {{ messages[0] is mapping }} {{ undefined_name is defined }}{{ undefined_name }}
{# a comment #}{% raw %}{{ raw }}{% endraw %}
{{- strftime_now('%Y-%m-%d %H:%M %A %j %-d %p') }}
"""



def message(role):
    return lambda content: {"role": role, "content": content}


S, U, A = message("system"), message("user"), message("assistant")

DIALOGUES = {
    "only_user": [U("Hello, who are you?")],
    "system_user": [S("You are terse.\n"), U("  Name three rivers.  ")],
    "turns": [U("2+2?"), A("<think>\nadd\n</think>\n\n4"), U("Doubled?\n"), A(" 8 "), U("Thanks é!")],
    "system_turns_end": [S("Answer in French."), U("Good morning"), A("<think>\nhm\n</think>\n\nBonjour <b>&'!")],
    "two_users": [U("one"), U("two")],
    "late_system": [U("hi"), A("ho"), S("late"), U("")],
}
TEMPLATES = {"chatml": CHATML, "zephyr": ZEPHYR, "mistral": MISTRAL, "llama3": LLAMA3, "qwen3": QWEN3, "deepseek": DEEPSEEK,
             "llama2": LLAMA2, "constructs": CONSTRUCTS}
VALUES = {"qwen3": {"enable_thinking": False}, "llama3": {"date_string": "1 Jan 2000"}}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(template, messages, add, values):
    return chat_template_utils.render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=add, **TOKENS, **values)[0][0]


def main():
    chat_template_utils.datetime = Clock
    chat_template_utils._compile_jinja_template.cache_clear()
    out = []
    for name, template in TEMPLATES.items():
        cases = []
        for dialogue, messages in DIALOGUES.items():
            for add, values in [(True, {}), (False, {})] + ([(True, VALUES[name])] if name in VALUES else []):
                case = {"dialogue": dialogue, "add_generation_prompt": add, "values": values}
                try:
                    case["rendered"] = render(template, messages, add, values)
                except jinja2.exceptions.TemplateError as error:
                    case["refused"] = str(error)
                cases.append(case)
        out.append({"name": name, "template": template, "cases": cases})
    (c.GOLDENS / "templates.json").write_text(json.dumps(
        {"versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__}, "unix_s": int(NOW.replace(
            tzinfo=datetime.timezone.utc).timestamp()), "tokens": TOKENS, "dialogues": DIALOGUES, "templates": out}, indent=1) + "\n")
    print(sum(len(t["cases"]) for t in out), "cases,", sum("refused" in x for t in out for x in t["cases"]), "refused")


if __name__ == "__main__":
    main()
