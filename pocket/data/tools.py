"""Conversations with declared tools: which one, with what arguments, one after another, several at once, or none."""
import json

from data.common import (BEYOND, Case, assistant, distinct, exact, name, pick, place, system, tidy, user, word, code, plural, ANIMALS,
                         CITIES, COLORS, FIRST_NAMES, FOODS, JOBS, THINGS)

ADJECTIVES = """alpine ancient annual broken busy central cheap cold common daily dark deep digital double early empty fast final fresh frozen
global golden heavy hidden hourly large late local lost main monthly narrow new next nightly noisy old open pale private public quick quiet
rare remote round secret sharp shared silent simple slow small smart soft solar special spare stable steep strong sunny tall thin tidy
total urgent warm weekly wide wild wooden yearly young""".split()
NOUNS = """account alarm album archive article badge bill booking bridge budget calendar camera camp cargo channel chart chapter client
clock comment contract course crate customer deck delivery desk device diagram diary document door draft drawer engine entry event exam
expedition factory file filter fleet flight folder forecast form garden gate glacier guest guide harbor heater hotel image index invoice
journal journey kitchen ladder lamp lesson letter library license lift list locker machine mailbox map market meeting member menu message
meter mission motor museum network note notice office order outlet package page painting panel parcel password path patient payment permit
photo pipe planet plant playlist poem pool port poster printer product profile project pump queue quiz rack radio receipt recipe record
region reminder rental repair report request reservation ring river road robot rocket room rope route sample satellite schedule score
screen seat sensor server service shelf shipment shop signal song station stock storage store street student summit supplier survey
table tank task teacher team temple tent thermostat ticket timer title tower track trail train tree trip tunnel valley valve vehicle
vendor video visitor vote voucher wallet warehouse website window workshop""".split()
LOOK = [("get", "Get"), ("find", "Find"), ("lookup", "Look up"), ("fetch", "Fetch"), ("read", "Read"), ("show", "Show"), ("query", "Query"), ("check", "Check"), ("search", "Search for")]
ACT = [("create", "Create"), ("delete", "Delete"), ("update", "Update"), ("send", "Send"), ("start", "Start"), ("stop", "Stop"), ("open", "Open"), ("close", "Close"),
       ("book", "Book"), ("cancel", "Cancel"), ("print", "Print"), ("move", "Move"), ("copy", "Copy"), ("lock", "Lock"), ("unlock", "Unlock"), ("paint", "Paint"),
       ("rename", "Rename"), ("archive", "Archive"), ("restart", "Restart"), ("schedule", "Schedule"), ("order", "Order"), ("repair", "Repair"), ("clean", "Clean"),
       ("share", "Share"), ("upload", "Upload"), ("reserve", "Reserve"), ("approve", "Approve"), ("reject", "Reject"), ("pause", "Pause"), ("resume", "Resume")]
QUALITIES = """status price owner color weight size address age height capacity temperature speed length balance score level version date duration rating
priority code depth distance volume cost title author phone number altitude pressure humidity""".split()

STRINGS = "name title label city owner user person path topic query message recipient tag category street country language author reason team subject place comment text".split()
INTEGERS = "count limit days amount year floor page level quantity minutes hours seats size number priority copies retries age width height".split()
NUMBERS = "price weight temperature ratio distance speed rate score factor volume latitude longitude budget".split()
BOOLEANS = "urgent verbose recursive public force silent archived active dry_run notify encrypted compressed favorite hidden".split()
ENUMS = {"unit": ["celsius fahrenheit kelvin", "metric imperial", "meters feet", "kg pounds", "km miles"], "format": ["json xml csv", "pdf html text", "png jpg"], "color": ["red green blue", "black white grey"],
         "mode": ["fast slow", "auto manual off", "eco normal turbo"], "order": ["asc desc", "newest oldest"], "size": ["small medium large"], "importance": ["low medium high"],
         "currency": ["EUR USD CHF", "USD GBP JPY"], "side": ["left right", "front back"], "day": ["monday tuesday wednesday thursday friday", "today tomorrow"], "kind": ["public private", "long short"]}


