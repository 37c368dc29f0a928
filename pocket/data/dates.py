"""Dates (differences, sums, weekdays) and units, with the way written out in the thinking."""
import datetime

from data.arithmetic import add_steps, multiply_steps, subtract_steps, digit_product_steps
from data.common import BEYOND, Case, assistant, exact, pick, tidy, user

MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
BEFORE = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]
MONTH_CODE = [0, 3, 3, 6, 1, 4, 6, 2, 5, 0, 3, 5]


def leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def shown(rng, day):
    return pick(rng, f"({day.day} {MONTHS[day.month - 1]} {day.year}|{day.isoformat()}|{MONTHS[day.month - 1]} {day.day}, {day.year})")


def spoken(day):
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def some_day(rng):
    return datetime.date(rng.randint(2000, 2060), 1, 1) + datetime.timedelta(rng.randrange(365))


def number_in_year(day):
    """(steps, day number in its year)."""
    extra = 1 if leap(day.year) and day.month > 2 else 0
    n = BEFORE[day.month - 1] + extra + day.day
    year = f"{day.year} {'is' if leap(day.year) else 'is not'} a leap year"
    return f"{year}. Before {MONTHS[day.month - 1]}: {BEFORE[day.month - 1] + extra}. {BEFORE[day.month - 1] + extra}+{day.day}={n}", n


def between(rng, hard):
    a = some_day(rng)
    if hard:
        b = a + datetime.timedelta(rng.randint(600, 1600) if hard == BEYOND else rng.randint(200, 1200))
    else:
        b = datetime.date(a.year, 1, 1) + datetime.timedelta(rng.randrange(365))
        a, b = min(a, b), max(a, b)
    text = pick(rng, f"(How many days are there between {shown(rng, a)} and {shown(rng, b)}?|Days from {shown(rng, a)} to {shown(rng, b)}?|How many days from {shown(rng, a)} until {shown(rng, b)}?)")
    steps_a, na = number_in_year(a)
    steps_b, nb = number_in_year(b)
    steps = [steps_a, steps_b]
    for year in range(a.year, b.year):
        days = 366 if leap(year) else 365
        steps.append(f"{year} has {days}. {nb}+{days}={nb + days}")
        nb += days
    steps.append(subtract_steps(nb, na))
    return text, "\n".join(steps), f"{nb - na} days"


def later(rng, hard):
    a = some_day(rng)
    n = rng.randint(500, 999) if hard == BEYOND else rng.randint(61, 700) if hard else rng.randint(1, 60)
    b = a + datetime.timedelta(n)
    text = pick(rng, f"(What date is {n} days after {shown(rng, a)}?|Add {n} days to {shown(rng, a)}.|Which day is {n} days after {shown(rng, a)}?)")
    day, month, year, left = a.day, a.month, a.year, n
    steps = []
    day += left
    steps.append(f"{a.day}+{n}={day}")
    while True:
        length = 29 if month == 2 and leap(year) else [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1]
        if day <= length:
            steps.append(f"{MONTHS[month - 1]} {year} {length}: {day} fits")
            break
        steps.append(f"{MONTHS[month - 1]} {year} {length}: {day}-{length}={day - length}")
        day -= length
        month += 1
        if month > 12:
            month, year = 1, year + 1
    return text, "\n".join(steps), spoken(b)


def weekday(rng, hard):
    a = some_day(rng)
    year = a.year % 100
    code = MONTH_CODE[a.month - 1]
    early = leap(a.year) and a.month < 3
    text = pick(rng, f"(What day of the week is {shown(rng, a)}?|Which weekday is {shown(rng, a)}?|What weekday was {shown(rng, a)}?)")
    total = year + year // 4
    steps = [f"{a.year}: {year}+{year}/4={year}+{year // 4}={total}", f"{MONTHS[a.month - 1]}: {code}. {total}+{code}={total + code}",
             f"{total + code}+{a.day}={total + code + a.day}"]
    total += code + a.day
    if early:
        steps.append(f"leap year before March: {total}-1={total - 1}")
        total -= 1
    steps.append(f"{total}=7*{total // 7}+{total % 7}")
    steps.append(" ".join(f"{DAYS[(5 + i) % 7]}{i}" for i in range(total % 7 + 1)))  # a sum of 7n is a Saturday
    return text, "\n".join(steps), DAYS[a.weekday()]


