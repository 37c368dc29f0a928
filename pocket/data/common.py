"""What every task family shares: the case, made-up words, and the split into training and held-out cases."""
import dataclasses
import hashlib
import re

# The generators take `hard`: EASY and HARD cases are trained on; BEYOND ones are longer than any of training and
# only asked, as the hard tier of the evaluation.
EASY, HARD, BEYOND = 0, 1, 2


@dataclasses.dataclass
class Case:
    """One conversation that ends with an assistant turn.

    messages: the whole conversation in the chat API's shape. Assistant turns after the last user
    turn hold `reasoning_content` when `thinking`; the last one is the answer.
    expect: what a checker may demand of the last turn, {"kind": "exact"|"contains"|"text", "text"}.
    key: what makes the case this case, whatever its wording; the held-out split hashes it.
    """
    task: str
    tier: str
    thinking: bool
    messages: list
    expect: dict
    key: str
    tools: list = None


def held_out(case):
    """One case in 32 is never trained on."""
    return hashlib.blake2b(f"{case.task}|{case.key}".encode(), digest_size=4).digest()[0] < 8


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, reasoning=None, calls=None):
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def exact(text):
    return {"kind": "exact", "text": text}


def contains(text):
    return {"kind": "contains", "text": text}


CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")


def pick(rng, text):
    """Expands every (one|two|three) in the text by a random alternative, innermost first."""
    while True:
        found = CHOICE.search(text)
        if not found:
            return text
        text = text[:found.start()] + rng.choice(found.group(1).split("|")) + text[found.end():]


ONSETS = ["b", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "j", "k", "kl", "kr",
          "l", "m", "n", "p", "pl", "pr", "qu", "r", "s", "sh", "sk", "sl", "sm", "sn", "sp", "st", "t", "th",
          "tr", "v", "w", "y", "z"]
VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ai", "ee", "oo", "ou"]
CODAS = ["", "", "", "b", "d", "f", "g", "k", "l", "m", "n", "nd", "nt", "p", "r", "rk", "rn", "s", "sk", "st",
         "t", "x", "z"]


def syllable(rng):
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)


def word(rng, low=2, high=3):
    """A made-up word such as 'drolvemin'."""
    return "".join(syllable(rng) for _ in range(rng.randint(low, high)))


def name(rng):
    return word(rng, 1, 3).capitalize() if rng.random() < 0.7 else rng.choice(FIRST_NAMES)


def distinct(rng, count, make):
    seen = {}
    while len(seen) < count:
        seen.setdefault(make(rng))
    return list(seen)


def code(rng, hard=False):
    kind = rng.random()
    length = rng.randint(6, 12) if hard else rng.randint(2, 6)
    if kind < 0.6:
        return "".join(rng.choice("0123456789") for _ in range(length))
    if kind < 0.8:
        return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2)) + "-" + str(rng.randint(10, 9999))
    return word(rng)


FIRST_NAMES = """Ada Alan Alice Amir Ana Anton Bela Ben Bob Boris Carla Chen Clara Dana David Dora Elena Emma Eric Eva
Felix Fiona Frank Grace Hana Hugo Ida Igor Ines Ivan Jack Jana Jonas Julia Karim Kate Lara Leo Lena Lily Lucas Maria
Mark Marta Max Mia Mira Nadia Nils Nina Noah Olga Oscar Paul Petra Rosa Ruth Sam Sara Sofia Tara Tom Uma Vera Victor
Wanda Will Yara Yuki Zoe""".split()
COLORS = "red blue green yellow orange purple black white brown pink grey silver gold violet turquoise".split()
ANIMALS = """cat dog horse rabbit parrot hamster turtle goat sheep duck fox owl snake frog goldfish mouse pony crow
lizard canary""".split()
FOODS = """pizza rice bread soup cheese pasta salad apples bananas cherries pancakes noodles dumplings olives honey
chocolate lentils mushrooms potatoes tomatoes""".split()
THINGS = """apple ball book bottle box button candle card chair coin cup door feather flower glass hammer hat key lamp
leaf map marble nail pencil pen pin plate ring rope shell spoon stamp stone string ticket tile toy umbrella wheel
window""".split()
CITIES = """Paris London Berlin Madrid Rome Vienna Prague Oslo Athens Lisbon Dublin Tokyo Delhi Cairo Lima Boston
Chicago Sydney Toronto Zurich Geneva Milan Warsaw Budapest Seoul Beijing Shanghai Mumbai Nairobi Helsinki""".split()
SPORTS = "football tennis chess climbing swimming running cycling skiing rowing hockey judo golf sailing hiking".split()
JOBS = """baker carpenter doctor driver engineer farmer gardener journalist lawyer librarian nurse painter pilot
plumber programmer singer teacher tailor translator writer""".split()


def place(rng):
    return rng.choice(CITIES) if rng.random() < 0.4 else word(rng, 2, 3).capitalize()


def plural(noun):
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("f"):
        return noun[:-1] + "ves"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def tidy(rng, text):
    """Small differences of manner: capitals, the last mark, a polite word."""
    r = rng.random()
    if r < 0.12:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12 and text[-1] in ".?!":
        text = text[:-1]
    if rng.random() < 0.06:
        text = text + rng.choice([" Thanks!", " Thank you.", " Please.", " thanks"])
    elif rng.random() < 0.06:
        text = rng.choice(["Hi, ", "Hey, ", "Please: ", "OK, ", "Hello! ", "Now: "]) + text
    return text