class Param:
    """One parameter: its schema, a value, and how a user says it."""

    def __init__(self, rng, used):
        while True:
            self.type = rng.choice(["string", "string", "string", "integer", "integer", "number", "boolean", "enum"])
            pool = {"string": STRINGS, "integer": INTEGERS, "number": NUMBERS, "boolean": BOOLEANS, "enum": list(ENUMS)}[self.type]
            self.name = rng.choice(pool)
            if self.type in ("string", "integer") and rng.random() < 0.3:
                self.name = word(rng, 1, 2)
            elif rng.random() < 0.1 and self.type != "boolean":
                self.name = f"{rng.choice(ADJECTIVES)}_{self.name}"
            if self.name not in used:
                break
        used.add(self.name)
        self.said = self.name.replace("_", " ")
        self.options = rng.choice(ENUMS[self.name.split("_")[-1]]).split() if self.type == "enum" else None
        self.described = rng.random() < 0.75

    def schema(self, rng):
        out = {}
        if self.described:
            what = self.said
            out["description"] = pick(rng, {
                "string": f"(The {what}|{what.capitalize()}|The {what} to use|Name of the {what}|The {what} as text)",
                "integer": f"(The {what}|Number for the {what}|{what.capitalize()} as a whole number|How large the {what} is)",
                "number": f"(The {what}|{what.capitalize()} as a number|The {what} to use)",
                "boolean": f"(Whether it is {what}|Set to true for {what}|{what.capitalize()} or not)",
                "enum": f"(The {what}|Which {what} to use|{what.capitalize()} of the result)"}[self.type])
        out["type"] = "string" if self.type == "enum" else self.type
        if self.options:
            out["enum"] = self.options
        return out

    def value(self, rng):
        if self.type == "string":
            r = rng.random()
            if r < 0.25:
                return place(rng)
            if r < 0.45:
                return name(rng)
            if r < 0.6:
                return " ".join(word(rng, 1, 2) for _ in range(rng.randint(2, 3)))
            if r < 0.7:
                return code(rng) + rng.choice(["", ".txt", "@" + word(rng, 1, 1) + ".com"])
            return rng.choice([rng.choice(THINGS), word(rng), word(rng), rng.choice(FOODS)])
        if self.type == "integer":
            return rng.choice([rng.randint(0, 9), rng.randint(0, 99), rng.randint(0, 2100)])
        if self.type == "number":
            return rng.choice([rng.randint(1, 99) + rng.randint(1, 9) / 10, rng.randint(1, 999) + 0.5, round(rng.randint(101, 999) / 100, 2)])
        if self.type == "boolean":
            return rng.random() < 0.6
        return rng.choice(self.options)

    def phrase(self, rng, value):
        if self.type == "boolean":
            return pick(rng, f"(with {self.said} {'on' if value else 'off'}|{self.said}: {'yes' if value else 'no'}|{self.said} set to {'true' if value else 'false'}|{self.said}={'true' if value else 'false'})")
        if self.type == "string" and rng.random() < 0.35:
            return pick(rng, f"(with {self.said}|{self.said}:|and the {self.said}|{self.said} is)") + f' "{value}"'
        return pick(rng, f"(with {self.said}|{self.said}:|with the {self.said}|{self.said} is|use {self.said}|and {self.said}|{self.said} =)") + f" {value}"


