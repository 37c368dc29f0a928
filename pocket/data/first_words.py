"""What people type first: everyday spelling, and several requests in one message, all answered in order."""
import re

from data import arithmetic, chat
from data.common import Case, assistant, contains, exact, name, pick, user, CITIES

SHORTER = [("what is", "whats"), ("what is", "what's"), ("are you", "r u"), ("you", "u"), ("please", "pls"), ("thank you", "thx"),
           ("thanks", "thx"), ("i am", "im"), ("do not", "dont"), ("tell me", "tell me"), ("can you", "can u"), ("how are", "how r")]


def everyday(rng, text):
    """The same request as somebody types it who is in a hurry."""
    r = rng.random()
    if r < 0.3:
        return text
    if r < 0.85:
        text = text.lower()
    for long, short in SHORTER:
        if rng.random() < 0.4:
            text = re.sub(rf"\b{long}\b", short, text, flags=re.IGNORECASE)
    if rng.random() < 0.6:
        text = text.rstrip(".?!") or text
    words = text.split(" ")
    if rng.random() < 0.12:
        at = rng.randrange(len(words))
        w = words[at]
        if len(w) >= 5 and w.isalpha():
            i = rng.randint(1, len(w) - 3)
            words[at] = w[:i] + w[i + 1] + w[i] + w[i + 2:]
    text = " ".join(words)
    if rng.random() < 0.08:
        text = rng.choice(["hey ", "hi, ", "ok ", "so ", "hey, ", "um "]) + text
    if rng.random() < 0.08:
        text = text.rstrip(".?!") + rng.choice([" please", " pls", "??", "!", " ?"])
    return text


def spoken_steps(op, a, b):
    """How a person works out a small sum aloud."""
    if op == "+":
        x, y = str(a)[::-1], str(b)[::-1]
        width, carry, steps = max(len(x), len(y)), 0, []
        for p, q in zip(x.ljust(width, "0"), y.ljust(width, "0")):
            total = int(p) + int(q) + carry
            steps.append(f"{p} + {q}{' + 1' if carry else ''} = {total}" + (f", write {total - 10} and carry 1" if total > 9 else ""))
            carry = total // 10
        return f"{a} + {b}: {'; '.join(steps)}. So {a} + {b} = {a + b}."
    if op == "-" and a >= b > 9:
        tens = b // 10 * 10
        return f"{a} - {b}: {a} - {tens} = {a - tens}; {a - tens} - {b - tens} = {a - b}. So {a} - {b} = {a - b}."
    if op == "*" and a > 12:
        tens = a // 10 * 10
        return f"{a} * {b}: {tens} * {b} = {tens * b}; {a - tens} * {b} = {(a - tens) * b}; together {a * b}. So {a} * {b} = {a * b}."
    return f"{a} {op} {b} = {arithmetic.solve(op, a, b)[1]}."


def small_sum(rng):
    op = rng.choice("+++--**/")
    if op in "+-":
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if op == "-":
            a, b = max(a, b), min(a, b)
    elif op == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
    else:
        b = rng.randint(2, 10)
        a = b * rng.randint(0, 10)
    return op, a, b


SAID = {"+": "{a} + {b}|{a}+{b}|{a} plus {b}|{a} and {b} together", "-": "{a} - {b}|{a}-{b}|{a} minus {b}",
        "*": "{a} * {b}|{a}*{b}|{a} x {b}|{a} × {b}|{a} times {b}|{a}x{b}", "/": "{a} / {b}|{a}/{b}|{a} divided by {b}|{a} ÷ {b}"}


def sum_part(rng):
    op, a, b = small_sum(rng)
    said = rng.choice(SAID[op].split("|")).format(a=a, b=b)
    ask = rng.choice(["what is {s}", "what's {s}", "what is {s}", "how much is {s}", "compute {s}", "calculate {s}", "tell me {s}"]).format(s=said)
    return ask, f"what {a} {op} {b} is", spoken_steps(op, a, b), f"{a} {op} {b} is {arithmetic.solve(op, a, b)[1]}."


