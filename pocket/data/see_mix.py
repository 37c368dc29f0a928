"""Conversations about pictures: the mixture that the vision encoder learns from, and what is held out of it.

A content that holds pictures is a list of parts, {"type": "image", "canvas": Canvas} and {"type": "text", "text"}.
"""
from data import mix, see_charts, see_shapes, see_text
from data.common import Case, assistant, exact, held_out, user

# task -> (generator, share, share of those that are hard)
TASKS = {"see-shapes": (see_shapes.shapes, 0.17, 0.6), "see-count": (see_shapes.count, 0.28, 0.7),
         "see-text": (see_text.text, 0.15, 0.6), "see-charts": (see_charts.charts, 0.4, 0.65)}
LOOK = "I look at the picture."


def shown(rng, canvases, text):
    """A user turn with pictures before or behind its words."""
    parts = [{"type": "image", "canvas": canvas} for canvas in canvases]
    words = [{"type": "text", "text": text}]
    return {"role": "user", "content": parts + words if rng.random() < 0.5 else words + parts}


def scene(rng, task, hard, held):
    """A picture with its questions. The split is by what the picture shows."""
    while True:
        canvas, asks, key = TASKS[task][0](rng, hard)
        case = Case(task, "hard" if hard else "easy", False, [], None, key)
        if held_out(case) == held:
            return canvas, asks, case


def question(rng, task, hard, held=True):
    """A case of one question."""
    canvas, asks, case = scene(rng, task, hard, held)
    ask, answer = rng.choice(asks)
    case.messages, case.expect = [shown(rng, [canvas], ask), assistant(answer)], exact(answer)
    return case


def talk(rng, task, hard, held=False):
    """A case of several questions about a picture, about two pictures in turn or at once, or with another matter before it."""
    canvas, asks, case = scene(rng, task, hard, held)
    kind = rng.random()
    if kind < 0.06:  # at once
        other, more, _ = scene(rng, task, hard, held)
        turns = [(ask[:-1] + f" in the {which} picture" + ask[-1], answer) for which, part in (("first", asks), ("second", more)) for ask, answer in rng.sample(part, 1)]
        rng.shuffle(turns)
        case.messages = [shown(rng, [canvas, other], turns[0][0]), assistant(turns[0][1]), user(turns[1][0]), assistant(turns[1][1])]
    else:
        turns = rng.sample(asks, min(len(asks), rng.randint(1, 5)))
        case.messages = [shown(rng, [canvas], turns[0][0]), assistant(turns[0][1])]
        for ask, answer in turns[1:]:
            case.messages += [user(ask), assistant(answer)]
        if kind < 0.12:  # another picture of the same sort
            other, more, _ = scene(rng, task, hard, held)
            for i, (ask, answer) in enumerate(rng.sample(more, min(len(more), 2))):
                case.messages += [shown(rng, [other], ask) if i == 0 else user(ask), assistant(answer)]
        elif kind < 0.18:  # and something without a picture
            text = mix.draw(rng, rng.choice(["first-words", "arithmetic-instant", "chat"]), 0)
            if not text.thinking and not text.tools and text.messages[0]["role"] == "user" and not any(m.get("tool_calls") for m in text.messages):
                case.messages = text.messages + case.messages if rng.random() < 0.5 else case.messages + text.messages
    if rng.random() < 0.15:
        case.thinking = True
        case.messages = case.messages[:2]
        case.messages[1]["reasoning_content"] = LOOK
    return case


def stream(rng, only=None):
    """Training cases without end."""
    names = [only] if only else list(TASKS)
    weights = [TASKS[n][1] for n in names]
    while True:
        task = rng.choices(names, weights)[0]
        yield talk(rng, task, int(rng.random() < TASKS[task][2]))
