#!/usr/bin/env python3
"""Compares our chat-template interpreter with Jinja2, byte for byte, on random conversations and random templates.

    tests/template_vs_jinja2.py DUMP MODEL_DIR... [--count N] [--seed N]

DUMP is the program template_dump; every MODEL_DIR holds a chat_template.jinja. Needs jinja2 3.1.6, set up as Hugging
Face does: sandboxed, trim_blocks, lstrip_blocks, loop controls, tojson without escapes. The conversations are also
rendered by templates in other families' style. Where Jinja2 fails, we must fail; and no text that came from a value may
be called trusted: values are written in letters that no template uses.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.sandbox

GREEK = "αβγδεΑΒΓΔσςΣ"
STYLES = {
    "chatml": """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content | trim }}{% else %}
{%- for part in message.content or [] if part.type == 'text' %}{{ part['text'] }}{% endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "kimi_k2": """{%- macro body(m) -%}
  {%- if m.content is string -%}{{ m.content }}{%- else -%}
  {%- for c in m.content or [] -%}{{ c.text if c.type == 'text' else '<|media_start|>' }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- set ns = namespace(ids=[], n=0) -%}
{%- for m in messages -%}
  {%- if loop.first and m.role != 'system' -%}<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>{%- endif -%}
  <|im_{{ m.role if m.role in ['user', 'assistant'] else 'system' }}|>{{ m.name or m.role }}<|im_middle|>
  {%- if m.role == 'tool' -%}## Return of {{ ns.ids.pop(0) if ns.ids else m.tool_call_id }}
{{ body(m) }}
  {%- else -%}{{ body(m) }}{%- endif -%}
  {%- for call in m.tool_calls or [] -%}
    {%- set id = 'functions.' + call.function.name + ':' + (ns.n | string) -%}
    {%- set _ = ns.ids.append(id) -%}{%- set ns.n = ns.n + 1 -%}
    <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>
    {%- if call.function.arguments is string -%}{{ call.function.arguments }}
    {%- else -%}{{ call.function.arguments | tojson }}{%- endif -%}<|tool_call_end|>
  {%- endfor -%}
  <|im_end|>
{%- endfor -%}
""",
    "strict": """{% if messages and messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{{ bos_token }}{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Roles must alternate: ' ~ message.role) }}
{% endif %}
{% if message.role == 'user' %}{{ '[INST] ' ~ (system ~ ' ' if loop.first and system is defined) ~ message['content']
  ~ ' [/INST]' }}{% else %}{{ message.content }}{{ eos_token }}{% endif %}
{% endfor %}
""",
    "split": """{%- for m in messages | selectattr('role', 'in', ['user', 'assistant']) | list -%}
{{ loop.index }}/{{ loop.length }} {{ m.role | upper }}: {% set t = m.content if m.content is string else '' -%}
{%- if '</think>' in t -%}{%- set t = t.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}
{{ t.strip() | replace('α', '<a>') | indent(2) }}{{ '' if loop.last else '\\n' }}
{%- endfor -%}
{{ messages | map(attribute='role') | unique | join(',') }} {{ messages | rejectattr('role', 'eq', 'user') | list | length }}
""",
}


def words(rnd, low=0, high=6, extra=("\n", " ", "\t", "  ", "\u3000", "日本", "é", "😀", "'", '"', "\\", "<|im_end|>",
                                     "</think>", "{{ 1 }}", "\x01", "\u2028", "0", "-3")):
    return "".join(rnd.choice(extra) if rnd.random() < 0.4 else "".join(rnd.choice(GREEK) for _ in range(rnd.randint(1, 4)))
                   for _ in range(rnd.randint(low, high)))


def greek(rnd, low=0, high=5):
    return "".join(rnd.choice(GREEK + " ") for _ in range(rnd.randint(low, high)))


def random_json(rnd, depth=0):
    kind = rnd.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rnd.randint(-10**rnd.randint(0, 18), 10**rnd.randint(0, 18))
    if kind == 1:
        return rnd.choice([rnd.uniform(-1e3, 1e3), 10.0**rnd.randint(-20, 20), 1.5, -0.0, 1e16, 123456789012345680.0])
    if kind == 2:
        return rnd.choice([True, False, None])
    if kind < 6:
        return words(rnd)
    if kind == 6:
        return [random_json(rnd, depth + 1) for _ in range(rnd.randint(0, 3))]
    return {words(rnd, 1, 2): random_json(rnd, depth + 1) for _ in range(rnd.randint(0, 3))}


