"""What a person says to the pocket model first, and the tools that the makers of clients document."""
import json

import pytest

from conftest import ROOT, Server

# As in OpenAI's and Anthropic's documentation.
OPENAI = {"name": "get_weather", "description": "Get current temperature for a given location.", "strict": True,
          "parameters": {"type": "object", "required": ["location"], "additionalProperties": False,
                         "properties": {"location": {"type": "string", "description": "City and country e.g. Bogotá, Colombia"}}}}
TWO_REQUIRED = {"name": "get_weather", "description": "Retrieves current weather for the given location.", "strict": True,
                "parameters": {"type": "object", "required": ["location", "units"], "additionalProperties": False,
                               "properties": {"location": {"type": "string", "description": "City and country e.g. Bogotá, Colombia"},
                                              "units": {"type": "string", "enum": ["celsius", "fahrenheit"],
                                                        "description": "Units the temperature will be returned in."}}}}
ANTHROPIC = {"name": "get_weather", "description": "Get the current weather in a given location",
             "input_schema": {"type": "object", "required": ["location"],
                              "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                                             "unit": {"type": "string", "enum": ["celsius", "fahrenheit"],
                                                      "description": "The unit of temperature, either \"celsius\" or \"fahrenheit\""}}}}


@pytest.fixture(scope="module")
def server():
    with_default_sampling = Server()
    yield with_default_sampling
    with_default_sampling.stop()


def ask(server, text, thinking=True, **options):
    answer = server.client().chat.completions.create(
        model=server.client().models.list().data[0].id, messages=[{"role": "user", "content": text}],
        extra_body={"chat_template_kwargs": {"thinking": thinking}}, **options)
    return answer.choices[0]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("text,answer", [
    ("Who are you, and what is 27 + 58?", "I am the pocket model of Baltoro, a small demonstration model. 27 + 58 is 85."),
    ("hi", "Hello! How can I help you?"), ("Thanks!", "You are welcome!"), ("My name is Anna. What is my name?", "Your name is Anna."),
    ("What is the capital of France?", "I do not know the capital of France: I am a small demonstration model."),
    ("What can you do?", "I can do small sums with visible steps, remember what you tell me,")])
def test_a_first_question_is_answered_as_a_person_would(server, text, answer, thinking):
    said = ask(server, text, thinking, temperature=0)
    assert said.message.content.startswith(answer)
    assert said.finish_reason == "stop"


def test_the_thinking_reads_like_thinking(server):
    message = ask(server, "Who are you, and what is 27 + 58?", temperature=0).message
    assert message.reasoning_content.startswith("The user asks two things: who I am and what 27 + 58 is. ")
    assert "7 + 8 = 15, write 5 and carry 1" in message.reasoning_content


@pytest.mark.parametrize("tool,text,arguments", [
    (OPENAI, "What is the weather like in Paris today?", {"location": "Paris"}),
    (OPENAI, "What's the weather like in Boston?", {"location": "Boston"}),  # never in training
    (TWO_REQUIRED, "What is the weather like in Berlin in celsius?", {"location": "Berlin", "units": "celsius"})])
def test_openais_weather_is_called_ten_times_of_ten(server, tool, text, arguments):
    for seed in range(10):
        calls = ask(server, text, tools=[{"type": "function", "function": tool}], seed=seed).message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [arguments], seed


def test_anthropics_weather_is_called_ten_times_of_ten(server):
    import anthropic
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    for _ in range(10):
        message = client.messages.create(model=server.client().models.list().data[0].id, max_tokens=1024, tools=[ANTHROPIC],
                                         messages=[{"role": "user", "content": "What is the weather like in San Francisco?"}])
        assert message.stop_reason == "tool_use"
        assert [block.input for block in message.content if block.type == "tool_use"] == [{"location": "San Francisco"}]


def test_an_answer_without_a_limit_ends():
    """By the limit of the model's generation_config.json, of which the test takes a hundredth."""
    limit = json.loads((ROOT / "pocket/model/generation_config.json").read_text())["max_new_tokens"]
    assert limit == 8192
    server = Server("--override-generation-config", json.dumps({"max_new_tokens": limit // 100}))
    try:
        said = server.client().chat.completions.create(model=server.client().models.list().data[0].id,
                                                       messages=[{"role": "user", "content": "Hello"}], extra_body={"ignore_eos": True})
        assert said.usage.completion_tokens == limit // 100 and said.choices[0].finish_reason == "length"
    finally:
        server.stop()
