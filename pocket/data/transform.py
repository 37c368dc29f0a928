"""Copying, reversing, counting, sorting, changing case: text work on made-up words, codes and lists."""
from data.common import (BEYOND, Case, assistant, exact, pick, tidy, user, word, code, distinct, name, FOODS, ANIMALS, COLORS, THINGS)


def spelled(text):
    return " ".join(text)


def some_word(rng, hard):
    if hard:
        return word(rng, 6, 8) if hard == BEYOND else word(rng, 4, 6)
    return word(rng, 1, 3) if rng.random() < 0.8 else rng.choice(ANIMALS + COLORS + THINGS + FOODS)


def reverse_word(rng, hard):
    w = some_word(rng, hard)
    text = pick(rng, f"(Reverse the word {w}.|Write {w} backwards.|Spell {w} in reverse.|Reverse: {w}|What is {w} backwards?|Reverse the letters of \"{w}\".)")
    return text, f"{spelled(w)}\nreversed: {spelled(w[::-1])}", w[::-1], None


def count_letters(rng, hard):
    w = some_word(rng, hard)
    text = pick(rng, f"(How many letters does the word {w} have?|Count the letters of {w}.|How many letters are in {w}?|How long is the word \"{w}\"?)")
    return text, " ".join(f"{c}{i + 1}" for i, c in enumerate(w)), str(len(w)), None


def count_one_letter(rng, hard):
    w = some_word(rng, hard)
    letter = rng.choice(w) if rng.random() < 0.9 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    text = pick(rng, f"(How many times does the letter {letter} occur in {w}?|Count the letter {letter} in {w}.|How many {letter}'s are in the word {w}?|How often is {letter} in \"{w}\"?)")
    seen, steps = 0, []
    for c in w:
        seen += c == letter
        steps.append(f"{c}{seen}")
    return text, " ".join(steps), str(seen), None


def upper(rng, hard):
    w = " ".join(some_word(rng, False) for _ in range(rng.randint(7, 14) if hard else rng.randint(1, 4)))
    text = pick(rng, f"(Write in capital letters: {w}|Convert to upper case: {w}|Uppercase this: {w}|Put \"{w}\" in capitals.|Say this in upper case: {w})")
    return text, f"Capital letters: {w}", w.upper(), w.upper()


def lower(rng, hard):
    w = " ".join(some_word(rng, False) for _ in range(rng.randint(7, 14) if hard else rng.randint(1, 4)))
    text = pick(rng, f"(Write in small letters: {w.upper()}|Convert to lower case: {w.upper()}|Lowercase this: {w.upper()})")
    return text, f"Small letters: {w.upper()}", w, w


