"""Sums, differences, products and quotients: column by column in the thinking, small ones at once without."""
from data.common import BEYOND, Case, assistant, exact, name, pick, plural, tidy, user, THINGS, FOODS


def add_steps(a, b):
    x, y = str(a)[::-1], str(b)[::-1]
    width = max(len(x), len(y))
    x, y = x.ljust(width, "0"), y.ljust(width, "0")
    lines, done, carry = [f"{' '.join(x)}", f"{' '.join(y)}"], "", 0
    for p, q in zip(x, y):
        total = int(p) + int(q) + carry
        done = str(total % 10) + done
        lines.append(f"{p}+{q}+{carry}={total:02d} {done}")
        carry = total // 10
    return "\n".join(lines) + f"\n{a} + {b} = {a + b}"


def subtract_steps(a, b):
    """a >= b."""
    x, y = str(a)[::-1], str(b)[::-1].ljust(len(str(a)), "0")
    lines, done, borrow = [" ".join(x), " ".join(y)], "", 0
    for p, q in zip(x, y):
        left = int(p) - int(q) - borrow
        taken = 1 if left < 0 else 0
        done = str(left + 10 * taken) + done
        lines.append(f"{p}-{q}-{borrow}={left + 10 * taken} b{taken} {done}")
        borrow = taken
    return "\n".join(lines) + f"\n{a} - {b} = {a - b}"


def digit_product_steps(a, d):
    lines, done, carry = [], "", 0
    for p in str(a)[::-1]:
        total = int(p) * d + carry
        done = str(total % 10) + done
        lines.append(f"{p}*{d}+{carry}={total:02d} {done}")
        carry = total // 10
    return "\n".join(lines) + f"\n{a} * {d} = {a * d}"


def multiply_steps(a, b):
    digits = str(b)[::-1]
    if len(digits) == 1:
        return digit_product_steps(a, b)
    lines, total = [], 0
    for place_, d in enumerate(digits):
        part = a * int(d) * 10 ** place_
        lines.append(digit_product_steps(a, int(d)))
        lines.append(f"shift {place_}: {part}")
        if place_:
            lines.append(add_steps(total, part))
        total += part
    return "\n".join(lines) + f"\n{a} * {b} = {a * b}"


