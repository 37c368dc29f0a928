"""Tools as people really declare them (weather, mail, calendar ...), with requests in everyday words."""
import json

from data.common import Case, assistant, name, pick, place, tidy, user, word, COLORS, FOODS, THINGS


def title(rng):
    return " ".join(word(rng, 1, 2) for _ in range(rng.randint(1, 3)))


def day(rng):
    return f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.choice(['00', '15', '30', '45'])}"


def mail(rng):
    return f"{word(rng, 1, 2)}@{word(rng, 1, 2)}.{rng.choice(['com', 'org', 'net'])}"


VALUES = {"place": place, "place2": place, "name": name, "title": title, "day": day, "clock": clock, "mail": mail, "word": word, "thing": lambda r: r.choice(THINGS),
          "n": lambda r: r.randint(1, 99), "big": lambda r: r.randint(100, 9999), "stock": lambda r: "".join(r.choice("ABCDEFGHJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(3, 4))),
          "color": lambda r: r.choice(COLORS), "food": lambda r: r.choice(FOODS), "degrees": lambda r: r.randint(-20, 40), "language": lambda r: r.choice("French German Spanish Italian Japanese Chinese".split()),
          "city_unit": lambda r: r.choice(["celsius", "fahrenheit"]), "room": lambda r: r.choice("kitchen bedroom office hall garage bathroom attic cellar".split()), "switch": lambda r: r.choice(["on", "off"]),
          "path": lambda r: f"/{word(r, 1, 2)}/{word(r, 1, 2)}.{r.choice(['txt', 'md', 'csv', 'log'])}", "coin": lambda r: r.choice(["EUR", "USD", "CHF", "GBP", "JPY"]), "coin2": lambda r: r.choice(["EUR", "USD", "CHF", "GBP", "JPY"])}

# names, descriptions, parameters (name, schema, required, which value), requests ([...] = only with that optional value), results, answer
S, I = {"type": "string"}, {"type": "integer"}
DAILY = [
    ("get_weather|weather|get_current_weather|current_weather|fetch_weather", "Get the current weather in a city|Get weather|Returns the weather for a place|Current weather of a city",
     [("city|location|place", {**S, "description": "The city|City name|Name of the city"}, True, "place"), ("unit", {**S, "enum": ["celsius", "fahrenheit"]}, False, "city_unit")],
     "(What is the weather in {place}|What's the weather like in {place}|How is the weather in {place}|Is it raining in {place}|Tell me the weather in {place}|Weather in {place}|How warm is it in {place})[city_unit: in {city_unit}]?",
     '{"temperature": {degrees}, "sky": "{sky}"}', "The weather in {place}: {sky}, {degrees} degrees."),
    ("send_email|send_mail|email|mail_send", "Send an email|Send an email to somebody|Sends a mail", [("to|recipient|address", {**S, "description": "Email address|Who gets the mail"}, True, "mail"), ("subject", {**S, "description": "The subject"}, True, "title")],
     "(Send an email to {mail} with the subject {title}|Write a mail to {mail}, subject: {title}|Mail {mail} about {title}).", '{"status": "sent"}', "The mail to {mail} is sent."),
    ("get_stock_price|stock_price|quote|get_quote", "Get the price of a stock|Current stock price|Look up a stock price", [("symbol|ticker", {**S, "description": "The ticker symbol|Stock symbol"}, True, "stock")],
     "(What is the price of {stock}|How much is {stock} stock|Stock price of {stock}|What does {stock} cost|Get me a quote for {stock})?", '{"price": {big}}', "The price of {stock} is {big}."),
    ("create_event|add_event|calendar_add|schedule_meeting", "Add an event to the calendar|Create a calendar event|Schedule a meeting",
     [("title|name", {**S, "description": "Title of the event"}, True, "title"), ("date|day", {**S, "description": "Date, YYYY-MM-DD"}, True, "day"), ("time", {**S, "description": "Time, HH:MM"}, False, "clock")],
     "(Add {title} to my calendar on {day}|Schedule {title} for {day}|Create an event {title} on {day}|Put {title} in the calendar for {day})[clock: at {clock}].", '{"ok": true}', "{title} is in the calendar on {day}."),
    ("translate|translate_text|translator", "Translate a text|Translate text into another language", [("text", {**S, "description": "What to translate"}, True, "title"), ("language|target", {**S, "description": "The language"}, True, "language")],
     "(Translate \"{title}\" to {language}|Say \"{title}\" in {language}|How do you say \"{title}\" in {language}|What is \"{title}\" in {language}).", '{"translation": "{word}"}', "In {language} it is: {word}"),
    ("set_timer|timer|start_timer|countdown", "Set a timer|Start a timer for some minutes", [("minutes", {**I, "description": "How long|Minutes"}, True, "n")],
     "(Set a timer for {n} minutes|Start a timer of {n} minutes|Wake me in {n} minutes|Remind me in {n} minutes|Timer, {n} minutes).", '{"ok": true}', "The timer is set to {n} minutes."),
    ("web_search|search|search_web|google", "Search the web|Find pages on the internet", [("query|q", {**S, "description": "What to search for|Search words"}, True, "title"), ("limit|count", {**I, "description": "How many results"}, False, "n")],
     "(Search the web for {title}|Look up {title} on the internet|Find pages about {title}|Search for {title} online|Google {title})[n:, {n} results].", '[{"title": "{word}"}]', "I found: {word}."),
    ("switch_light|set_light|light|lights", "Switch a light on or off|Control the lights", [("room", {**S, "description": "Which room"}, True, "room"), ("state", {**S, "enum": ["on", "off"]}, True, "switch")],
     "(Turn {switch} the light in the {room}|Switch the {room} light {switch}|Turn the lights in the {room} {switch}|Light {switch} in the {room}, please).", '{"ok": true}', "The light in the {room} is {switch}."),
    ("read_file|open_file|file_read|cat", "Read a file|Show the content of a file", [("path|file", {**S, "description": "Path of the file"}, True, "path")],
     "(Read the file {path}|Show me {path}|What is in {path}|Open {path}|Print the content of {path}).", "{word}", "The file {path} says: {word}"),
    ("convert_currency|exchange|currency", "Convert money to another currency|Exchange rates", [("amount", {"type": "number"}, True, "big"), ("from|source", {**S, "description": "Currency to convert from"}, True, "coin"), ("to|target", {**S, "description": "Currency to convert to"}, True, "coin2")],
     "(Convert {big} {coin} to {coin2}|How much is {big} {coin} in {coin2}|Exchange {big} {coin} into {coin2}|What are {big} {coin} in {coin2}).", '{"amount": {n}}', "{big} {coin} are {n} {coin2}."),
    ("order_food|food_order|order_meal", "Order something to eat|Order food", [("dish|food", {**S, "description": "What to order"}, True, "food"), ("quantity|count", {**I, "description": "How many"}, False, "n")],
     "(Order {food}|I would like {food}|Please order {food} for me|Get me {food})[n:, {n} times].", '{"order": {big}}', "{food} is ordered. The order number is {big}."),
    ("get_time|current_time|time_in|world_clock", "Current time in a city|Tells the time at a place", [("city|location", {**S, "description": "The city"}, True, "place")],
     "(What time is it in {place}|Tell me the time in {place}|What is the time in {place}|How late is it in {place})?", '{"time": "{clock}"}', "In {place} it is {clock}."),
    ("send_message|text_message|sms|message", "Send a text message to a person|Send somebody a message", [("to|person|recipient", {**S, "description": "Who gets it"}, True, "name"), ("text|message", {**S, "description": "The text"}, True, "title")],
     "(Send {name} the message \"{title}\"|Text {name}: {title}|Tell {name} \"{title}\"|Message {name}: {title}).", '{"sent": true}', "The message to {name} is sent."),
    ("book_flight|flight|find_flight|search_flights", "Find or book a flight|Book a flight between two cities", [("origin|from", {**S, "description": "Where it starts"}, True, "place"), ("destination|to", {**S, "description": "Where it goes"}, True, "place2"), ("date", {**S, "description": "Date, YYYY-MM-DD"}, False, "day")],
     "(Book a flight from {place} to {place2}|Find a flight from {place} to {place2}|I want to fly from {place} to {place2}|Flight from {place} to {place2})[day: on {day}].", '{"flight": "{stock}{n}"}', "Your flight from {place} to {place2} is {stock}{n}."),
    ("play_song|play_music|music|play", "Play a song|Play music", [("title|song", {**S, "description": "The song"}, True, "title")], "(Play {title}|Play the song {title}|I want to hear {title}|Put on {title}).", '{"playing": true}', "Now playing {title}."),
    ("set_temperature|thermostat|heating", "Set the temperature of a room|Control the heating", [("degrees|temperature", {"type": "number", "description": "The temperature"}, True, "n"), ("room", {**S, "description": "Which room"}, True, "room")],
     "(Set the {room} to {n} degrees|Heat the {room} to {n} degrees|Make it {n} degrees in the {room}|Set the temperature in the {room} to {n}).", '{"ok": true}', "The {room} is set to {n} degrees."),
]


class Daily:
    def __init__(self, rng, row):
        names, descriptions, params, self.requests, self.result, self.answer = row
        self.name = rng.choice(names.split("|"))
        self.description = rng.choice(descriptions.split("|"))
        properties, self.slots, required = {}, {}, []
        for p, schema, needed, slot in params:
            p = rng.choice(p.split("|"))
            schema = dict(schema)
            if "description" in schema:
                schema["description"] = rng.choice(schema["description"].split("|"))
                if rng.random() < 0.25:
                    del schema["description"]
            properties[p] = schema
            self.slots[p] = slot
            if needed:
                required.append(p)
        self.optional = [p for p in properties if p not in required]
        self.order = sorted(properties, key=lambda k: (k not in required, k))
        self.declaration = {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": {
            "type": "object", "properties": {k: properties[k] for k in self.order}, "required": sorted(required)}}}

    def ask(self, rng):
        values = {k: make(rng) for k, make in VALUES.items()}
        values["sky"] = rng.choice(["sunny", "cloudy", "rainy", "foggy", "snowy", "windy"])
        text, with_optional = self.requests, rng.random() < 0.5
        if "[" in text:
            head, rest = text.split("[", 1)
            slot, tail = rest.split("]", 1)
            extra = slot.split(":", 1)[1]
            text = head + (extra if with_optional else "") + tail
        text = pick(rng, text).format(**values)
        arguments = {p: values[self.slots[p]] for p in self.order if p not in self.optional or with_optional}
        result = self.result
        for k, v in values.items():
            result = result.replace("{" + k + "}", str(v))
        return text, arguments, result, self.answer.format(**values)


