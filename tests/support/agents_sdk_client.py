"""An agent of the OpenAI Agents SDK, run by an interpreter that has the SDK: `python FILE BASE_URL QUESTION`."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


async def main(base_url: str, question: str) -> None:
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="policy", openai_client=AsyncOpenAI(base_url=base_url, api_key="outdo"))
    answer = await Runner.run(Agent(name="adder", model=model, tools=[add]), question, max_turns=4)
    print(answer.final_output)


asyncio.run(main(*sys.argv[1:]))
