"""The mixture of task families, and which part of it is held out."""
from data import arithmetic, chat, dates, documented_tools, first_words, formats, memory, tools, transform
from data.common import held_out, system

# family -> (generator, share of the training documents (of their sum), share of those that are of the hard tier)
FAMILIES = {
    "chat": (chat.generate, 0.12, 0.0),
    "arithmetic": (arithmetic.generate, 0.14, 0.25),
    "arithmetic-instant": (arithmetic.instant, 0.08, 0.2),
    "transform": (transform.generate, 0.16, 0.2),
    "dates-units": (dates.generate, 0.08, 0.2),
    "memory": (memory.generate, 0.10, 0.2),
    "retrieval": (memory.retrieval, 0.09, 0.06),
    "tools": (tools.generate, 0.16, 0.15),
    "system": (formats.generate_system, 0.04, 0.2),
    "json": (formats.generate_json, 0.03, 0.2),
    "first-words": (first_words.generate, 0.25, 0.0),
    "first-tools": (documented_tools.generate, 0.25, 0.0),
}
PROMPTS = ["You are a helpful assistant.", "You are a small model.", "Answer briefly.", "Be kind and short.", "You are the pocket model of Baltoro."]


def draw(rng, family, hard):
    """A case that is not held out."""
    while True:
        case = FAMILIES[family][0](rng, hard)
        if not held_out(case):
            return decorate(rng, case)


def draw_held_out(rng, family, hard):
    while True:
        case = FAMILIES[family][0](rng, hard)
        if held_out(case):
            return case


def decorate(rng, case):
    """Sometimes a plain system prompt, or tools that have nothing to do with the request."""
    if case.messages[0]["role"] == "user" and rng.random() < 0.1:
        case.messages.insert(0, system(rng.choice(PROMPTS)))
    if case.tools is None and case.task in ("arithmetic", "arithmetic-instant", "memory", "transform") and rng.random() < 0.04:
        case.tools = [t.declaration for t in tools.make_tools(rng, False)[:4]]
    return case


def stream(rng):
    """Training cases without end."""
    names = list(FAMILIES)
    weights = [FAMILIES[n][1] for n in names]
    while True:
        family = rng.choices(names, weights)[0]
        yield draw(rng, family, int(rng.random() < FAMILIES[family][2]))