def sort_part(rng):
    numbers = rng.sample(range(60), rng.randint(3, 4))
    text = ", ".join(map(str, numbers))
    done = ", ".join(map(str, sorted(numbers)))
    return pick(rng, f"(sort|sort the numbers|put in order:) {text}"), f"to sort {text}", f"The smallest is {min(numbers)}, so the order is {done}.", f"Sorted: {done}."


def unknown_part(rng):
    country = rng.choice(chat.COUNTRIES)
    what = rng.choice(["the capital of {c}", "the president of {c}", "the weather in {t}", "the price of gold", "the meaning of life", "the speed of light",
                       "the population of {t}"]).format(c=country, t=rng.choice(CITIES))
    return f"what is {what}", what, f"I have no knowledge of the world, so I do not know {what} and say so.", f"I do not know {what}."


def introduction(rng, text, answer, thought):
    """Somebody says a name before the rest, and may ask for it again."""
    said = name(rng)
    lead = rng.choice(["Hello, my name is {n}. ", "Hi, my name is {n}. ", "my name is {n}. ", "My name is {n}. ", "I am {n}. ", "Hi! I'm {n}. ", "Hello, I am {n}. ", "This is {n}. "]).format(n=said)
    if rng.random() < 0.35:
        ask = rng.choice(["What is my name?", "what's my name?", "What is my name", "Do you remember my name?", "Who am I?", "Tell me my name."])
        return lead + ask, f"Your name is {said}.", f"The user says a name, {said}, and asks for it. The answer is in the message: {said}."
    start = rng.choice([text, text, text[0].upper() + text[1:]])
    return lead + start, f"Hello {said}! " + answer, f"The user's name is {said}, so I greet {said}. " + thought


# (questions, what is asked, a thought, answer); questions stand inside a sentence
PARTS = [
    ("who are you|what are you|who are you|who are you exactly|tell me who you are|introduce yourself", "who I am", "I am the pocket model of Baltoro.", chat.WHO),
    ("what is your name|what's your name|tell me your name|how are you called", "my name", "People can call me Pocket.", "My name is Pocket."),
    ("what can you do|what are you able to do|what are you good at|tell me what you can do|how can you help me", "what I can do", "I list my skills.", f"I can do {chat.SKILLS}."),
    ("how are you|how are you doing|how is it going|how are you today", "how I am", "I am fine.", "I am fine, thank you."),
    ("tell me a joke|do you know a joke|make me laugh", "for a joke", "I know one about a glacier.", "Why did the model cross the glacier? To reach the other context."),
    ("who made you|who built you|who trained you", "who made me", "The Baltoro project did.", "The Baltoro project made and trained me."),
    ("what is Baltoro|tell me about Baltoro|what does Baltoro do", "what Baltoro is", "It is a server for models.", "Baltoro is an inference server for the Kimi K2 family of models."),
    ("are you human|are you a robot|are you an AI|are you a person", "whether I am human", "I am a model.", "I am a small language model, not a person."),
    ("how big are you|how many parameters do you have|how large are you", "how large I am", "I have 13.5 million parameters.", "I have 13.5 million parameters."),
    ("do you know Python|can you write code|can you program", "whether I can program", "I am too small for that.", "I am too small to write programs."),
]
COUNTED = {2: "two", 3: "three"}


def part(rng, row):
    if callable(row):
        return row(rng)
    questions, what, thought, answer = row
    return rng.choice(questions.split("|")), what, thought, answer


def listed(texts):
    return ", ".join(texts[:-1]) + " and " + texts[-1]


