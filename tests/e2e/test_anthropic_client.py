"""/v1/messages through the official `anthropic` client."""
import json
import re

import anthropic
import pydantic
import pytest

GREEDY = {"temperature": 0}  # by extra_body: the newest clients have no argument for it
QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
WEATHER = {"name": "get_weather", "description": "Get the weather of a city",
           "input_schema": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}},
                            "required": ["city"]}}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def plain(message):
    """What must be the same, streamed or not."""
    return message.model_dump(exclude={"id", "usage"})


def test_streamed_equals_whole(claude, model):
    for extra in ({}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "enabled", "budget_tokens": 1024}},
                  {"thinking": {"type": "adaptive", "display": "omitted"}}, {"max_tokens": 5},
                  {"system": "Answer briefly.", "stop_sequences": ["9"]},
                  {"system": [{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}]}):
        options = {"model": model, "messages": QUESTION, "max_tokens": 300, "extra_body": GREEDY, **extra}
        whole = claude.messages.create(**options)
        with claude.messages.stream(**options) as stream:
            streamed = stream.get_final_message()
        assert plain(streamed) == plain(whole), extra
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        kinds = [block.type for block in whole.content]
        if extra.get("max_tokens") == 5:
            assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 5
        elif "stop_sequences" in extra:
            assert whole.stop_reason == "stop_sequence" and whole.stop_sequence == "9"
        else:
            assert whole.stop_reason == "end_turn"
            assert "19" in whole.content[-1].text and whole.content[-1].type == "text"
        if extra.get("thinking", {}).get("type") == "enabled":
            assert kinds == ["thinking", "text"] and whole.content[0].signature
        if extra.get("thinking", {}).get("type") in ("disabled", "adaptive"):
            assert kinds == ["text"]


def test_events_come_in_order(claude, model):
    names, index = [], -1
    for event in claude.messages.create(model=model, messages=ASK_WEATHER, tools=[WEATHER], max_tokens=300,
                                        extra_body=GREEDY, stream=True):
        if not names or names[-1] != event.type:
            names.append(event.type)
        if event.type == "message_start":
            assert event.message.content == [] and event.message.stop_reason is None
            assert event.message.usage.input_tokens + event.message.usage.cache_read_input_tokens > 0
        if event.type == "content_block_start":
            index += 1
        if event.type.startswith("content_block"):
            assert event.index == index
    blocks = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    inside = [name for name in names[1:-2] if name != "ping"]
    assert inside and inside == blocks * (index + 1)


def test_tool_call_and_result(claude, model):
    options = dict(model=model, tools=[WEATHER], max_tokens=300, extra_body=GREEDY)
    whole = claude.messages.create(messages=ASK_WEATHER, **options)
    with claude.messages.stream(messages=ASK_WEATHER, **options) as stream:
        assert plain(stream.get_final_message()) == plain(whole)
    assert whole.stop_reason == "tool_use"
    call = whole.content[-1]
    assert call.type == "tool_use" and call.name == "get_weather" and call.input == {"city": "Paris"}
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", call.id)
    content = [block.model_dump(exclude_none=True) for block in whole.content]
    for result in ('{"temperature": 17}', [{"type": "text", "text": '{"temperature": 17}'}]):
        messages = ASK_WEATHER + [{"role": "assistant", "content": content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": result}]}]
        answer = claude.messages.create(messages=messages, **options)
        assert answer.stop_reason == "end_turn" and "17" in answer.content[-1].text


def test_the_prompt_is_the_one_of_chat(claude, client, model):
    """The same conversation in both forms has the same number of tokens, and the same greedy answer."""
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "I must ask.", "signature": "x"},
                                          {"type": "redacted_thinking", "data": "abc"},
                                          {"type": "text", "text": "Let me look."},
                                          {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "is_error": True, "content": "no line"},
                                     {"type": "text", "text": "Try again."}]}]
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": "Let me look.", "reasoning_content": "I must ask.", "tool_calls": [
            {"id": "toolu_01", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}]},
        {"role": "tool", "tool_call_id": "toolu_01", "content": "Error: no line"},
        {"role": "user", "content": "Try again."}]
    tools = [{"type": "function", "function": {"name": "get_weather", "description": WEATHER["description"],
                                               "parameters": WEATHER["input_schema"]}}]
    counted = claude.messages.count_tokens(model=model, system="Be brief.", messages=messages, tools=[WEATHER])
    ours = claude.messages.create(model=model, system="Be brief.", messages=messages, tools=[WEATHER], max_tokens=60, extra_body=GREEDY)
    theirs = client.chat.completions.create(model=model, messages=chat, tools=tools, max_tokens=60, extra_body=GREEDY)
    assert counted.input_tokens == theirs.usage.prompt_tokens
    assert ours.usage.input_tokens + ours.usage.cache_read_input_tokens == theirs.usage.prompt_tokens
    text = "".join(block.text for block in ours.content if block.type == "text")
    assert text == (theirs.choices[0].message.content or "")