def generate(rng, thinking):
    from data.tools import NONE_FITS, call, Tool
    count = rng.choice([1, 1, 2, 3, 4, 5])
    rows = rng.sample(DAILY, count + 1)
    tools = [Daily(rng, row) for row in rows[:count]]
    if len({t.name for t in tools}) < count:
        return generate(rng, thinking)
    declared = [t.declaration for t in tools]
    if rng.random() < 0.4:
        declared.append(Tool(rng, set(), False).declaration)
    rng.shuffle(declared)
    if rng.random() < 0.12:
        text, _, _, _ = Daily(rng, rows[count]).ask(rng)
        messages = [user(text), assistant(NONE_FITS, "No tool is for this." if thinking else None)]
    else:
        tool = rng.choice(tools)
        text, arguments, result, answer = tool.ask(rng)
        thought = f"{tool.name}: {tool.description.rstrip('.')}. " + ", ".join(f"{k} = {v}" for k, v in arguments.items())
        one = call(tool.name, 0, arguments)
        messages = [user(tidy(rng, text)), assistant("", thought if thinking else None, [one]), {"role": "tool", "tool_call_id": one["id"], "content": result},
                    assistant(answer, f"The result is here. {answer}" if thinking else None)]
    return Case("tools", "easy", thinking, messages, {"kind": "text", "text": messages[-1]["content"]}, text, declared)
