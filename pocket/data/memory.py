"""Facts told in one turn and asked for turns later, and retrieval from long texts."""
import math

from data.common import (BEYOND, Case, assistant, exact, pick, tidy, user, word, code, distinct, name, place, ANIMALS, CITIES,
                         COLORS, FOODS, JOBS, SPORTS, FIRST_NAMES)

# fact -> (value maker, ways to tell it, ways to ask for it, the answer)
FACTS = {
    "name": (lambda r: name(r), ["My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "You can call me {v}.", "Hello, my name is {v}.", "Hi, I'm {v}!"],
             ["What is my name?", "Do you remember my name?", "Who am I?", "What's my name?", "What am I called?", "Tell me my name."], "Your name is {v}."),
    "color": (lambda r: r.choice(COLORS), ["My favorite color is {v}.", "I like the color {v} best.", "I love the color {v}."],
              ["What is my favorite color?", "Which color do I like best?", "What's my favorite color?", "Which color do I love?"], "Your favorite color is {v}."),
    "animal": (lambda r: r.choice(ANIMALS), ["My favorite animal is the {v}.", "The animal I like best is the {v}."],
               ["What is my favorite animal?", "Which animal do I like best?"], "Your favorite animal is the {v}."),
    "food": (lambda r: r.choice(FOODS), ["My favorite food is {v}.", "I like to eat {v} most of all.", "I love to eat {v}."],
             ["What is my favorite food?", "What do I like to eat?", "Which food do I like best?", "What do I love to eat?"], "Your favorite food is {v}."),
    "city": (place, ["I live in {v}.", "My home is in {v}.", "My city is {v}."],
             ["Where do I live?", "Which city do I live in?", "Where is my home?", "What is my city?"], "You live in {v}."),
    "job": (lambda r: r.choice(JOBS) if r.random() < 0.6 else word(r), ["I work as a {v}.", "My job is {v}.", "I am a {v} by trade."],
            ["What is my job?", "What do I work as?", "What's my job?"], "You work as a {v}."),
    "sport": (lambda r: r.choice(SPORTS), ["My favorite sport is {v}.", "My sport is {v}."], ["What is my favorite sport?", "Which sport do I like?", "What is my sport?"], "Your favorite sport is {v}."),
    "age": (lambda r: str(r.randint(5, 99)), ["I am {v} years old.", "My age is {v}.", "I'm {v} years old."],
            ["How old am I?", "What is my age?", "Do you know my age?"], "You are {v} years old."),
    "pet": (lambda r: name(r), ["My pet is called {v}.", "My pet's name is {v}.", "I have a pet named {v}."],
            ["What is my pet called?", "What is the name of my pet?", "What's my pet's name?"], "Your pet is called {v}."),
    "friend": (lambda r: name(r), ["My best friend is {v}.", "My best friend is called {v}."], ["Who is my best friend?", "What is my best friend called?"], "Your best friend is {v}."),
    "brother": (lambda r: name(r), ["My brother is called {v}.", "I have a brother named {v}."], ["What is my brother called?", "What is the name of my brother?"], "Your brother is called {v}."),
    "code": (lambda r: code(r), ["My code is {v}.", "Remember this code: {v}.", "Please remember the code {v}.", "The code is {v}, keep it."],
             ["What is my code?", "What was the code?", "Which code did I give you?", "What code did I tell you?"], "Your code is {v}."),
    "password": (lambda r: word(r), ["The secret word is {v}.", "Remember the secret word {v}.", "My secret word is {v}."],
                 ["What is the secret word?", "Which secret word did I tell you?", "What was the secret word?"], "The secret word is {v}."),
    "phone": (lambda r: "".join(r.choice("0123456789") for _ in range(r.randint(5, 8))), ["My phone number is {v}.", "My number is {v}."],
              ["What is my phone number?", "What's my number?"], "Your phone number is {v}."),
    "room": (lambda r: str(r.randint(1, 999)), ["I am in room {v}.", "My room is number {v}."], ["Which room am I in?", "What is my room number?"], "You are in room {v}."),
}
ACKS = ["I will remember that.", "Noted.", "Got it.", "OK, I have noted that."]


def custom_fact(rng, what=None, hard=False):
    """my drolvem is X: an attribute nobody has heard of."""
    what = what or word(rng, 1, 2)
    return what, (lambda r: code(r, hard), [f"My {what} is {{v}}.", f"The name of my {what} is {{v}}."], [f"What is my {what}?", f"What did I say about my {what}?"],
                  f"Your {what} is {{v}}.")


def facts(rng, hard, thinking):
    count = rng.randint(6, 12) if hard else rng.randint(1, 4)
    keys = rng.sample(list(FACTS), min(count, len(FACTS)))
    chosen = [(k, FACTS[k]) for k in keys]
    for i in range(len(chosen)):
        if rng.random() < 0.2:
            chosen[i] = custom_fact(rng)
    if hard == BEYOND:  # many things with names that look alike, and long codes
        stems = distinct(rng, rng.randint(6, 12), lambda r: word(r, 1, 2))
        chosen = [custom_fact(rng, stem + ending, True) for stem in stems for ending in rng.sample(["", "s", "n", "ek", "o", "r", "ta", "um"], 4)]
        rng.shuffle(chosen)
    values = {k: fact[0](rng) for k, fact in chosen}
    messages = []

    def say(text, reply):
        messages.append(user(text))
        messages.append(assistant(reply))

    from data.chat import aside
    queue = [(k, rng.choice(fact[1]).format(v=values[k])) for k, fact in chosen]
    while queue:
        together = min(len(queue), rng.choice([1, 1, 2, 3] if not hard else [1, 2, 3]))
        part, queue = queue[:together], queue[together:]
        text = " ".join(t for _, t in part)
        if part[0][0] == "name" and together == 1:
            say(text, f"Nice to meet you, {values['name']}!")
        else:
            say(text, ACKS[0] if rng.random() < 0.7 else rng.choice(ACKS))
        while rng.random() < (0.35 if not hard else 0.45):
            say(*aside(rng))
    for _ in range(rng.randint(2, 4) if hard == BEYOND else rng.random() < (0.6 if hard else 0.1)):  # a correction: the newest value counts
        k, fact = rng.choice(chosen)
        values[k] = fact[0](rng)
        told = rng.choice(fact[1]).format(v=values[k])
        say(rng.choice(["Actually, ", "Correction: ", "I was wrong. ", "Sorry, "]) + told[0].lower() * (told[0] != "I") + told[0] * (told[0] == "I") + told[1:], "OK, I have noted that.")
    for _ in range(rng.choice([0, 0, 1, 2]) if hard else rng.choice([0, 0, 0, 1])):  # some earlier questions
        k, fact = rng.choice(chosen)
        say(rng.choice(fact[2]), fact[3].format(v=values[k]))
    if rng.random() < 0.08 and not hard:
        k = rng.choice([k for k in FACTS if k not in values])
        question, answer, thought = rng.choice(FACTS[k][2]), "You have not told me that yet.", "The user has not said it."
        if k in ("name",):
            question = "What is my name?"
    elif rng.random() < 0.15 and len(chosen) > 1:
        (k, fact), (k2, fact2) = rng.sample(chosen, 2)
        q2 = rng.choice(fact2[2])
        question = f"{rng.choice(fact[2])} And {q2[0].lower() + q2[1:]}"
        answer = f"{fact[3].format(v=values[k])} {fact2[3].format(v=values[k2])}"
        thought = f"The user said: {k} {values[k]}, {k2} {values[k2]}."
    else:
        k, fact = rng.choice(chosen)
        question, answer, thought = rng.choice(fact[2]), fact[3].format(v=values[k]), f"The user said: {k} {values[k]}."
    messages += [user(tidy(rng, question)), assistant(answer, thought if thinking else None)]
    return Case("memory", "hard" if hard else "easy", thinking, messages, exact(answer), f"{sorted(values.items())}|{question}")


def generate(rng, hard):
    return facts(rng, hard, rng.random() < 0.4)


ATTRIBUTES = "code key number room price color size city age score weight date label owner status token".split()
FILLER = ["The (day|night|morning|evening) was (cold|warm|quiet|long|short).", "Nothing (else|more) (happened|was written) that (day|night).",
          "The (river|lake|road|glacier) is (wide|long|deep|old).", "We (walked|climbed|waited|slept) for {n} hours.",
          "(A|The) {thing} lay on the (table|floor|ground).", "It (rained|snowed) for {n} days.", "The camp is {n} meters above the valley.",
          "Somebody (sang|laughed|cooked|slept).", "There is more (snow|ice|sand|stone) than before.", "Then the (wind|rain|snow) came back."]


def filler(rng):
    from data.common import THINGS
    return pick(rng, rng.choice(FILLER)).replace("{n}", str(rng.randint(2, 99))).replace("{thing}", rng.choice(THINGS))


def value_for(rng, attribute, hard):
    if attribute == "color":
        return rng.choice(COLORS)
    if attribute in ("city", "owner"):
        return place(rng) if attribute == "city" else name(rng)
    if attribute in ("age", "room", "score", "weight", "price", "size"):
        return str(rng.randint(1, 9999))
    return code(rng, hard and rng.random() < 0.3)


def retrieval(rng, hard, tokens=None):
    """One entry out of a long text, a table, a list or a log. `tokens`: about how long the text is."""
    if tokens is None:
        if hard == BEYOND:
            tokens = int(math.exp(rng.uniform(math.log(1500), math.log(6000))))
        elif hard:
            tokens = int(math.exp(rng.uniform(math.log(2500), math.log(7000))))
        else:
            tokens = int(math.exp(rng.uniform(math.log(80), math.log(3600))))
    thinking = rng.random() < 0.4
    style = rng.randrange(5)
    attribute = rng.choice(ATTRIBUTES) if rng.random() < 0.7 else word(rng, 1, 2)
    two = hard and rng.random() < (0.9 if hard == BEYOND else 0.5)  # two attributes for each name: the other one is a decoy
    other = rng.choice([a for a in ATTRIBUTES if a != attribute])
    noise = rng.choice([0, 0, 0.5, 1, 4])
    entries, parts, used = {}, [], 0
    codes = 2 if hard == BEYOND and rng.random() < 0.35 else 1  # two codes in one: twice as much to copy
    make = (lambda r: word(r, 2, 3).capitalize()) if rng.random() < 0.7 else (lambda r: word(r, 2, 3))
    while used < tokens:
        if hard == BEYOND and entries and rng.random() < 0.85:  # names that differ in one letter
            base = rng.choice(list(entries))
            at = rng.randrange(1, len(base))
            make = lambda r: base[:at] + r.choice("abcdefghijklmnopqrstuvwxyz") + base[at + 1:]  # noqa: E731,B023
        elif hard == BEYOND:
            make = lambda r: word(r, 2, 3).capitalize()  # noqa: E731
        if entries and rng.random() < noise / (1 + noise):
            line = filler(rng)
            parts.append(line)
            used += len(line) / 3.2
            continue
        who = make(rng)
        if who in entries:
            continue
        entries[who] = "-".join(code(rng, True) for _ in range(codes)) if hard == BEYOND else value_for(rng, attribute, hard)
        lines = [(attribute, entries[who])]
        if two:
            lines.append((other, value_for(rng, other, hard)))
            rng.shuffle(lines)
        for a, v in lines:
            line = [f"The {a} of {who} is {v}.", f"{who}: {v}" if not two else f"{who} {a}: {v}", f"{who} has the {a} {v}.",
                    f"- {who} | {a} {v}", f"{{\"name\": \"{who}\", \"{a}\": \"{v}\"}}"][style]
            parts.append(line)
            used += len(line) / 1.75
    joined = (" " if style in (0, 2) and rng.random() < 0.7 else "\n").join(parts)
    messages = []
    for ask in range(1 if thinking or rng.random() < 0.3 else rng.randint(2, 6)):
        who = rng.choice(list(entries))
        question = question_for(rng, attribute, who, style == 1 and not two)
        if messages:
            messages.append(user(question))
        else:
            messages = opening(rng, joined, question)
        messages.append(assistant(entries[who], f"The {attribute} of {who}: {entries[who]}." if thinking else None))
    return Case("retrieval", "hard" if hard else "easy", thinking, messages, exact(entries[who]), f"{who}|{entries[who]}")


def question_for(rng, attribute, who, plain):
    if plain:
        return pick(rng, f"(What is written for {who}?|What stands beside {who}?|What belongs to {who}?|What is the {attribute} of {who}?)")
    return pick(rng, f"(What is the {attribute} of {who}?|Which {attribute} does {who} have?|Tell me the {attribute} of {who}.|Find the {attribute} of {who}.)")


def opening(rng, joined, question):
    """The text and the first question, in one turn or two."""
    place_ = rng.random()
    if place_ < 0.5:
        return [user(f"{joined}\n\n{question}")]
    if place_ < 0.65:
        return [user(f"{question}\n\n{joined}")]
    if place_ < 0.8:
        return [user(pick(rng, "(Read this|Here is a text|Remember this|Here is a list):") + "\n" + joined), assistant("OK, I have read it."), user(question)]
    if place_ < 0.9:
        return [{"role": "system", "content": "Use this text:\n" + joined}, user(question)]
    return [user(f"{pick(rng, '(Text|List|Data|Document)')}:\n{joined}\n{pick(rng, '(Question|Q)')}: {question}")]
