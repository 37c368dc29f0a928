"""Every documented call through the official `openai` client."""
import asyncio
import concurrent.futures
import json
import time
import urllib.request

import openai
import pytest

QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]


def gauge(server, name):
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def wait_for(condition, seconds=3):
    """The gauges follow the engine within a tenth of a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def streamed(stream):
    """Content, reasoning, finish reason and usage of a streamed chat."""
    content, reasoning, finish, usage, roles = "", "", None, None, 0
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            roles += choice.delta.role == "assistant"
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    assert roles == 1
    return content, reasoning, finish, usage


def test_models(client, model):
    listed = client.models.list().data
    assert [m.id for m in listed] == [model] and listed[0].max_model_len > 0


def test_chat_streamed_equals_whole(client, model):
    for thinking in (True, False):
        options = dict(model=model, messages=QUESTION, temperature=0, max_tokens=200,
                       extra_body={"chat_template_kwargs": {"thinking": thinking}})
        whole = client.chat.completions.create(**options)
        parts = streamed(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
        message = whole.choices[0].message
        assert parts[0] == (message.content or "")
        assert parts[1] == (message.reasoning_content or "") == (message.reasoning or "")
        assert parts[2] == whole.choices[0].finish_reason
        assert parts[3].completion_tokens == whole.usage.completion_tokens
        assert parts[3].prompt_tokens == whole.usage.prompt_tokens
        if not thinking:
            assert not message.reasoning_content


def test_a_sensible_answer(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=300)
    assert "19" in answer.choices[0].message.content


def test_multi_turn(client, model):
    messages = [{"role": "user", "content": "Hello, my name is Tovar."},
                {"role": "assistant", "content": "Hello Tovar!"},
                {"role": "user", "content": "What is my name?"}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=200)
    assert "Tovar" in answer.choices[0].message.content


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}},
                   "required": ["city"]}}}]


def test_allowed_tools_are_the_only_ones_called(client, model):
    clock = {"type": "function", "function": {**TOOLS[0]["function"], "name": "get_time"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[*TOOLS, clock],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, temperature=0, max_tokens=300)
    assert {call.function.name for call in answer.choices[0].message.tool_calls} == {"get_time"}


def test_tool_call_and_result(client, model):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    for stream in (False, True):
        options = dict(model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=300)
        if stream:
            name, arguments, call_id, finish = "", "", None, None
            for chunk in client.chat.completions.create(stream=True, **options):
                choice = chunk.choices[0]
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or []:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
                    call_id = call.id or call_id
        else:
            choice = client.chat.completions.create(**options).choices[0]
            call = choice.message.tool_calls[0]
            name, arguments, call_id, finish = call.function.name, call.function.arguments, call.id, choice.finish_reason
        assert finish == "tool_calls" and name == "get_weather" and call_id == "functions.get_weather:0"
        assert json.loads(arguments) == {"city": "Paris"}
    messages += [{"role": "assistant", "content": None, "tool_calls": [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": call_id, "content": "{\"temperature\": 17}"}]
    answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=300)
    assert "17" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"


def test_completions(client, model):
    options = dict(model=model, prompt="Hello", temperature=0, max_tokens=12)
    whole = client.completions.create(**options)
    parts = "".join(c.choices[0].text for c in client.completions.create(stream=True, **options) if c.choices)
    assert whole.choices[0].text == parts
    assert whole.usage.completion_tokens <= 12 and whole.choices[0].finish_reason in ("stop", "length")
    echoed = client.completions.create(echo=True, **options)
    assert echoed.choices[0].text == "Hello" + whole.choices[0].text


def test_several_prompts_and_token_ids(client, model):
    ids = json.load(urllib.request.urlopen(urllib.request.Request(
        str(client.base_url).replace("/v1/", "/tokenize"), json.dumps({"prompt": "Hello"}).encode(),
        {"Content-Type": "application/json"})))["tokens"]
    both = client.completions.create(model=model, prompt=["Hello", "What"], temperature=0, max_tokens=5)
    one = client.completions.create(model=model, prompt=ids, temperature=0, max_tokens=5)
    assert [c.index for c in both.choices] == [0, 1] and both.choices[0].text == one.choices[0].text


def test_logprobs(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True,
                                            top_logprobs=3)
    rows = answer.choices[0].logprobs.content
    assert len(rows) == answer.usage.completion_tokens
    for row in rows:
        assert row.logprob <= 0 and len(row.top_logprobs) == 3
        assert row.top_logprobs[0].logprob == pytest.approx(row.logprob, abs=1e-4)  # greedy
    plain = client.completions.create(model=model, prompt="Hello there", max_tokens=1, temperature=0, echo=True, logprobs=2)
    logprobs = plain.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and all(v <= 0 for v in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == plain.choices[0].text


def test_seed_n_and_penalties(client, model):
    options = dict(model=model, prompt="Once upon a time", max_tokens=24, temperature=3.0, seed=7)
    first, again = (client.completions.create(n=3, **options) for _ in range(2))
    texts = [c.text for c in first.choices]
    assert texts == [c.text for c in again.choices]
    assert [c.index for c in first.choices] == [0, 1, 2] and len(set(texts)) == 3
    assert client.completions.create(**options).choices[0].text == texts[0]
    assert client.completions.create(**{**options, "seed": 8}).choices[0].text != texts[0]
    biased = client.completions.create(model=model, prompt="Hello", max_tokens=5, temperature=0, logit_bias={"65": 100})
    assert biased.choices[0].text == client.completions.create(
        model=model, prompt="Hello", max_tokens=5, extra_body={"allowed_token_ids": [65]}).choices[0].text


def test_stop_strings_and_lengths(client, model):
    options = dict(model=model, prompt="1 2 3 4", temperature=0, max_tokens=20, extra_body={"ignore_eos": True})
    text = client.completions.create(**options).choices[0].text
    cut = text[3:6]
    stopped = client.completions.create(stop=cut, **options).choices[0]
    assert stopped.text == text[:text.index(cut)] and stopped.finish_reason == "stop" and stopped.stop_reason == cut
    parts = "".join(c.choices[0].text for c in client.completions.create(stop=cut, stream=True, **options))
    assert parts == stopped.text
    long = client.completions.create(**{**options, "extra_body": {"ignore_eos": True, "min_tokens": 20}})
    assert long.usage.completion_tokens == 20 and long.choices[0].finish_reason == "length"


def test_usage_counts_cached_tokens(client, model):
    messages = [{"role": "user", "content": "A long enough question to fill a block of the cache, " * 12}]
    answers = [client.chat.completions.create(model=model, messages=messages, max_tokens=1) for _ in range(2)]
    assert answers[1].usage.prompt_tokens_details.cached_tokens >= 64
    salted = client.chat.completions.create(model=model, messages=messages, max_tokens=1, extra_body={"cache_salt": "other"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("change, param", [
    ({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n"), ({"n": 1000}, "n"),
    ({"max_tokens": 0}, "max_tokens"), ({"stop": ""}, "stop"), ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"top_logprobs": 2}, "top_logprobs"), ({"messages": []}, "messages"), ({"presence_penalty": 3}, "presence_penalty"),
    ({"extra_body": {"min_tokens": 9, "max_tokens": 3}}, "min_tokens"), ({"extra_body": {"top_k": -2}}, "top_k"),
    ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids"), ({"seed": 1.5}, "seed"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
     "messages[0].content[0].image_url"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"), ({"max_tokens": 10**9}, "input_tokens"),
])
def test_bad_values_name_the_field(client, model, change, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": model, "messages": QUESTION, **change})
    assert error.value.param == param and error.value.body["code"] == 400


def test_unknown_model_and_unknown_field(client, model):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert "The model `no-such-model` does not exist." in str(error.value)
    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1, extra_body={"some_new_field": 1})


def test_too_long_a_prompt_says_the_sentence_clients_match(client, model):
    with pytest.raises(openai.BadRequestError, match="maximum context length is"):
        client.completions.create(model=model, prompt=[65] * 300000, max_tokens=1)


def test_a_stream_that_is_closed_stops_the_request(server, client, model):
    stream = client.completions.create(model=model, prompt="Hello", max_tokens=50000, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    wait_for(lambda: gauge(server, "vllm:num_requests_running") == 1)
    stream.close()
    wait_for(lambda: gauge(server, "vllm:num_requests_running") == 0)


def test_64_at_once_equal_one_alone(server, client, model):
    def ask(i):
        return client.completions.create(model=model, prompt=f"What is {i} + {i}?", temperature=0, max_tokens=12).choices[0].text

    alone = [ask(i) for i in range(64)]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == alone
    wait_for(lambda: gauge(server, "vllm:num_requests_running") == 0)


def test_async_client(server, model):
    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
            answers = await asyncio.gather(*(
                client.chat.completions.create(model=model, messages=QUESTION, max_tokens=4) for _ in range(16)))
            return [a.usage.completion_tokens for a in answers]

    assert asyncio.run(run()) == [4] * 16