def divide_steps(a, d):
    lines, done, rest = [], "", 0
    for p in str(a):
        current = rest * 10 + int(p)
        done += str(current // d)
        rest = current % d
        lines.append(f"{current}/{d}={current // d} r{rest} {done}")
    return "\n".join(lines) + f"\n{a} / {d} = {a // d} remainder {a % d}"


def solve(op, a, b):
    """(steps, result text)."""
    if op == "+":
        return add_steps(a, b), str(a + b)
    if op == "-":
        if a >= b:
            return subtract_steps(a, b), str(a - b)
        return f"{a} < {b}, so minus ({b} - {a})\n{subtract_steps(b, a)}\n{a} - {b} = {a - b}", str(a - b)
    if op == "*":
        return multiply_steps(a, b), str(a * b)
    result = f"{a // b} remainder {a % b}" if a % b else str(a // b)
    return divide_steps(a, b), result


def number(rng, digits):
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10 ** digits - 1)


SPOKEN = {"+": ["What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "Add {a} and {b}.", "What is {a} plus {b}?", "Compute {a} + {b}.",
                "How much is {a} plus {b}?", "What is the sum of {a} and {b}?", "Calculate {a} + {b}.", "{a} + {b} = ?"],
          "-": ["What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "Subtract {b} from {a}.", "What is {a} minus {b}?", "Compute {a} - {b}.",
                "How much is {a} minus {b}?", "Calculate {a} - {b}.", "{a} - {b} = ?"],
          "*": ["What is {a} * {b}?", "{a} * {b}", "{a}*{b}", "Multiply {a} by {b}.", "What is {a} times {b}?", "{a} x {b}",
                "Compute {a} * {b}.", "What is the product of {a} and {b}?", "Calculate {a} x {b}.", "{a} * {b} = ?"],
          "/": ["What is {a} / {b}?", "{a} / {b}", "Divide {a} by {b}.", "What is {a} divided by {b}?", "Compute {a} / {b}.",
                "How often does {b} go into {a}?"]}
ONLY = ["Answer with the number only.", "Just the number, please.", "Only the result.", "Reply with just the number."]


def operands(rng, hard):
    op = rng.choice("++--**/") if not hard else rng.choice("+-**/")
    if op in "+-":
        if hard:
            return op, number(rng, rng.randint(6, 11)), number(rng, rng.randint(5, 11))
        return op, number(rng, rng.randint(1, 5)), number(rng, rng.randint(1, 5))
    if op == "*":
        if hard:
            shape = rng.choice([(3, 3), (4, 2), (4, 3), (7, 1)])
        else:
            shape = rng.choice([(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (2, 2), (3, 2)])
        return op, number(rng, shape[0]), number(rng, shape[1])
    return op, number(rng, rng.randint(6, 9) if hard else rng.randint(2, 5)), rng.randint(2, 9)


def phrase(rng, op, a, b):
    text = tidy(rng, rng.choice(SPOKEN[op]).format(a=a, b=b))
    short = rng.random() < 0.2
    if short:
        text += " " + rng.choice(ONLY)
    return text, short


def generate(rng, hard):
    r = rng.random()
    if not hard and r < 0.2:
        return story(rng)
    if r < 0.3 or hard == BEYOND:
        return chain(rng, hard)
    op, a, b = operands(rng, hard)
    steps, result = solve(op, a, b)
    text, short = phrase(rng, op, a, b)
    answer = result if short else f"{a} {op} {b} = {result}"
    return Case("arithmetic", "hard" if hard else "easy", True, [user(text), assistant(answer, steps)],
                exact(answer), f"{a}{op}{b}")


def chain(rng, hard):
    """Three or more numbers added and subtracted in turn."""
    count = 7 if hard == BEYOND else rng.randint(4, 6) if hard else 3
    numbers = [number(rng, rng.randint(2, 4) if hard else rng.randint(1, 3)) for _ in range(count)]
    total, text, steps = numbers[0], str(numbers[0]), []
    for n in numbers[1:]:
        op = "-" if rng.random() < 0.35 and n <= total else "+"
        part, value = solve(op, total, n)
        steps.append(part)
        text += f" {op} {n}"
        total = int(value)
    asked = tidy(rng, rng.choice(["What is {t}?", "{t}", "Compute {t}.", "Calculate {t}.", "{t} = ?"]).format(t=text))
    answer = f"{text} = {total}"
    return Case("arithmetic", "hard" if hard else "easy", True, [user(asked), assistant(answer, "\n".join(steps))],
                exact(answer), text)


def story(rng):
    who, other = name(rng), name(rng)
    noun = plural(rng.choice(THINGS)) if rng.random() < 0.7 else rng.choice(FOODS[7:])
    a, b = number(rng, rng.randint(1, 3)), number(rng, rng.randint(1, 3))
    kind = rng.randrange(4)
    if kind == 0:
        op, text = "+", pick(rng, f"{who} has {a} {noun} and (gets|buys|finds|receives) {b} more. How many {noun} does {who} have now?")
    elif kind == 1:
        a, b = max(a, b), min(a, b)
        op, text = "-", pick(rng, f"{who} has {a} {noun} and (gives {b} to {other}|loses {b} of them|sells {b}). How many {noun} (are left|does {who} have left)?")
    elif kind == 2:
        a, b = number(rng, rng.randint(1, 2)), rng.randint(2, 9)
        op, text = "*", pick(rng, f"(There are|{who} has|{who} buys) {b} boxes with {a} {noun} each. How many {noun} are there in all?")
    else:
        op, text = "+", f"{who} has {a} {noun}, {other} has {b}. How many {noun} do they have together?"
    steps, result = solve(op, a, b)
    answer = f"{result} {noun}"
    return Case("arithmetic", "easy", True, [user(text), assistant(answer, steps)], exact(answer), text)


def instant(rng, hard):
    """Without thinking: two digits and the multiplication table; the hard tier three digits."""
    op = rng.choice("++--*")
    if op == "*":
        a, b = (rng.randint(11, 30), rng.randint(3, 9)) if hard else (rng.randint(0, 12), rng.randint(0, 10))
    else:
        top = 999 if hard else 99
        a, b = rng.randint(100 if hard else 0, top), rng.randint(0, top)
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    text, short = phrase(rng, op, a, b)
    answer = str(result) if short else f"{a} {op} {b} = {result}"
    key = text if op == "*" and not hard else f"{a}{op}{b}"
    return Case("arithmetic-instant", "hard" if hard else "easy", False, [user(text), assistant(answer)], exact(answer), key)