def copy(rng, hard):
    kind = rng.random()
    if kind < 0.6:
        w = " ".join(some_word(rng, False) for _ in range(rng.randint(20, 45) if hard else rng.randint(1, 12)))
    else:
        w = "".join(rng.choice("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
                    for _ in range(rng.randint(24, 64) if hard else rng.randint(4, 16)))
    text = pick(rng, "(Repeat after me: |Copy this exactly: |Say exactly: |Repeat: |Echo this: |Write this again: |Copy: )") + w
    return text, "I copy it letter by letter.", w, w


def sort_numbers(rng, hard):
    count = rng.randint(13, 15) if hard == BEYOND else rng.randint(9, 13) if hard else rng.randint(3, 6)
    top = rng.choice([999, 9999]) if hard else rng.choice([9, 99, 99, 999])
    numbers = rng.sample(range(0, top + 1), count) if count <= top else [rng.randint(0, top) for _ in range(count)]
    down = rng.random() < 0.3
    shown = ", ".join(map(str, numbers))
    if down:
        text = pick(rng, f"(Sort these numbers from largest to smallest: {shown}|Sort in descending order: {shown}|Order from high to low: {shown})")
    else:
        text = pick(rng, f"(Sort these numbers: {shown}|Sort from smallest to largest: {shown}|Sort in ascending order: {shown}|Put in order: {shown}|Order these numbers from low to high: {shown})")
    left, steps = list(numbers), []
    for n in sorted(numbers, reverse=down):
        steps.append(f"{' '.join(map(str, left))}: {n}")
        left.remove(n)
    answer = ", ".join(map(str, sorted(numbers, reverse=down)))
    return text, "\n".join(steps), answer, answer


def sort_words(rng, hard):
    items = distinct(rng, rng.randint(12, 14) if hard == BEYOND else rng.randint(8, 12) if hard else rng.randint(3, 5), lambda r: some_word(r, False))
    shown = ", ".join(items)
    text = pick(rng, f"(Sort these words alphabetically: {shown}|Sort by alphabet: {shown}|Put these words in alphabetical order: {shown}|Alphabetical order, please: {shown})")
    left, steps = list(items), []
    for item in sorted(items):
        steps.append(f"{' '.join(left)}: {item}")
        left.remove(item)
    answer = ", ".join(sorted(items))
    return text, "\n".join(steps), answer, answer if len(items) <= 4 else None


def some_list(rng, hard):
    count = rng.randint(18, 26) if hard == BEYOND else rng.randint(10, 20) if hard else rng.randint(3, 8)
    if rng.random() < 0.5:
        return distinct(rng, count, lambda r: some_word(r, False))
    return [str(rng.randint(0, 99)) for _ in range(count)]


def reverse_list(rng, hard):
    items = some_list(rng, hard)
    shown, answer = ", ".join(items), ", ".join(reversed(items))
    text = pick(rng, f"(Reverse this list: {shown}|Write this list backwards: {shown}|List these in reverse order: {shown})")
    return text, "I start with the last item.", answer, answer


def count_items(rng, hard):
    items = some_list(rng, hard)
    text = pick(rng, f"(How many items are in this list: {', '.join(items)}?|Count the items: {', '.join(items)}|How many entries: {', '.join(items)})")
    return text, "\n".join(f"{item}: {i + 1}" for i, item in enumerate(items)), str(len(items)), None


def count_words(rng, hard):
    items = [some_word(rng, False) for _ in range(rng.randint(12, 25) if hard else rng.randint(2, 9))]
    text = pick(rng, f"(How many words are in this sentence: {' '.join(items)}|Count the words: {' '.join(items)})")
    return text, "\n".join(f"{item}: {i + 1}" for i, item in enumerate(items)), str(len(items)), None


ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()


def nth_item(rng, hard):
    items = some_list(rng, hard)
    index = rng.randrange(min(len(items), 10))
    which = ORDINALS[index]
    if rng.random() < 0.25:
        index, which = len(items) - 1, "last"
    text = pick(rng, f"(What is the {which} item of this list: {', '.join(items)}?|Give me the {which} entry: {', '.join(items)}|Which one is {which}: {', '.join(items)}?)")
    steps = "\n".join(f"{i + 1}: {item}" for i, item in enumerate(items[:index + 1]))
    return text, steps, items[index], items[index] if index < 3 or which == "last" else None


def extreme(rng, hard):
    numbers = rng.sample(range(0, 99999 if hard else 1000), rng.randint(8, 14) if hard else rng.randint(2, 6))
    big = rng.random() < 0.5
    kind = rng.choice(["largest", "biggest", "greatest"] if big else ["smallest", "lowest", "least"])
    shown = ", ".join(map(str, numbers))
    text = pick(rng, f"(Which number is the {kind}: {shown}?|What is the {kind} of these numbers: {shown}|Find the {kind} number: {shown})")
    best, steps = numbers[0], []
    for n in numbers:
        best = max(best, n) if big else min(best, n)
        steps.append(f"{n}: {best}")
    return text, "\n".join(steps), str(best), str(best)


def join(rng, hard):
    items = [some_word(rng, False) for _ in range(rng.randint(10, 16) if hard else rng.randint(2, 6))]
    mark, called = rng.choice([("-", "hyphens"), ("_", "underscores"), (", ", "commas"), ("/", "slashes"), ("", "nothing"), (" ", "spaces")])
    text = pick(rng, f"(Join these words with {called}: {' '.join(items)}|Put {called} between these words: {' '.join(items)})")
    answer = mark.join(items)
    return text, f"{called} between: {' '.join(items)}", answer, answer


def again(rng, hard):
    times = rng.randint(8, 14) if hard else rng.randint(2, 6)
    w = some_word(rng, False)
    answer = " ".join([w] * times)
    steps = " ".join(f"{w} {i + 1}" for i in range(times))
    return pick(rng, f"(Say {w} {times} times.|Write the word {w} {times} times.|Repeat \"{w}\" {times} times.)"), steps, answer, answer


MAKERS = {"reverse": reverse_word, "letters": count_letters, "letter": count_one_letter, "upper": upper, "lower": lower, "copy": copy,
          "sort": sort_numbers, "alphabet": sort_words, "backwards": reverse_list, "items": count_items, "words": count_words,
          "nth": nth_item, "extreme": extreme, "join": join, "again": again}


def generate(rng, hard):
    while True:
        kind = rng.choice(list(MAKERS))
        text, steps, answer, at_once = MAKERS[kind](rng, hard)
        thinking = at_once is None or rng.random() < 0.5
        if rng.random() < 0.5:
            text = tidy(rng, text) if kind not in ("copy", "upper", "lower", "words", "join") else text
        messages = [user(text), assistant(answer, steps if thinking else None)]
        return Case("transform", "hard" if hard else "easy", thinking, messages, exact(answer), f"{kind}|{steps}|{answer}")