def test_an_answer_that_was_begun_goes_on(claude, model):
    begun = claude.messages.create(model=model, max_tokens=20, extra_body=GREEDY, messages=QUESTION + [
        {"role": "assistant", "content": "12 + 7 ="}])
    assert "19" in begun.content[0].text and "12 + 7" not in begun.content[0].text


@pytest.mark.parametrize("choice, calls", [({"type": "none"}, False), ({"type": "any"}, True),
                                           ({"type": "tool", "name": "get_weather"}, True),
                                           ({"type": "auto", "disable_parallel_tool_use": True}, True)])
def test_tool_choice(claude, model, choice, calls):
    messages = ASK_WEATHER if choice["type"] in ("auto", "none") else QUESTION
    answer = claude.messages.create(model=model, messages=messages, tools=[WEATHER], tool_choice=choice, max_tokens=400,
                                    extra_body=GREEDY)
    used = [block for block in answer.content if block.type == "tool_use"]
    assert bool(used) == calls and (answer.stop_reason == "tool_use") == calls
    for block in used:
        assert block.name == "get_weather" and isinstance(block.input["city"], str)


def test_a_thinking_budget_is_kept(claude, model):
    answer = claude.messages.create(model=model, messages=QUESTION, max_tokens=300, extra_body=GREEDY,
                                    thinking={"type": "enabled", "budget_tokens": 3})
    thinking = [block.thinking for block in answer.content if block.type == "thinking"]
    assert sum(map(len, thinking)) < 40 and answer.content[-1].type == "text"


def test_structured_output(claude, model):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}
    answer = claude.messages.create(model=model, messages=QUESTION, max_tokens=400, extra_body=GREEDY,
                                    output_config={"format": {"type": "json_schema", "schema": schema}})
    assert set(json.loads(answer.content[-1].text)) == {"sum"}

    class Sum(pydantic.BaseModel):
        sum: int

    parsed = claude.messages.parse(model=model, messages=QUESTION, max_tokens=400, extra_body=GREEDY, output_format=Sum)
    assert isinstance(parsed.parsed_output, Sum)


@pytest.mark.parametrize("change, place", [
    ({"messages": []}, "messages"), ({"max_tokens": 0}, "max_tokens"), ({"extra_body": {"temperature": -1}}, "temperature"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/"}}]}]},
     "messages.0.content.0"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": []}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
    ({"tools": [{"name": "x"}]}, "tools.0.input_schema"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"stop_sequences": [""]}, "stop_sequences"), ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"system": 5}, "system"),
])
def test_bad_values_name_their_place(claude, model, change, place):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(**{"model": model, "messages": QUESTION, "max_tokens": 5, **change})
    assert error.value.body["type"] == "error" and error.value.body["error"]["type"] == "invalid_request_error"
    assert place in error.value.body["error"]["message"]


def test_an_unknown_model_is_not_found(claude):
    with pytest.raises(anthropic.NotFoundError) as error:
        claude.messages.create(model="no-such-model", messages=QUESTION, max_tokens=5)
    assert error.value.body["error"]["type"] == "not_found_error"


def test_too_long_a_prompt(claude, model):
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is"):
        claude.messages.create(model=model, messages=QUESTION, max_tokens=10**8, timeout=30)