def weekday_ahead(rng, hard):
    start = rng.randrange(7)
    n = rng.randint(500, 1500) if hard == BEYOND else rng.randint(100, 999) if hard else rng.randint(1, 60)
    back = rng.random() < 0.2
    if back:
        text = pick(rng, f"(Today is {DAYS[start]}. What day was it {n} days ago?|If today is {DAYS[start]}, which weekday was {n} days ago?)")
        end = (start - n) % 7
    else:
        text = pick(rng, f"(Today is {DAYS[start]}. What day is it in {n} days?|If today is {DAYS[start]}, which weekday is it {n} days later?|It is {DAYS[start]}. Which day will it be in {n} days?)")
        end = (start + n) % 7
    move = n % 7
    step = -1 if back else 1
    walk = " ".join(f"{DAYS[(start + step * i) % 7]}{i}" for i in range(move + 1))
    return text, f"{n}=7*{n // 7}+{move}\n{walk}", DAYS[end]


def month_days(rng, hard):
    year, month = rng.randint(2000, 2060), rng.randrange(12)
    length = 29 if month == 1 and leap(year) else [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month]
    text = pick(rng, f"(How many days does {MONTHS[month]} {year} have?|How many days are in {MONTHS[month]} {year}?)")
    return text, f"{year} {'is' if leap(year) else 'is not'} a leap year.", f"{length} days"


UNITS = [("km", "m", 1000), ("m", "cm", 100), ("cm", "mm", 10), ("kg", "g", 1000), ("t", "kg", 1000), ("l", "ml", 1000), ("hours", "minutes", 60),
         ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12), ("m", "mm", 1000), ("GB", "MB", 1000)]


def units(rng, hard):
    big, small, factor = rng.choice(UNITS)
    n = rng.randint(2000, 20000) if hard == BEYOND else rng.randint(100, 9999) if hard else rng.randint(1, 99)
    if rng.random() < 0.6:
        text = pick(rng, f"(Convert {n} {big} to {small}.|How many {small} are {n} {big}?|What is {n} {big} in {small}?|{n} {big} in {small}?)")
        steps = f"1 {big} = {factor} {small}\n"
        steps += f"{n} * {factor} = {n * factor}" if factor in (10, 100, 1000) else multiply_steps(n, factor)
        return text, steps, f"{n} {big} = {n * factor} {small}"
    text = pick(rng, f"(Convert {n * factor} {small} to {big}.|How many {big} are {n * factor} {small}?|What is {n * factor} {small} in {big}?)")
    steps = f"1 {big} = {factor} {small}\n"
    steps += f"{n * factor} / {factor} = {n}" if factor in (10, 100, 1000) else f"{n * factor} / {factor} = {n}\n{multiply_steps(n, factor)}"
    return text, steps, f"{n * factor} {small} = {n} {big}"


def clock(rng, hard):
    h, m = rng.randrange(24), rng.randrange(60)
    n = rng.randint(700, 1200) if hard == BEYOND else rng.randint(61, 900) if hard else rng.randint(1, 120)
    total = h * 60 + m + n
    text = pick(rng, f"(It is {h:02d}:{m:02d}. What time is it in {n} minutes?|What time is {n} minutes after {h:02d}:{m:02d}?)")
    steps = f"{m}+{n}={m + n}\n{m + n}=60*{(m + n) // 60}+{(m + n) % 60}\n{h}+{(m + n) // 60}={h + (m + n) // 60}"
    return text, steps, f"{total // 60 % 24:02d}:{total % 60:02d}"


MAKERS = [between, later, weekday, weekday_ahead, month_days, units, units, clock]


def generate(rng, hard):
    maker = rng.choice(MAKERS)
    text, steps, answer = maker(rng, hard)
    key = text if maker is month_days else f"{maker.__name__}|{steps}|{answer}"
    return Case("dates-units", "hard" if hard else "easy", True, [user(tidy(rng, text)), assistant(answer, steps)], exact(answer), key)
