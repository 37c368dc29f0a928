"""/v1/responses through the official `openai` client."""
import json

import openai
import pydantic
import pytest

QUESTION = "What is 12 + 7?"
WEATHER = {"type": "function", "name": "get_weather", "description": "Get the weather of a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}},
                          "required": ["city"], "additionalProperties": False}}
ASK_WEATHER = "What is the weather in Paris?"


def plain(response):
    """What must be the same, streamed or not: all but names and times."""
    dumped = response.model_dump(exclude={"id", "created_at", "usage"})
    for item in dumped["output"]:
        item.pop("id")
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return dumped


def check_events(events):
    """The order of one stream, and that what is done is what was added piece by piece."""
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    text, open_item, done = "", None, []
    for event in events[2:-1]:
        if event.type == "response.output_item.added":
            assert open_item is None and event.output_index == len(done)
            open_item, text = event.item, ""
        elif event.type.endswith(".delta"):
            assert event.item_id == open_item.id and event.output_index == len(done)
            text += event.delta
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert event.text == text
        elif event.type == "response.function_call_arguments.done":
            assert event.arguments == text
        elif event.type == "response.output_item.done":
            assert event.item.id == open_item.id
            done.append(event.item)
            open_item = None
        else:
            assert event.type in ("response.reasoning_part.added", "response.reasoning_part.done",
                                  "response.content_part.added", "response.content_part.done")
    assert open_item is None
    assert [item.id for item in done] == [item.id for item in events[-1].response.output]


def test_streamed_equals_whole(client, model):
    for extra in ({}, {"reasoning": {"effort": "none"}}, {"max_output_tokens": 5}, {"instructions": "Answer briefly."},
                  {"input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]}):
        options = {"model": model, "input": QUESTION, "temperature": 0, "max_output_tokens": 300, "store": False, **extra}
        whole = client.responses.create(**options)
        events = list(client.responses.create(stream=True, **options))
        check_events(events)
        assert plain(events[-1].response) == plain(whole), extra
        assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
        kinds = [item.type for item in whole.output]
        if extra.get("max_output_tokens") == 5:
            assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
        else:
            assert whole.status == "completed" and "19" in whole.output_text
            assert kinds == (["message"] if extra.get("reasoning") else ["reasoning", "message"])
            assert (whole.usage.output_tokens_details.reasoning_tokens > 0) == ("reasoning" in kinds)
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens


def test_the_stream_helper(client, model):
    with client.responses.stream(model=model, input=QUESTION, temperature=0, max_output_tokens=300) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert "19" in text and stream.get_final_response().output_text == text


def test_tool_call_and_result(client, model):
    options = dict(model=model, tools=[WEATHER], temperature=0, max_output_tokens=300, store=False)
    first = client.responses.create(input=ASK_WEATHER, **options)
    events = list(client.responses.create(input=ASK_WEATHER, stream=True, **options))
    check_events(events)
    assert plain(events[-1].response) == plain(first)
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and json.loads(call.arguments) == {"city": "Paris"}
    items = [{"role": "user", "content": ASK_WEATHER}, *(item.model_dump(exclude_none=True) for item in first.output),
             {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 17}'}]
    assert "17" in client.responses.create(input=items, **options).output_text


def test_a_stored_response_is_continued(client, model):
    options = dict(model=model, tools=[WEATHER], temperature=0, max_output_tokens=300)
    first = client.responses.create(input=ASK_WEATHER, **options)
    assert client.responses.retrieve(first.id).model_dump() == first.model_dump()
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": '{"temperature": 17}'}
    second = list(client.responses.create(input=[result], previous_response_id=first.id, stream=True, **options))[-1].response
    assert "17" in second.output_text and second.previous_response_id == first.id
    items = [{"role": "user", "content": ASK_WEATHER}, *(item.model_dump(exclude_none=True) for item in first.output), result]
    stateless = client.responses.create(input=items, **options)
    assert stateless.usage.input_tokens == second.usage.input_tokens and stateless.output_text == second.output_text
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(second.id)
    client.responses.delete(first.id)
    for call in (lambda: client.responses.retrieve(first.id), lambda: client.responses.cancel(first.id),
                 lambda: client.responses.create(input="Hi", previous_response_id=first.id, **options)):
        with pytest.raises(openai.NotFoundError):
            call()
    unstored = client.responses.create(model=model, input="Hi", max_output_tokens=1, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_fields_are_repeated(client, model):
    answer = client.responses.create(model=model, input="Hi", max_output_tokens=1, temperature=0.6, top_p=0.9,
                                     metadata={"a": "b"}, instructions="Be brief.", parallel_tool_calls=False)
    assert (answer.temperature, answer.top_p, answer.metadata, answer.instructions) == (0.6, 0.9, {"a": "b"}, "Be brief.")
    assert answer.max_output_tokens == 1 and answer.parallel_tool_calls is False and answer.model == model


@pytest.mark.parametrize("choice, calls", [("none", False), ("required", True), ({"type": "function", "name": "get_weather"}, True),
                                           ({"type": "allowed_tools", "mode": "required",
                                             "tools": [{"type": "function", "name": "get_weather"}]}, True)])
def test_tool_choice(client, model, choice, calls):
    answer = client.responses.create(model=model, input=ASK_WEATHER if choice == "none" else QUESTION, tools=[WEATHER],
                                     tool_choice=choice, temperature=0, max_output_tokens=400)
    used = [item for item in answer.output if item.type == "function_call"]
    assert bool(used) == calls
    for item in used:
        assert item.name == "get_weather" and isinstance(json.loads(item.arguments)["city"], str)


class Sum(pydantic.BaseModel):
    sum: int


def test_structured_output_is_parsed(client, model):
    parsed = client.responses.parse(model=model, input=QUESTION, text_format=Sum, temperature=0, max_output_tokens=400)
    assert isinstance(parsed.output_parsed, Sum)
    chat = client.chat.completions.parse(model=model, messages=[{"role": "user", "content": QUESTION}], response_format=Sum,
                                         temperature=0, max_tokens=400)
    assert isinstance(chat.choices[0].message.parsed, Sum)


@pytest.mark.parametrize("change, param", [
    ({"input": []}, "input"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"temperature": -1}, "temperature"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"), ({"background": True}, "background"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"), ({"top_logprobs": 3}, "top_logprobs"),
    ({"text": {"format": {"type": "strange"}}}, "text.format"), ({"conversation": "conv_1"}, "conversation"),
    ({"max_output_tokens": 10**8}, "input"),
])
def test_bad_values_name_their_place(client, model, change, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{"model": model, "input": QUESTION, **change})
    assert error.value.param.startswith(param) and error.value.body["code"] == 400


def test_models_and_descriptions(client, server, model):
    import urllib.request
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such model")
    for path in ("/v1/models", "/openapi.json", "/docs"):
        request = urllib.request.Request(server.url + path, method="HEAD")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200 and answer.read() == b"" and int(answer.headers["content-length"]) > 0