def conversation(rnd):
    messages = []
    if rnd.random() < 0.5:
        messages.append({"role": "system", "content": words(rnd)})
    calls = 0
    for turn in range(rnd.randint(0, 5)):
        roll = rnd.random()
        if roll < 0.45 or turn == 0:
            content = words(rnd)
            if rnd.random() < 0.25:
                content = [rnd.choice([{"type": "text", "text": words(rnd)}, {"type": "image", "image": "x"},
                                       {"type": "image_url", "image_url": {"url": "x"}}, {"type": "video_url"}])
                           for _ in range(rnd.randint(0, 3))]
            message = {"role": "user", "content": content}
        elif roll < 0.75:
            message = {"role": "assistant", "content": words(rnd)}
        else:
            ids = [rnd.choice([f"functions.f:{calls + i}", "call_" + greek(rnd)]) for i in range(rnd.randint(1, 2))]
            calls += len(ids)
            messages.append({"role": "assistant", "content": rnd.choice([None, "", words(rnd)]), "tool_calls": [
                {"id": i, "type": "function", "function": {"name": greek(rnd, 1), "arguments": rnd.choice(
                    ["{}", words(rnd), {words(rnd): random_json(rnd)}])}} for i in ids]})
            messages += [{"role": "tool", "tool_call_id": i, "content": words(rnd)} for i in ids if rnd.random() < 0.9]
            continue
        if message["role"] == "assistant" and rnd.random() < 0.5:
            message["reasoning_content"] = words(rnd)
        if rnd.random() < 0.2:
            message["name"] = greek(rnd, 1)
        messages.append(message)
    for message in messages:
        if message["role"] == "assistant" and "tool_calls" in message and rnd.random() < 0.5:
            message["reasoning_content"] = words(rnd)
    case = {"messages": messages, "add_generation_prompt": rnd.random() < 0.8}
    case["extra"] = rnd.choice([{}, {}, {"thinking": True}, {"thinking": False}, {"thinking": "false"}])
    case["extra"] |= {"bos_token": "β", "eos_token": "ε"}
    if rnd.random() < 0.4:
        case["tools"] = [{"type": "function", "function": {
            "name": greek(rnd, 1), "description": words(rnd), "parameters": rnd.choice([
                {"type": "object", "properties": {greek(rnd, 1): {"type": "string", "description": words(rnd)}}},
                {"type": "object", "properties": {"x": {"allOf": [random_json(rnd)]}}}])}}
            for _ in range(rnd.randint(1, 2))]
    return case