class Tool:
    """A made-up tool; `ask` writes a request for it and the arguments of the right call."""

    def __init__(self, rng, taken, hard, flavor=None):
        while True:
            self.looks = rng.random() < 0.5 if flavor is None else flavor == "look"
            verb, self.verb = rng.choice(LOOK if self.looks else ACT)
            noun = rng.choice(NOUNS) if rng.random() < 0.65 else word(rng, 2, 2)
            adjective = rng.choice(ADJECTIVES) + " " if rng.random() < 0.35 else ""
            self.object = f"{adjective}{noun}"
            self.quality = rng.choice(QUALITIES) if rng.random() < 0.85 else word(rng, 2, 2)
            key = (self.object, self.verb if not self.looks else self.quality)
            if key not in taken and (hard or not any(o == self.object for o, _ in taken)):
                break
        taken.add(key)
        words = self.object.split()
        stem = [verb, *words] + ([self.quality] if self.looks else [])
        self.name = rng.choice([lambda: "_".join(stem), lambda: "_".join(stem), lambda: stem[0] + "".join(w.capitalize() for w in stem[1:]),
                                lambda: "_".join(stem[1:] + stem[:1]), lambda: f"{word(rng, 1, 2)}_{words[-1]}", lambda: word(rng, 2, 2)])()
        what = f"the {self.quality} of a {self.object}" if self.looks else f"a {self.object}"
        self.description = pick(rng, f"({self.verb} {what}|{self.verb} {what}.|{self.verb} {what}|Use this to {self.verb[0].lower() + self.verb[1:]} {what}.|This tool can {self.verb[0].lower() + self.verb[1:]} {what}.)")
        used = set()
        self.main = None
        count = rng.randint(6, 9) if hard == BEYOND and rng.random() < 0.7 else rng.randint(4, 6) if hard and rng.random() < 0.5 else rng.choice([0, 0, 1, 1, 2, 3])
        if rng.random() < 0.85:  # the thing itself: an id or a name, said without the parameter's name
            self.main = rng.choice(["name", "id", f"{words[-1]}_id", f"{words[-1]}_name", words[-1], words[-1]])
            used.add(self.main)
        self.params = [Param(rng, used) for _ in range(count if self.main else max(1, count))]
        self.required = {p.name for p in self.params if rng.random() < 0.55}
        if self.main:
            self.required.add(self.main)
        self.main_number = self.main is not None and self.main.endswith("id") and rng.random() < 0.4
        properties = {}
        if self.main:
            properties[self.main] = {"description": pick(rng, f"(The {self.object}|Which {self.object}|{self.main.replace('_', ' ').capitalize()} of the {self.object})"),
                                     "type": "integer" if self.main_number else "string"}
            if rng.random() < 0.2:
                del properties[self.main]["description"]
        for p in self.params:
            properties[p.name] = p.schema(rng)
        ordered = sorted(properties, key=lambda k: (k not in self.required, k))
        parameters = {"type": "object", "properties": {k: properties[k] for k in ordered}}
        needed = [k for k in ordered if k in self.required]
        if needed:
            parameters["required"] = needed
        self.order = ordered
        self.declaration = {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}

    def main_value(self, rng):
        if self.main_number:
            return rng.randint(1, 9999)
        return rng.choice([lambda: code(rng), lambda: word(rng).capitalize(), lambda: word(rng), lambda: name(rng)])()

    def fill(self, rng, main=None):
        """Arguments in the order of the declaration, and the phrases for all but the main one."""
        values, phrases = {}, []
        for p in self.params:
            if p.name in self.required or rng.random() < 0.5:
                values[p.name] = p.value(rng)
                phrases.append(p.phrase(rng, values[p.name]))
        if self.main:
            values[self.main] = self.main_value(rng) if main is None else main
        rng.shuffle(phrases)
        return {k: values[k] for k in self.order if k in values}, phrases

    def ask(self, rng, arguments, phrases):
        which = f" {arguments[self.main]}" if self.main else ""
        verb = self.verb[0].lower() + self.verb[1:]
        tail = (rng.choice([" ", ", "]) + ", ".join(phrases)) if phrases else ""
        if self.looks:
            if which:
                text = pick(rng, f"(What is the {self.quality} of the {self.object}{which}|What {self.quality} does the {self.object}{which} have|{self.verb} the {self.quality} of the {self.object}{which}|I need the {self.quality} of the {self.object}{which}|Tell me the {self.quality} of the {self.object}{which})")
            else:
                text = pick(rng, f"(What is the {self.quality} of the {self.object}|{self.verb} the {self.quality} of the {self.object}|I need the {self.quality} of the {self.object})")
        else:
            text = pick(rng, f"({self.verb} the {self.object}{which}|Please {verb} the {self.object}{which}|I want to {verb} the {self.object}{which}|Can you {verb} the {self.object}{which}|{self.verb} {self.object}{which})")
        mark = "?" if text.startswith(("What", "Can")) and not tail else "."
        return text + tail + mark


def dump(arguments):
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def call(tool_name, index, arguments):
    return {"id": f"functions.{tool_name}:{index}", "type": "function", "function": {"name": tool_name, "arguments": dump(arguments)}}


