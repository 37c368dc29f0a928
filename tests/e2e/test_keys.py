"""Several API keys are several clients."""
import openai

from conftest import Server

PROMPT = " ".join(f"word{i % 7}" for i in range(400))


def cached(server, key):
    client = server.client(api_key=key)
    usage = client.completions.create(model="pocket", prompt=PROMPT, max_tokens=1).usage
    return usage.prompt_tokens_details.cached_tokens


def test_a_key_finds_its_own_prompts_only():
    server = Server("--api-key", "one", "two")
    try:
        assert cached(server, "one") == 0 and cached(server, "one") > 0
        assert cached(server, "two") == 0 and cached(server, "two") > 0
    finally:
        server.stop()


def test_keys_share_prompts_where_that_is_asked_for():
    server = Server("--api-key", "one", "two", "--share-prefix-cache")
    try:
        assert cached(server, "one") == 0 and cached(server, "two") > 0
    finally:
        server.stop()


def test_a_stored_response_is_not_there_for_another_key():
    server = Server("--api-key", "one", "two")
    try:
        made = server.client(api_key="one").responses.create(model="pocket", input="Hi", max_output_tokens=16)
        try:
            server.client(api_key="two").responses.retrieve(made.id)
            raise AssertionError("another key read it")
        except openai.NotFoundError:
            pass
        assert server.client(api_key="one").responses.retrieve(made.id).id == made.id
    finally:
        server.stop()