class Templates:
    """Random templates of the subset; expressions are mostly of the right type."""

    CONTEXT = {"s": "αβ γΔ\nδ", "t": " Σας\t", "e": "", "n": 3, "m": -7, "f": 2.5, "b": True, "z": None, "l": [3, 1, 2],
               "w": ["γ", "Α", "β", "α"], "d": {"α": 1, "β": [1, {"γ": None}], "items": "δ"}, "q": [],
               "r": [{"a": 2, "c": "β"}, {"a": 1, "c": "α"}, {"a": 2}]}

    def __init__(self, rnd):
        self.rnd = rnd
        self.loops = 0
        self.macros = []

    def pick(self, *options):
        return self.rnd.choice(options)

    def number(self, depth):
        if depth <= 0 or self.rnd.random() < 0.3:
            return self.pick("n", "m", "f", "p", str(self.rnd.randint(0, 9)), "1.5", "b", "2e3", "1_000")
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.pick(f"({a} {self.pick('+', '-', '*', '/', '//', '%')} {b})", f"-{self.pick('n', 'm', 'f', '2')}",
                         f"({self.text(depth - 1)})|length", f"{self.list(depth - 1)}|length", f"({a})|abs",
                         f"[{a}, {b}]|max", f"[{a}, {b}]|min", f"({a})|int", f"({a})|float", "l|sum", "l|first", "l[-1]",
                         f"({self.text(depth - 1)}).find({self.text(0)})", f"({a} if {self.boolean(depth - 1)} else {b})",
                         f"'{self.rnd.randint(-9, 9)}'|int", "'2.5'|float", "'x'|int(4)", "n ** 2", "r|sum(attribute='a')",
                         f"({a})|round", f"({a})|round(1, 'floor')", f"({self.text(depth - 1)}).count('α')")

    def text(self, depth):
        if depth <= 0 or self.rnd.random() < 0.25:
            return self.pick("s", "t", "e", "o", "'X y'", '"<|a|>"', "'it\\'s'", "'\\u03b1\\n'", "'a' 'b'", "w[0]")
        a, b = self.text(depth - 1), self.text(depth - 1)
        case = self.pick("upper", "lower", "title", "capitalize", "trim", "string", "tojson", "reverse")
        method = self.pick("strip()", "lstrip()", "rstrip()", "upper()", "lower()", "title()", "capitalize()",
                           "strip('α ')", "replace('α', 'Q')", "removeprefix('α')", "removesuffix('δ')")
        return self.pick(f"({a} + {b})", f"({a} ~ {self.any(depth - 1)})", f"({a})|{case}", f"({a}).{method}",
                         f"({a})[{self.rnd.randint(-4, 4)}:]", f"({a})[::{self.pick(-2, -1, 1, 2)}]", f"({a})[{self.pick(0, -1)}]",
                         f"({a})|replace({b}, 'W')", f"({a})|replace('', '.', 2)", f"{self.list(depth - 1)}|join({b})",
                         f"({a} if {self.boolean(depth - 1)} else {b})", f"({a} if {self.boolean(depth - 1)})",
                         f"({a} or {b})", f"({a} and {b})", f"({self.any(depth - 1)})|tojson", f"({a} * {self.pick(0, 1, 2)})",
                         f"({self.any(depth - 1)})|string", f"({a})|default('D', true)", "missing|default('D')",
                         f"({a})|indent({self.pick(1, 2)}, {self.pick('true', 'false')}, {self.pick('true', 'false')})",
                         f"d|tojson(indent={self.pick(0, 2)})", "d|tojson(ensure_ascii=true)", "d|tojson(sort_keys=true)",
                         "d|tojson(separators=(',', ':'))", "w|join", "r|join('+', attribute='a')", "d['items']",
                         f"({a})|first", f"({a})|last", f"','.join(({a}).split())")

    def list(self, depth):
        if depth <= 0 or self.rnd.random() < 0.3:
            return self.pick("l", "w", "q", "[1, 'x', none]", "range(n)", "range(5, 0, -2)", "[]", "['B', 'a']")
        a = self.list(depth - 1)
        return self.pick(f"{a}[{self.rnd.randint(-3, 3)}:]", f"{a}[:{self.rnd.randint(-3, 3)}]", f"{a}[::-1]", f"({a}|list)",
                         f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", "(l|sort)", "(w|sort(reverse=true))",
                         "(w|sort(case_sensitive=true))", "(w|unique|list)", f"({a}|reverse|list)", "(d|list)",
                         "(l|map('string')|list)", "(r|map(attribute='c', default='-')|list)", "(l|select('odd')|list)",
                         "(l|reject('gt', 1)|list)", "(r|selectattr('c')|map(attribute='a')|list)", "(w + l)", "(l * 2)",
                         f"({self.text(depth - 1)}).split()", f"({self.text(depth - 1)}).split('α', {self.pick(-1, 1)})",
                         f"({self.text(depth - 1)}).rsplit(none, 1)", f"({self.text(depth - 1)}).splitlines()",
                         f"({self.text(depth - 1)}|list)", "d.keys()|list", "d.values()|list", "d.items()|list", "d|items|list",
                         "(d|dictsort)[0]|list", "(r|sort(attribute='a')|map(attribute='a')|list)")

    def boolean(self, depth):
        if depth <= 0 or self.rnd.random() < 0.2:
            return self.pick("true", "false", "b", "none", "e", "q", "s", "missing", "missing is defined", "z is none")
        a, b = self.boolean(depth - 1), self.boolean(depth - 1)
        number, text, sequence = self.number(depth - 1), self.text(depth - 1), self.list(depth - 1)
        test = self.pick("defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean",
                         "true", "false", "integer", "float")
        return self.pick(f"not {a}", f"({a} and {b})", f"({a} or {b})", f"{self.any(depth - 1)} is {self.pick('', 'not ')}{test}",
                         f"{number} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.number(depth - 1)}",
                         f"1 < {number} <= 5", f"{text} in {text}", f"{number} not in {sequence}", f"'α' in d",
                         f"{text} == {self.text(depth - 1)}", f"{sequence} == {self.list(depth - 1)}", f"{text} < 'γ'",
                         f"({text}).startswith('α')", f"({text}).endswith(('δ', ' '))", f"n is divisibleby 3", "n is odd",
                         "m is even", f"{number} is in {sequence}", f"{text} is lower", f"{text} is upper", "n is eq 3",
                         "d.α is defined", "d.get('x') is none", "d.get('x', 1) == 1")

    def any(self, depth):
        roll = self.rnd.random()
        if roll < 0.08:
            return self.pick("missing", "d.missing", "l[9]", "z", "d", "d.β", "{'k': n, 'j': [s]}", "(1, s)", "(n,)", "r[0].a",
                             "d['β'][1].γ", "l[0]", "w.0")
        return self.pick(self.number, self.text, self.text, self.list, self.boolean)(depth)

    def tag(self, inside):
        left = self.pick("{%", "{%", "{%-", "{%+")
        return left + self.pick(" ", "") + inside + self.pick(" %}", " %}", " -%}", "\n%}")

    def space(self):
        return self.pick("", "", " ", "\n", "\n  ", " \n", "  ", "\t", "\n\n", "\u2003\n")

    def output(self, depth):
        return self.pick("{{ ", "{{ ", "{{- ", "{{") + self.any(depth) + self.pick(" }}", " }}", " -}}", "}}")

    def block(self, depth):
        return "".join(self.space() + self.statement(depth) + self.space() for _ in range(self.rnd.randint(1, 3)))

    def loop(self, depth):
        self.loops += 1
        target, items = self.pick(("x", self.list(1)), ("x", self.list(1)), ("k, v", "d.items()"), ("(k, v)", "d|dictsort(reverse=true)"))
        head = f"for {target} in {items}" + self.pick("", "", f" if {target[0] if target == 'x' else 'k'} {self.pick('==', '!=')} {self.any(0)}")
        inner = self.block(depth - 1) + self.pick("", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.revindex0 }}", "{{ loop.length }}",
                                                  "{{ x }}", "{{ loop.cycle('p', 'q') }}", "{{ loop.previtem }}", "{{ loop.nextitem }}",
                                                  "{{ loop.changed(x) }}", "{{ k }}", "{{ loop.depth }}", "{% set p = p + 1 %}{{ p }}")
        jump = self.pick("", "", f"{{% if {self.boolean(1)} %}}{self.tag(self.pick('break', 'continue'))}{{% endif %}}")
        self.loops -= 1
        return self.tag(head) + jump + inner + self.pick("", self.tag("else") + self.block(0)) + self.tag("endfor")

    def statement(self, depth):
        roll = self.rnd.random()
        if depth <= 0 or roll < 0.4:
            return self.pick(self.output(2), self.output(3), "text", "Q<|im_end|>", "{# note #}", "{#- note -#}", "{ {", "%}")
        if roll < 0.55:
            return self.loop(depth)
        if roll < 0.7:
            return (self.tag("if " + self.boolean(2)) + self.block(depth - 1) +
                    self.pick("", self.tag("elif " + self.boolean(1)) + self.block(depth - 1)) +
                    self.pick("", self.tag("else") + self.block(depth - 1)) + self.tag("endif"))
        if roll < 0.8:
            return self.tag(self.pick(f"set p = {self.number(2)}", f"set o = {self.text(2)}", f"set x, y = {self.any(0)}, {self.any(1)}",
                                      f"set y = {self.any(2)}")) + "{{ y }}"
        if roll < 0.84:
            return self.tag(self.pick("set o", "set y", "set y | upper | trim")) + self.block(depth - 1) + self.tag("endset") + "{{ y }}"
        if roll < 0.9:
            name = f"m{len(self.macros)}"
            body = self.tag(f"macro {name}(x, y={self.any(1)})") + self.block(depth - 1) + "{{ x }}{{ y }}" + self.tag("endmacro")
            self.macros.append(name)
            return body + f"{{{{ {name}({self.pick('', 'n', 's, 1', 'y=2, x=s')}) }}}}"
        if roll < 0.93:
            return (self.tag("set g = namespace(v=0, u=s)") + self.tag("for x in l") + self.tag("set g.v = g.v + x") +
                    self.tag("endfor") + "{{ g.v }}{{ g.u }}{{ g.missing }}")
        if roll < 0.95:
            return self.tag(f"with x = {self.any(1)}, y = n") + self.block(depth - 1) + self.tag("endwith") + "{{ x }}"
        if roll < 0.97:
            return self.tag(self.pick("filter upper", "filter replace('α', 'o') | trim")) + self.block(depth - 1) + self.tag("endfilter")
        if roll < 0.985:
            return self.tag("raw") + "{{ x }} {% if %}" + self.tag("endraw")
        return ("{% set h = [] %}{{ h.append(s) }}{{ h.append(1) or '' }}{{ h.pop(0) }}{{ h }}{% set _ = h.extend(l) %}"
                "{{ h.insert(1, 'i') }}{{ h }}{{ h.index(2) }}")

    def template(self):
        # Jinja hides a variable it was given from inner scopes if the outermost one assigns it later; nothing is assigned
        # here that was given.
        return "{% set p = 1 %}{% set o = 'O' %}{% set x = 'x' %}{% set y = 2 %}" + self.block(3) + self.pick("", "\n", "\n\n", "\r\n")


