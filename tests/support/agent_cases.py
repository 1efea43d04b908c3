"""Agents that are written with the `openai` client, and environments that run them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import openai
from episode_cases import add, question, tool_tokenizer
from transformers.utils import get_json_schema

from outdo.extras.agents.agent import Agent
from outdo.extras.episodes.template import Template
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import END, ScriptedEngine
from outdo.types import Prompt, Rollout

SAMPLING = SamplingParams(max_tokens=400)
ADD: dict[str, Any] = get_json_schema(add)


async def ask(row: dict[str, Any], base_url: str, api_key: str, http_client: Any) -> float:
    """One question."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
    answer = await client.chat.completions.create(model="any", messages=row["messages"])
    return float(answer.choices[0].message.content == row["answer"])


def use_tools(row: dict[str, Any], base_url: str, api_key: str, turns: int = 4) -> float:
    """Answer the calls of `add` until there is none, as an agent of a few lines does."""
    messages = list(row["messages"])
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(turns):
            choice = client.chat.completions.create(model="any", messages=messages, tools=[ADD]).choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            if not choice.message.tool_calls:
                return float(row["answer"] in (choice.message.content or ""))
            for call in choice.message.tool_calls:
                result = str(add(**json.loads(call.function.arguments)))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


def agent(run: Callable[..., Any], *, tokenizer: Any = None, timeout: float = 600.0, **options: Any) -> Agent:
    """An environment that runs an agent, with the chat template of `episode_cases`."""
    tokenizer = tokenizer or tool_tokenizer()
    template = Template(tokenizer, end_ids={tokenizer.convert_tokens_to_ids(END)})
    return Agent(run, template, timeout=timeout, **options)


def play(
    environment: Agent, script: Any, *, n: int = 1, sampling: SamplingParams = SAMPLING, prompts: Sequence[Prompt] = ()
) -> list[Rollout]:
    """The rollouts of one question, sampled by a scripted engine."""
    engine = ScriptedEngine(script, environment.template.tokenizer)
    prompts = prompts or [question(environment.template)]
    groups = environment.rollouts(engine, prompts, n, sampling, step=1, purpose="train")
    return [rollout for group in groups for rollout in group.rollouts]
