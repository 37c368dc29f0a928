"""Turns a case into token ids with a loss mask, exactly as the chat template would print it.

The reasoning of history is dropped by the template, so a conversation is trained on its last stretch (the turns
after the last closed answer); without thinking every assistant turn looks as it was written, so all are trained on.
"""
import json

TYPE_NAMES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
LIMITS = {"string": ("maxLength", "minLength", "pattern"), "integer": ("maximum", "minimum"),
          "number": ("maximum", "minimum"), "array": ("maxItems", "minItems")}


def sorted_keys(value):
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [sorted_keys(item) for item in value]
    return value


def comment(text, pad):
    return "".join(f"{pad}// {line}\n" if line else "\n" for line in text.split("\n"))


def type_of(schema, depth):
    if "enum" in schema:
        return " | ".join(json.dumps(v, ensure_ascii=False) if isinstance(v, str) else str(v) for v in schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return object_type(schema, depth)
    if kind == "array":
        return f"Array<{type_of(schema['items'], depth)}>" if "items" in schema else "Array<any>"
    if kind in TYPE_NAMES:
        return TYPE_NAMES[kind]
    raise ValueError(f"schema outside the subset: {schema}")


def object_type(schema, depth):
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    pad = "  " * (depth + 1)
    fields = []
    for key in sorted(properties, key=lambda k: (k not in required, k)):
        field = properties[key]
        text = comment(field["description"], pad) if field.get("description") else ""
        limits = [f"{k}: {field[k]}" for k in LIMITS.get(field.get("type"), ()) if k in field]
        if limits:
            text += f"{pad}// {', '.join(limits)}\n"
        if "default" in field:
            value = field["default"]
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, list, dict)) else repr(value)
            text += f"{pad}// Default: {shown}\n"
        fields.append(f"{text}{pad}{key}{'' if key in required else '?'}: {type_of(field, depth + 1)}")
    if schema.get("additionalProperties") is not None:  # true or false; a schema is outside the subset
        if not isinstance(schema["additionalProperties"], bool):
            raise ValueError(f"schema outside the subset: {schema}")
        fields.append(f"{pad}[k: string]: {'any' if schema['additionalProperties'] else 'never'}")
    if not fields:
        return "{}"
    return "{\n" + ",\n".join(fields) + "\n" + "  " * depth + "}"


def tools_typescript(tools):
    out = []
    for tool in tools:
        if tool.get("type") != "function":
            continue
        function = tool["function"]
        text = comment(function["description"], "") if function.get("description") else ""
        out.append(f"{text}type {function['name']} = (_: {type_of(function.get('parameters', {'type': 'object'}), 0)}) => any;")
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(out) + "\n}\n"


class Renderer:
    """Writes token ids; text between two special tokens is encoded as one run."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        s = tokenizer.special
        self.end, self.middle = s["<|im_end|>"], s["<|im_middle|>"]
        self.role = {"user": s["<|im_user|>"], "assistant": s["<|im_assistant|>"]}
        self.other = s["<|im_system|>"]
        self.think, self.think_end = s["<think>"], s["</think>"]
        self.section, self.section_end = s["<|tool_calls_section_begin|>"], s["<|tool_calls_section_end|>"]
        self.call, self.arguments, self.call_end = (
            s["<|tool_call_begin|>"], s["<|tool_call_argument_begin|>"], s["<|tool_call_end|>"])
        self.media, self.media_content, self.media_end, self.placeholder = (
            s["<|media_begin|>"], s["<|media_content|>"], s["<|media_end|>"], s["<|media_pad|>"])

    def content(self, content):
        """A text, or parts: {"type": "text", "text"} and {"type": "image", "tokens": how many it takes}."""
        if not isinstance(content, list):
            return self.tokenizer.encode(content or "")
        ids, text = [], ""
        for part in content:
            if part["type"] == "text":
                text += part["text"]
                continue
            ids += [*self.tokenizer.encode(text), self.media, *self.tokenizer.encode("image"), self.media_content,
                    *[self.placeholder] * part["tokens"], self.media_end]
            text = "\n"
        return ids + list(self.tokenizer.encode(text))

    def body(self, message):
        """Content and tool calls of an assistant turn, without its end."""
        encode = self.tokenizer.encode
        ids = list(encode(message.get("content") or ""))
        if message.get("tool_calls"):
            ids.append(self.section)
            for call in message["tool_calls"]:
                ids += [self.call, *encode(call["id"]), self.arguments,
                        *encode(call["function"]["arguments"]), self.call_end]
            ids.append(self.section_end)
        return ids

    def prompt(self, messages, tools, thinking, generate=True, flags=None):
        """The prompt's ids. `flags`, if given, receives 1 for each token that an assistant turn of
        the running stretch (without thinking: any assistant turn) had to write itself."""
        encode = self.tokenizer.encode
        last = max((i for i, m in enumerate(messages)
                    if m["role"] == "assistant" and not m.get("tool_calls")), default=-1)
        ids = []
        if tools:
            ids += [self.other, *encode("tool_declare"), self.middle, *encode(tools_typescript(sorted_keys(tools))), self.end]
        if flags is not None:
            flags += [0] * (len(ids) - len(flags))
        for i, m in enumerate(messages):
            ids += [self.role.get(m["role"], self.other), *encode(m.get("name") or m["role"]), self.middle]
            written = 0
            if m["role"] == "assistant":
                ids.append(self.think)
                start = len(ids)
                if thinking and i > last:
                    ids += encode(m.get("reasoning_content") or "")
                elif not thinking:
                    start += 1
                ids.append(self.think_end)
                ids += self.body(m)
                ids.append(self.end)
                written = len(ids) - start if (not thinking or i > last) else 0
            else:
                content = m.get("content")
                if m["role"] == "tool":
                    content = f"## Return of {m['tool_call_id']}\n{content or ''}"
                ids += [*self.content(content), self.end]
            if flags is not None:
                flags += [0] * (len(ids) - written - len(flags)) + [1] * written
        if generate:
            ids += [self.role["assistant"], *encode("assistant"), self.middle, self.think]
            if not thinking:
                ids.append(self.think_end)
            if flags is not None:
                flags += [0] * (len(ids) - len(flags))
        return ids

    def training(self, case):
        """(ids, flags) of the whole case, the answer included."""
        flags = []
        ids = self.prompt(case.messages[:-1], case.tools, case.thinking, flags=flags)
        answer = case.messages[-1]
        tail = []
        if case.thinking:
            tail += [*self.tokenizer.encode(answer.get("reasoning_content") or ""), self.think_end]
        tail += [*self.body(answer), self.end]
        return ids + tail, flags + [1] * len(tail)
