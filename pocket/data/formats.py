"""System prompts followed in small ways, and answers given as JSON."""
import json

from data.common import (BEYOND, Case, assistant, exact, contains, pick, tidy, user, system, word, name, place, code, COLORS, FOODS, JOBS, ANIMALS, THINGS, plural)


def base_question(rng):
    """(question, answer, thought) of a small thing the model knows without steps."""
    r = rng.randrange(5)
    if r == 0:
        a, b = rng.randint(0, 50), rng.randint(0, 49)
        return tidy(rng, f"What is {a} + {b}?"), f"{a} + {b} = {a + b}", f"{a} + {b} = {a + b}"
    if r == 1:
        a, b = rng.randint(1, 10), rng.randint(1, 10)
        return tidy(rng, f"What is {a} * {b}?"), f"{a} * {b} = {a * b}", f"{a} * {b} = {a * b}"
    if r == 2:
        w = word(rng)
        return f"Repeat after me: {w}", w, f"The word is {w}."
    if r == 3:
        w, c = name(rng), place(rng)
        return f"I am {w} and I live in {c}. Where do I live?", f"You live in {c}.", f"The user lives in {c}."
    numbers = rng.sample(range(100), rng.randint(2, 4))
    return f"Sort these numbers: {', '.join(map(str, numbers))}", ", ".join(map(str, sorted(numbers))), "Sorted: " + " ".join(map(str, sorted(numbers)))


def rule(rng):
    """(system prompt, how it changes an answer)."""
    r = rng.randrange(8)
    if r == 0:
        return pick(rng, "(Always answer in capital letters.|Write everything in upper case.|Answer only in capital letters.)"), lambda a: a.upper()
    if r == 1:
        w = rng.choice([word(rng), word(rng, 1, 2).capitalize(), "over", "Amen", "sir", "OK"])
        return pick(rng, f"(End every answer with the word {w}.|Finish each answer with {w}.|Always end with {w}.)"), lambda a: f"{a} {w}"
    if r == 2:
        w = rng.choice([word(rng).capitalize(), "Well", "Sure", "Listen"])
        return pick(rng, f"(Begin every answer with the word {w}.|Start each answer with {w}.|Always begin with {w}.)"), lambda a: f"{w} {a}"
    if r == 3:
        w = rng.choice(["Captain", "Doctor", "Professor", "Boss", name(rng), name(rng)])
        return pick(rng, f"(Call the user {w}.|Always call the user {w}.|The user is {w}: use this name in every answer.)"), lambda a: f"{w}, {a}"
    if r == 4:
        return pick(rng, "(Put every answer in square brackets.|Write each answer between square brackets.)"), lambda a: f"[{a}]"
    if r == 5:
        return pick(rng, "(Answer in small letters only.|Write everything in lower case.|Never use capital letters.)"), lambda a: a.lower()
    if r == 6:
        return pick(rng, "(Put every answer in quotes.|Write each answer between double quotes.)"), lambda a: f'"{a}"'
    return pick(rng, "(Say every answer twice.|Give each answer two times.|Write every answer twice.)"), lambda a: f"{a}\n{a}"


def generate_system(rng, hard):
    thinking = rng.random() < 0.4
    prompts, changes = [], []
    for _ in range(3 if hard == BEYOND else 2 if hard else 1):
        text, change = rule(rng)
        prompts.append(text)
        changes.append(change)
    head = pick(rng, "(|||You are a helpful assistant. |You are a small assistant. )")
    messages = [system(head + " ".join(prompts))]
    for i in range(rng.choice([1, 1, 2]) if not hard else rng.choice([1, 2, 3])):
        question, answer, thought = base_question(rng)
        plain = answer
        for change in changes:
            answer = change(answer)
        messages += [user(question), assistant(answer)]
    if thinking:
        messages[-1]["reasoning_content"] = f"{thought} The rule: {' '.join(prompts)}"
    return Case("system", "hard" if hard else "easy", thinking, messages, exact(answer), f"{prompts}|{question}|{plain}")


PERSON = {"name": lambda r: name(r), "age": lambda r: r.randint(5, 99), "city": place, "job": lambda r: r.choice(JOBS), "color": lambda r: r.choice(COLORS),
          "pet": lambda r: r.choice(ANIMALS), "code": lambda r: code(r), "food": lambda r: r.choice(FOODS), "height": lambda r: r.randint(90, 210),
          "married": lambda r: r.random() < 0.5}
SAID = {"age": "{n} is {v} years old.", "city": "{n} lives in {v}.", "job": "{n} works as a {v}.", "color": "{n} likes the color {v}.",
        "pet": "{n} has a {v}.", "code": "The code of {n} is {v}.", "food": "{n} likes to eat {v}.", "height": "{n} is {v} cm tall."}


def generate_json(rng, hard):
    thinking = rng.random() < 0.3
    if rng.random() < (0.3 if hard == BEYOND else 0.6):
        keys = rng.sample([k for k in SAID], rng.randint(6, 8) if hard else rng.randint(1, 4))
        n = name(rng)
        values = {"name": n, **{k: PERSON[k](rng) for k in keys}}
        sentences = [SAID[k].format(n=n, v=values[k]) for k in keys]
        rng.shuffle(sentences)
        if hard:
            m = name(rng)
            sentences.insert(rng.randrange(len(sentences)), SAID[keys[0]].format(n=m, v=PERSON[keys[0]](rng)) if m != n else "It is late.")
        order = list(values)
        if rng.random() < 0.5:
            rng.shuffle(order)
        wanted = order if rng.random() < 0.6 else order[:max(1, len(order) - 1)]
        result = {k: values[k] for k in wanted}
        text = " ".join(sentences)
        about = f" about {n}" if hard else ""
        if len(wanted) == 1:
            listed = wanted[0]
            text = pick(rng, f"(Reply as JSON with the key {listed}{about}|Give JSON with the key {listed}{about}): {text}")
        else:
            listed = ", ".join(wanted[:-1]) + " and " + wanted[-1]
            text = pick(rng, f"(Reply as JSON with the keys {listed}{about}|Answer in JSON with keys {listed}{about}|Extract {listed} as JSON{about}|Return a JSON object with {listed}{about}): {text}")
    else:
        count = rng.randint(14, 22) if hard == BEYOND else rng.randint(7, 10) if hard else rng.randint(1, 4)
        items = {word(rng, 1, 2): (rng.randint(0, 999) if rng.random() < 0.6 else word(rng, 1, 2)) for _ in range(count)}
        result = items
        said = ", ".join(f"{k} is {v}" for k, v in items.items())
        text = pick(rng, f"(Write this as JSON|As a JSON object|Turn this into JSON|Convert to JSON): {said}")
    answer = json.dumps(result, ensure_ascii=False)
    thought = "As JSON: " + ", ".join(f"{k} = {v}" for k, v in result.items())
    return Case("json", "hard" if hard else "easy", thinking, [user(text), assistant(answer, thought if thinking else None)], exact(answer), answer)