def environment():
    env = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def sort_keys(value):
    if isinstance(value, dict):
        return {k: sort_keys(value[k]) for k in sorted(value)}
    return [sort_keys(x) for x in value] if isinstance(value, list) else value


def run(dump, model_dir, cases):
    lines = "\n".join(json.dumps(case) for case in cases) + "\n"
    done = subprocess.run([dump, model_dir], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    assert len(answers) == len(cases), f"{len(answers)} answers to {len(cases)} cases"
    return answers


class Report:
    def __init__(self):
        self.bad, self.errors, self.same = 0, 0, 0

    def check(self, what, case, want, got):
        """`want` is a text, or an exception of Jinja2's."""
        failed = isinstance(want, Exception)
        if failed and "error" in got:
            self.errors += 1
        elif not failed and got.get("text") == want:
            self.same += 1
            whole = want.encode()
            for begin, end in got["trusted"]:
                leaked = set(whole[begin:end].decode()) & set(GREEK)
                if leaked and not case.get("greek_literals"):
                    self.fail(what, case, "trusted text out of values", leaked)
                    break
        else:
            self.fail(what, case, repr(want), got)

    def fail(self, what, case, want, got):
        self.bad += 1
        if self.bad <= 10:
            print(f"--- {what}\n{json.dumps(case, ensure_ascii=False)[:3000]}\nwant {want}\ngot  {got}")


def render(compiled, variables):
    try:
        return compiled.render(**variables)
    except Exception as error:  # whatever Jinja2 or Python raise, it is a failed render
        return error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dump")
    parser.add_argument("model_dir", nargs="+")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rnd = random.Random(args.seed)
    env = environment()
    report = Report()

    conversations = [conversation(rnd) for _ in range(args.count)]
    declared = run(args.dump, args.model_dir[0], [{"tools_only": c.get("tools", [])} for c in conversations])
    sources = {d: None for d in args.model_dir} | STYLES
    for style, source in sources.items():
        compiled = env.from_string(source or (pathlib.Path(style) / "chat_template.jinja").read_text())
        cases = [dict(c) if source is None else c | {"template": source} for c in conversations]
        got = run(args.dump, style if source is None else args.model_dir[0], cases)
        for case, answer, tools in zip(cases, got, declared):
            case["greek_literals"] = style == "split"
            variables = case["extra"] | {"messages": case["messages"], "tools": case.get("tools"),
                                         "add_generation_prompt": case["add_generation_prompt"]}
            if source is None and case.get("tools"):  # the vendor's preparation
                variables["tools"] = sort_keys(case["tools"])
                if "text" in tools:
                    variables["tools_ts_str"] = tools["text"]
            variables = json.loads(json.dumps(variables))  # templates may change what they are given
            report.check(style, case, render(compiled, variables), answer)
    print(f"conversations: {len(conversations)} by {len(sources)} templates, {report.same} equal, "
          f"{report.errors} refused by both, {report.bad} different")

    cases, want = [], []
    for _ in range(args.count * 3):
        source = Templates(rnd).template()
        cases.append({"template": source, "extra": Templates.CONTEXT, "greek_literals": any(c in source for c in ("α", "δ", "γ", "\\u03b1"))})
        try:
            compiled = env.from_string(source)
            want.append(render(compiled, json.loads(json.dumps(Templates.CONTEXT)) | {"messages": [], "tools": None,
                                                                                      "add_generation_prompt": True}))
        except Exception as error:
            want.append(error)
    before = report.same, report.errors
    for case, expected, answer in zip(cases, want, run(args.dump, args.model_dir[0], cases)):
        report.check("random template", case, expected, answer)
    print(f"random templates: {len(cases)}, {report.same - before[0]} equal, {report.errors - before[1]} refused by both")
    print(f"{report.bad} differences")
    return 1 if report.bad or report.same < 2000 else 0


if __name__ == "__main__":
    sys.exit(main())