def compound(rng):
    rows = [sum_part, sum_part, sum_part, sort_part, unknown_part]
    count = 2 if rng.random() < 0.75 else 3
    chosen = []
    while len(chosen) < count:
        row = rng.choice(rows) if rng.random() < 0.45 else rng.choice(PARTS[:3] if rng.random() < 0.5 else PARTS)
        if row not in chosen:
            chosen.append(row)
    parts = [part(rng, row) for row in chosen]
    asks = [p[0] for p in parts]
    up = [a[0].upper() + a[1:] for a in asks]
    style = rng.randrange(5)
    if style < 2:
        joint = rng.choice([", and ", " and ", ", and also ", " and then ", " and, "])
        text = (", ".join([up[0], *asks[1:-1]]) + joint + asks[-1]) + "?"
    elif style == 2:
        text = "? ".join(up) + "?"
    elif style == 3:
        text = "? ".join([*up[:-1], rng.choice(["And ", "Also, ", "And also ", "Then "]) + asks[-1]]) + "?"
    else:
        text = rng.choice([". ", "; ", "\n"]).join(up) + "."
    lead, hello, first = "", "", ""
    r = rng.random()
    if r < 0.35:
        lead, hello, first = rng.choice(["Hi! ", "Hello! ", "Hello! ", "Hey, ", "Hi, ", "Hello, ", "Good morning! ", "Hi there! "]), "Hello! ", "The user greets me and "
    elif r < 0.45:
        lead, hello, first = rng.choice(["Thanks. ", "Thank you! ", "Thanks! ", "thx, ", "Great, thanks. Now "]), "You are welcome! ", "The user thanks me and "
    text = lead + (text if not lead.endswith((", ", "Now ")) else text[0].lower() + text[1:])
    thought = (first or "The user ") + f"asks {COUNTED[count]} things: {listed([p[1] for p in parts])}. First: {parts[0][2]} "
    thought += " ".join(f"Then: {p[2]}" for p in parts[1:]) + " I answer all in order."
    answer = hello + " ".join(p[3] for p in parts)
    return text, answer, thought


GREETINGS = ["hi", "hello", "hey", "yo", "hiya", "good morning", "good evening", "good afternoon", "heya", "hello there", "are you there", "anybody there", "hi there", "morning", "sup", "hello, pocket"]


def generate(rng, hard=False):
    thinking = rng.random() < 0.5
    r = rng.random()
    if r < 0.08:
        ask, what, steps, answer = sum_part(rng) if rng.random() < 0.7 else part(rng, rng.choice(PARTS))
        text, answer, thought = introduction(rng, ask + "?", answer, f"The user asks {what}. {steps}")
        expect, key = exact(answer), text
    elif r < 0.5:
        text, answer, thought = compound(rng)
        text = everyday(rng, text) if rng.random() < 0.4 else text
        expect, key = exact(answer), text
    elif r < 0.6:
        text = rng.choice(GREETINGS)
        if rng.random() < 0.25:
            text += " " + rng.choice([name(rng), "everyone", "friend", "pocket"])
        text = rng.choice([text, text, text[0].upper() + text[1:]]) + rng.choice(["", "", "!", ".", "?" if "there" in text else "!!"])
        answer, thought = "Hello! How can I help you?", chat.natural("The user greets me.")
        expect, key = contains("Hello"), text
    elif r < 0.75:
        op, a, b = small_sum(rng)
        said = rng.choice(SAID[op].split("|")).format(a=a, b=b)
        text = everyday(rng, rng.choice(["what is {s}?", "{s}?", "{s}", "{s}=?", "{s} =", "how much is {s}?", "whats {s}", "what's {s}?", "can you tell me {s}?", "{s} equals what?"]).format(s=said))
        steps, result = arithmetic.solve(op, a, b)
        answer, thought = f"{a} {op} {b} = {result}", steps
        expect, key = exact(answer), text
    else:
        text, answer, thought, holds = chat.intent(rng)
        text = everyday(rng, text)
        expect, key = contains(holds), text
    return Case("first-words", "easy", thinking, [user(text), assistant(answer, thought if thinking else None)], expect, key)