def result_of(rng, tool, arguments, value=None):
    """(what the tool returns, the sentence that reports it, the value)."""
    which = f" {arguments[tool.main]}" if tool.main else ""
    if rng.random() < 0.06:
        problem = rng.choice(["not found", "no permission", "timeout", "server busy", f"{word(rng)} missing"])
        return json.dumps({"error": problem}), f"The tool reported an error: {problem}.", None
    if tool.looks:
        value = value if value is not None else rng.choice([lambda: str(rng.randint(1, 9999)), lambda: code(rng), lambda: word(rng), lambda: name(rng)])()
        shape = rng.randrange(4)
        text = [json.dumps({tool.quality: value}), str(value), json.dumps({tool.quality: value, "ok": True}, separators=(",", ":")), f"{tool.quality}: {value}"][shape]
        return text, f"The {tool.quality} of the {tool.object}{which} is {value}.", value
    value = code(rng)
    shape = rng.randrange(4)
    if shape == 0:
        return json.dumps({"status": "ok", "id": value}), f"Done. The id is {value}.", value
    if shape == 1:
        return json.dumps({"ok": True}), "Done.", None
    if shape == 2:
        return rng.choice(["ok", "done", "success"]), "Done.", None
    return json.dumps({"result": "ok", "number": value}, separators=(",", ":")), f"Done. The number is {value}.", value


def thought_for(tool, arguments):
    return f"{tool.name}: {tool.description.rstrip('.')}. " + ", ".join(f"{k} = {v if not isinstance(v, bool) else str(v).lower()}" for k, v in arguments.items())


def tool_turn(index, tools_args, thought):
    return assistant("", thought, [call(t.name, index + i, a) for i, (t, a) in enumerate(tools_args)])


def tool_reply(index, tool, text):
    return {"role": "tool", "tool_call_id": f"functions.{tool.name}:{index}", "content": text}


def make_tools(rng, hard):
    count = rng.randint(9, 12) if hard == BEYOND else rng.randint(9, 16) if hard else rng.choice([1, 2, 3, 3, 4, 4, 5, 6, 7, 8])
    taken = set()
    return [Tool(rng, taken, hard) for _ in range(count)]


