"""An agent framework, unchanged, in a loop of three answers: a call, a second one that needs the result of the first, and
the end."""
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_three_steps(server, model, kind):
    called = []
    agent = Agent(kind(model, provider=OpenAIProvider(base_url=server.url + "/v1", api_key="none")),
                  model_settings={"temperature": 0, "max_tokens": 400})

    @agent.tool_plain
    def get_customer_address(customer: str) -> str:
        """Get the address of a customer.

        Args:
            customer: Which customer
        """
        called.append(("get_customer_address", customer))
        return "drosk"

    @agent.tool_plain
    def open_parcel(parcel: str) -> str:
        """Open a parcel.

        Args:
            parcel: The parcel
        """
        called.append(("open_parcel", parcel))
        return '{"ok": true}'

    result = agent.run_sync("Get the address of the customer Tovar, then open the parcel with that address.")
    assert called == [("get_customer_address", "Tovar"), ("open_parcel", "drosk")]
    assert result.usage.requests == 3 and result.output == "Done."


def test_three_steps_of_anthropics_own_runner(server, model):
    import anthropic
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    called = []

    @anthropic.beta_tool
    def get_customer_address(customer: str) -> str:
        """Get the address of a customer.

        Args:
            customer: Which customer
        """
        called.append(customer)
        return "drosk"

    @anthropic.beta_tool
    def open_parcel(parcel: str) -> str:
        """Open a parcel.

        Args:
            parcel: The parcel
        """
        called.append(parcel)
        return '{"ok": true}'

    runner = client.beta.messages.tool_runner(
        model=model, max_tokens=400, tools=[get_customer_address, open_parcel], extra_body={"temperature": 0},
        messages=[{"role": "user", "content": "Get the address of the customer Tovar, then open the parcel with that address."}])
    messages = list(runner)
    assert called == ["Tovar", "drosk"] and len(messages) == 3
    assert messages[-1].stop_reason == "end_turn" and messages[-1].content[-1].text == "Done."
