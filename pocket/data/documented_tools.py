"""Tools as the documentation of OpenAI and Anthropic declares them, asked for in everyday words and answered in sentences."""
import json
import re

from data.common import Case, assistant, name, pick, place, user, word
from data.daily_tools import S, clock, mail, title
from data.first_words import compound, everyday
from data.chat import intent

I = {"type": "integer"}
UNITS = ["celsius", "fahrenheit"]
CITY_STATE, CITY_COUNTRY = "The city and state, e.g. San Francisco, CA", "City and country e.g. Bogotá, Colombia"
PLACES = ["Paris", "Boston", "San Francisco", "San Francisco, CA", "Bogotá, Colombia", "Paris, France", "New York", "New York, NY", "London", "Tokyo", "Los Angeles", "Berlin",
          "Boston, MA", "Rome", "São Paulo", "Zürich", "Mexico City", "Rio de Janeiro", "Hong Kong", "Chicago", "Dallas", "Glasgow, Scotland", "Tokyo, Japan", "Madrid", "Seattle, WA"]


def where(rng):
    r = rng.random()
    if r < 0.55:
        return rng.choice(PLACES)
    made = place(rng) + (", " + place(rng) if rng.random() < 0.2 else "")
    return made.lower() if rng.random() < 0.15 else made