def exchange(rng, tools, index, thinking, hard):
    """One request and all that follows from it: (messages, calls made, key)."""
    r = rng.random()
    think = (lambda t: t) if thinking else (lambda t: None)
    lookers = [t for t in tools if t.looks and t.main]
    if r < 0.16 and lookers:  # the same tool twice, or two tools, in one section
        first = rng.choice(lookers)
        second = first if rng.random() < 0.7 or len(lookers) < 2 else rng.choice([t for t in lookers if t is not first])
        count = rng.randint(4, 5) if hard == BEYOND and second is first else rng.randint(3, 4) if hard and second is first else 2
        chosen = [first] + [second] * (count - 1)
        pairs, asked = [], []
        shared, phrases = first.fill(rng)
        for i, t in enumerate(chosen):
            if t is first and second is first:
                arguments = {**shared, t.main: t.main_value(rng)}
                phrase = phrases
            else:
                arguments, phrase = t.fill(rng)
            pairs.append((t, arguments))
            asked.append((t, arguments, phrase))
        if second is first:
            ids = [str(a[first.main]) for _, a in pairs]
            said = ", ".join(ids[:-1]) + " and " + ids[-1]
            tail = (", " + ", ".join(phrases)) if phrases else ""
            text = pick(rng, f"(What is the {first.quality} of the {plural(first.object)} {said}|Get the {first.quality} of the {plural(first.object)} {said}|I need the {first.quality} of the {plural(first.object)} {said})") + tail
            text += "?" if text.startswith("What") and not tail else "."
        else:
            parts = [t.ask(rng, a, p) for t, a, p in asked]
            text = parts[0] + " " + rng.choice(["And: ", "Also: ", "Also ", "And also: "]) + parts[1][0].lower() + parts[1][1:]
        messages = [user(text), tool_turn(index, pairs, think("; ".join(thought_for(t, a) for t, a in pairs)))]
        sentences = []
        for i, (t, a) in enumerate(pairs):
            returned, sentence, _ = result_of(rng, t, a)
            messages.append(tool_reply(index + i, t, returned))
            sentences.append(sentence)
        messages.append(assistant(" ".join(sentences), think("The results are here. " + " ".join(sentences))))
        return messages, len(pairs), text
    if r < 0.34 and lookers and len(tools) > 1:  # one after the other: the second needs what the first returns
        first = rng.choice(lookers)
        others = [t for t in tools if t is not first and t.main and not t.main_number]
        if others:
            second = rng.choice(others)
            a1, p1 = first.fill(rng)
            value = rng.choice([lambda: code(rng), lambda: word(rng), lambda: name(rng)])()
            a2, p2 = second.fill(rng, main=value)
            verb = second.verb[0].lower() + second.verb[1:]
            ask1 = pick(rng, f"(Get|Find|Look up) the {first.quality} of the {first.object} {a1[first.main]}" + (", " + ", ".join(p1) if p1 else ""))
            what = f"{verb} the {second.quality} of the {second.object}" if second.looks else f"{verb} the {second.object}"
            text = f"{ask1}, {rng.choice(['then', 'and then', 'after that'])} {what} with that {first.quality}" + (", " + ", ".join(p2) if p2 else "") + "."
            shown = rng.choice([json.dumps({first.quality: value}), value, f"{first.quality}: {value}"])
            returned, sentence, _ = result_of(rng, second, a2)
            messages = [user(text), tool_turn(index, [(first, a1)], think("First " + thought_for(first, a1))), tool_reply(index, first, shown),
                        tool_turn(index + 1, [(second, a2)], think(f"The {first.quality} is {value}. Now " + thought_for(second, a2))), tool_reply(index + 1, second, returned),
                        assistant(sentence, think("All is done. " + sentence))]
            return messages, 2, text
    tool = rng.choice(tools)
    arguments, phrases = tool.fill(rng)
    text = tidy(rng, tool.ask(rng, arguments, phrases))
    returned, sentence, _ = result_of(rng, tool, arguments)
    messages = [user(text), tool_turn(index, [(tool, arguments)], think(thought_for(tool, arguments))), tool_reply(index, tool, returned),
                assistant(sentence, think("The result is here. " + sentence))]
    return messages, 1, text


NONE_FITS = "None of my tools can do that."


def no_tool(rng, tools, thinking):
    """A request that needs no tool, or one that no tool can serve."""
    r = rng.random()
    if r < 0.45:
        taken = {(t.object, t.verb if not t.looks else t.quality) for t in tools}
        other = Tool(rng, taken, False)
        arguments, phrases = other.fill(rng)
        text = other.ask(rng, arguments, phrases)
        return [user(text), assistant(NONE_FITS, f"No tool is for {other.object}." if thinking else None)], text
    if r < 0.7:
        from data.chat import intent
        while True:
            text, answer, thought, holds = intent(rng)
            if "small demonstration" not in answer:
                break
        return [user(tidy(rng, text)), assistant(answer, thought if thinking else None)], text
    from data.formats import base_question
    text, answer, thought = base_question(rng)
    return [user(text), assistant(answer, thought if thinking else None)], text


def generate(rng, hard):
    thinking = rng.random() < 0.6
    if not hard and rng.random() < 0.2:
        from data.daily_tools import generate as daily
        return daily(rng, thinking)
    tools = make_tools(rng, hard)
    messages, index = [], 0
    if rng.random() < 0.25:
        messages.append(system(rng.choice(["You are a helpful assistant.", "Use the tools when they fit.", "You are an assistant with tools.", "Be brief."])))
    for _ in range(rng.choice([0, 0, 0, 0, 1, 2]) if hard else rng.choice([0, 0, 0, 0, 0, 1])):
        if rng.random() < 0.6:
            part, made, _ = exchange(rng, tools, index, thinking, False)
            index += made
        else:
            part, _ = no_tool(rng, tools, thinking)
        messages += part
    if rng.random() < 0.17:
        part, key = no_tool(rng, tools, thinking)
    else:
        part, _, key = exchange(rng, tools, index, thinking, hard)
    messages += part
    last = messages[-1]["content"]
    return Case("tools", "hard" if hard else "easy", thinking, messages, {"kind": "text", "text": last}, key, [t.declaration for t in tools])