SIGNS = "Aries Taurus Gemini Cancer Leo Virgo Libra Scorpio Sagittarius Capricorn Aquarius Pisces".split()
VALUES = {"place": where, "place2": where, "name": name, "title": title, "words": title, "clock": clock, "mail": mail, "n": lambda r: r.randint(1, 99),
          "sign": lambda r: r.choice(SIGNS), "stock": lambda r: r.choice(["AAPL", "MSFT", "GOOG", "TSLA", "NVDA", "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(3, 4)))]),
          "price": lambda r: r.randint(1000, 99999) / 100, "restaurant": lambda r: word(r).capitalize()}

# names, descriptions, parameters (name, schema, required, which value), requests, results with answers, question when the value is missing with its request
WEATHER = ("get_weather|get_weather|get_weather|get_current_weather", "Get current temperature for a given location.|Get the current weather in a given location|Retrieves current weather for the given location.|Get the weather for a location|",
           [("location|location|location|location|city", {**S, "description": f"{CITY_STATE}|{CITY_STATE}|{CITY_COUNTRY}|{CITY_COUNTRY}|The city|The location"}, True, "place"),
            ("unit|unit|units", {**S, "enum": UNITS, "description": "The unit of temperature, either \"celsius\" or \"fahrenheit\"|The unit of temperature, either 'celsius' or 'fahrenheit'|Units the temperature will be returned in.|"}, False, "unit")],
           "(What is|What's) the weather like in {place} today?|What is the weather like in {place}?|What's the weather like in {place}?|What's the weather in {place}?|How is the weather in {place}?|What is the weather in {place} right now?|"
           "weather in {place}|Is it cold in {place}?|How warm is it in {place}?|What's the temperature in {place}?|Tell me the weather in {place}.|Can you check the weather in {place}?|Please get the weather for {place}.|Do I need an umbrella in {place}?",
           None, ("What is the weather like?|What's the weather today?|How warm is it?|Get the weather.", "For which place do you want the weather?"))
OTHERS = [
    ("get_time|get_current_time", "Get the current time in a given location|Get the current time in a given time zone", [("location|city|timezone", {**S, "description": f"{CITY_STATE}|The city|"}, True, "place")],
     "What time is it in {place}?|What's the time in {place}?|Tell me the time in {place}.|What is the current time in {place}?", [('{"time": "{clock}"}', "It is {clock} in {place}."), ("{clock}", "It is {clock} in {place}.")],
     ("What time is it there?|Get the time.", "For which place do you want the time?")),
    ("get_stock_price", "Get the current stock price for a given ticker symbol.|Get the current price of a stock", [("ticker|symbol", {**S, "description": "The stock ticker symbol, e.g. AAPL for Apple Inc.|The ticker"}, True, "stock")],
     "What is the stock price of {stock}?|What's {stock} trading at?|How much is {stock} today?|Get the price of {stock}.", [('{"price": {price}}', "The price of {stock} is {price}."), ("{price}", "The price of {stock} is {price}.")],
     ("What is the stock price?|Get me the price of the stock.", "Which stock do you mean?")),
    ("get_horoscope", "Get today's horoscope for an astrological sign.", [("sign", {**S, "description": "An astrological sign like Taurus or Aquarius"}, True, "sign")],
     "What is my horoscope? I am {an_sign}.|What's the horoscope for {sign}?|Horoscope for {sign}, please.|Get the horoscope of {sign}.", [('{"horoscope": "{words}"}', "The horoscope for {sign} says: {words}"), ("{sign}: {words}", "The horoscope for {sign} says: {words}")],
     ("What is my horoscope?|Tell me my horoscope.", "What is your sign?")),
    ("search|web_search|search_web", "Search the web|Search the web for a query", [("query|q", {**S, "description": "The search query|What to search for"}, True, "words")],
     "Search for {words}.|Search the web for {words}|Find something about {words}.|Look up {words}.", [('{"results": ["{name}"]}', "I found: {name}"), ("{name}", "I found: {name}")],
     ("Search the web for me.|Search for something.", "What shall I search for?")),
    ("send_email", "Send an email|Sends an email to a given recipient with a subject and message.", [("to", {**S, "description": "The recipient email address.|Email address"}, True, "mail"), ("subject", {**S, "description": "Email subject line.|The subject"}, True, "title"),
     ("body", {**S, "description": "Body of the email message.|The text"}, True, "words")],
     "Send an email to {mail} with the subject \"{title}\" and the body \"{words}\".|Email {mail}: subject \"{title}\", body \"{words}\".|Write \"{words}\" to {mail} with the subject \"{title}\".|With the subject {title}, send {mail} an email that says {words}",
     [('{"status": "sent"}', "The email to {mail} is sent."), ("sent", "The email to {mail} is sent.")], ("Send an email.|Please send an email for me.", "To whom, with what subject and what text?")),
    ("book_table|reserve_table|make_reservation", "Book a table in a restaurant", [("restaurant", {**S, "description": "Name of the restaurant|"}, True, "restaurant"), ("people|party_size|guests", {**I, "description": "How many people|Number of guests"}, True, "n"), ("time", {**S, "description": "Time, HH:MM"}, False, "clock")],
     "Book a table for {n} at {restaurant}[ at {clock}].|Reserve a table at {restaurant} for {n} people[, {clock}].|We are {n}. Book a table at {restaurant}[ for {clock}].", [('{"ok": true}', "The table for {n} at {restaurant} is booked."), ("ok", "The table for {n} at {restaurant} is booked.")],
     ("Book a table.|I want to book a table.", "In which restaurant, and for how many people?")),
    ("get_distance|distance|get_directions", "Get the distance between two cities|Get directions between two places", [("origin|from|start", {**S, "description": "Where it starts|The starting city"}, True, "place"), ("destination|to|end", {**S, "description": "Where it goes|The city to reach"}, True, "place2")],
     "How far is it from {place} to {place2}?|What is the distance from {place} to {place2}?|How do I get to {place2} from {place}?|How far is {place2} from {place}?", [('{"km": {n}}', "It is {n} km from {place} to {place2}."), ("{n} km", "It is {n} km from {place} to {place2}.")],
     ("How far is it?|How far do I have to go?", "From where to where?")),
    ("add|add_numbers|calculator_add", "Add two numbers", [("a|x", {"type": "number|integer"}, True, "n"), ("b|y", {"type": "number|integer"}, True, "n2")],
     "Add {n} and {n2} with the tool.|Use the tool to add {n} and {n2}.|What is {n} plus {n2}? Use the tool.", [('{"result": {sum}}', "{n} + {n2} is {sum}."), ("{sum}", "{n} + {n2} is {sum}.")], ("Use the tool to add.|Add two numbers with the tool.", "Which numbers?")),
    ("create_reminder|set_reminder|add_reminder", "Create a reminder", [("text|task|title", {**S, "description": "What to remember|"}, True, "words"), ("time", {**S, "description": "Time, HH:MM"}, True, "clock")],
     "Remind me at {clock} to {words}.|Remind me to {words} at {clock}.|Set a reminder for {clock}: {words}", [('{"ok": true}', "I will remind you at {clock}."), ("created", "I will remind you at {clock}.")], ("Remind me.|Set a reminder.", "Of what, and when?")),
]


class Documented:
    """One of the tools above with its names and descriptions chosen."""

    def __init__(self, rng, row):
        names, descriptions, params, self.requests, self.results, self.missing = row
        self.name = rng.choice(names.split("|"))
        chosen = self.description = rng.choice(descriptions.split("|"))
        properties, self.slots, required = {}, {}, []
        for p, schema, needed, slot in params:
            if slot == "unit":
                r = rng.random()
                if r < 0.45:
                    continue
                needed = r > 0.85
            p, schema = rng.choice(p.split("|")), {k: rng.choice(v.split("|")) if isinstance(v, str) else v for k, v in schema.items()}
            if not schema.get("description"):
                schema.pop("description", None)
            properties[p] = schema
            self.slots[p] = slot
            if needed:
                required.append(p)
        self.required = required
        self.order = sorted(properties, key=lambda k: (k not in required, k))
        parameters = {"type": "object", "properties": {k: properties[k] for k in self.order}, "required": sorted(required)}
        function = {"name": self.name, "parameters": parameters}
        if chosen:
            function["description"] = chosen
        if rng.random() < 0.4:
            parameters["additionalProperties"] = False
            function["strict"] = True
        self.declaration = {"type": "function", "function": function}

    def values(self, rng):
        v = {k: make(rng) for k, make in VALUES.items()}
        v["n2"] = rng.randint(1, 99)
        v["sum"] = v["n"] + v["n2"]
        v["an_sign"] = ("an " if v["sign"][0] in "AEIOU" else "a ") + v["sign"]
        v["unit"] = rng.choice(UNITS)
        return v

    def ask(self, rng):
        """(request, arguments, result, answer)."""
        v = self.values(rng)
        weather = self.results is None
        text = pick(rng, "(" + self.requests + ")")  # the requests are the alternatives
        optional = rng.random() < 0.5
        text = re.sub(r"\[(.*?)\]", r"\1" if optional else "", text)
        if rng.random() < 0.35:
            keep = dict(v)
            text = everyday(rng, text) if "{" in text else text
            v = keep
        said_unit = weather and any(s == "unit" for s in self.slots.values()) and rng.random() < 0.4
        if said_unit:
            text = text.rstrip(".?!") + rng.choice([" in {unit}?", ", in {unit}", " in {unit}"])
        arguments = {}
        for p in self.order:
            slot = self.slots[p]
            if slot == "unit":
                if said_unit or p in self.required:
                    arguments[p] = v["unit"] if said_unit else "celsius"
            elif p in self.required or "{" + slot + "}" in text:
                arguments[p] = v[slot]
        result, answer = self.weather(rng, v) if weather else rng.choice(self.results)
        return fill(text, v), arguments, fill(result, v), fill(answer, v)

    @staticmethod
    def weather(rng, v):
        t, sky = rng.randint(-15, 100), rng.choice("sunny cloudy rainy foggy snowy windy clear".split() + ["partly cloudy"])
        unit = rng.choice(["", "celsius", "fahrenheit", "C", "F"])
        degrees = "degrees" + {"celsius": " Celsius", "C": " Celsius", "fahrenheit": " Fahrenheit", "F": " Fahrenheit"}.get(unit, "")
        shape = rng.randrange(6)
        if shape == 0:
            return f"{t} degrees", f"It is {t} degrees in {{place}}."
        if shape == 1:
            return f"{t} degrees{rng.choice([' and ', ', '])}{sky}", f"It is {t} degrees and {sky} in {{place}}."
        if shape == 2:
            return f"{t}°{'F' if unit[:1] in ('f', 'F') else 'C'}", f"It is {t} degrees {'Fahrenheit' if unit[:1] in ('f', 'F') else 'Celsius'} in {{place}}."
        if shape == 3:
            return f"{sky}", f"It is {sky} in {{place}}."
        fields = {"temperature": t}
        if rng.random() < 0.4:
            fields = {rng.choice(["location", "city"]): v["place"], **fields}
        if unit:
            fields["unit"] = unit
        if shape == 5:
            fields[rng.choice(["description", "condition", "conditions", "forecast", "weather"])] = sky
        return json.dumps(fields, ensure_ascii=False), f"It is {t} {degrees}" + (f" and {sky}" if shape == 5 else "") + " in {place}."


def fill(text, values):
    return re.sub(r"\{([a-z_0-9]+)\}", lambda m: str(values[m[1]]), text)


def thought_of(calls):
    said = [f"{name} with " + " and ".join(f"{k} {v}" for k, v in arguments.items()) for name, arguments in calls]
    return "A tool can answer this. I call " + ", then ".join(said) + "."


def generate(rng, hard=False):
    from data.tools import call
    thinking = rng.random() < 0.5
    think = (lambda t: t) if thinking else (lambda t: None)
    others = rng.sample(OTHERS, rng.choice([0, 0, 0, 1, 2, 3]))
    first = Documented(rng, WEATHER if rng.random() < 0.5 else rng.choice([o for o in OTHERS if o not in others]))
    tools = [first, *(Documented(rng, row) for row in others)]
    if first.results and rng.random() < 0.3:
        tools.append(Documented(rng, WEATHER))
    rng.shuffle(tools)
    declared = [t.declaration for t in tools]
    messages, key, r = [], None, rng.random()
    if r < 0.12:  # no tool is needed
        if rng.random() < 0.4:
            text, answer, thought = compound(rng)
        else:
            text, answer, thought, _ = intent(rng)
            while "small demonstration model. I can" in answer and "pocket" not in answer:
                text, answer, thought, _ = intent(rng)
        if "weather" in text or "do not know" in answer:
            return generate(rng, hard)
        messages = [user(everyday(rng, text)), assistant(answer, think(thought + " No tool is needed."))]
    elif r < 0.2:  # a value is missing
        text, question = first.missing
        messages = [user(everyday(rng, rng.choice(text.split("|")))), assistant(question, think(f"The tool for this is {first.name}, but a value is missing, so I ask for it."))]
        key = first.missing[1] + str(first.declaration)
    else:
        count = 2 if r < 0.35 and first.results is None else 1
        asked = [first.ask(rng) for _ in range(count)]
        text = asked[0][0]
        if count == 2:
            places = [next(v for k, v in a[1].items() if first.slots[k] == "place") for a in asked]
            if places[0] == places[1]:
                return generate(rng, hard)
            text = everyday(rng, rng.choice(["What is the weather like in {a} and {b}?", "weather in {a} and {b}", "What's the weather in {a} and in {b}?", "Compare the weather in {a} and {b}."])).replace("{a}", places[0]).replace("{b}", places[1])
            for _, arguments, _, _ in asked:
                for p in [p for p, s in first.slots.items() if s == "unit"]:
                    arguments.pop(p, None)
                    if p in first.required:
                        arguments[p] = "celsius"
            asked = [(q, {p: a[p] for p in first.order if p in a}, x, y) for q, a, x, y in asked]
        calls = [call(first.name, i, a[1]) for i, a in enumerate(asked)]
        messages = [user(text), assistant("", think(thought_of([(first.name, a[1]) for a in asked])), calls)]
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": a[2]} for c, a in zip(calls, asked)]
        answer = " ".join(a[3] for a in asked)
        messages.append(assistant(answer, think("The result is here, so I tell it in a sentence. " + answer)))
    return Case("first-tools", "easy", thinking, messages, {"kind": "text", "text": messages[-1]["content"]}, key or messages[0]["content"], declared)
