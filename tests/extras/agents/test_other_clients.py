"""Agents of the OpenAI Agents SDK and environments of verifiers call outdo's endpoint from interpreters of their own.

`OUTDO_AGENTS_SDK_PYTHON` and `OUTDO_VERIFIERS_PYTHON` are interpreters that have openai-agents and verifiers, with uv
beside the latter. verifiers needs `openai` before 3, and cannot be installed beside outdo's tests.
"""

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_cases import agent, play
from episode_cases import call

from outdo.types import FinishReason, Rollout

pytestmark = pytest.mark.long
SUPPORT = Path(__file__).parents[2] / "support"
RESULT = "\n<|user|><tool_response>5</tool_response><|end|>\n<|assistant|>"


def run_client(variable: str, file: str, *arguments: str) -> str:
    """What a client prints, run by the interpreter that the variable names."""
    python = os.environ.get(variable)
    assert python is not None
    outside = {"PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OUTDO_KEY": "outdo", "PYTHONPATH": str(SUPPORT)}
    command = [python, str(SUPPORT / file), *arguments]
    ended = subprocess.run(command, env=os.environ | outside, text=True, capture_output=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.strip()


def runs(environment: Any, rollout: Rollout) -> list[tuple[bool, str]]:
    """The runs of tokens that are trained, or are not, as text."""
    pairs = itertools.groupby(zip(rollout.loss_mask, rollout.token_ids, strict=True), key=lambda each: each[0])
    decode = environment.template.tokenizer.decode
    return [(bool(own), str(decode([token for _, token in run]))) for own, run in pairs]


def needs(variable: str) -> Any:
    return pytest.mark.skipif(variable not in os.environ, reason=f"{variable} names no interpreter")


@needs("OUTDO_AGENTS_SDK_PYTHON")
def test_an_agent_of_the_openai_agents_sdk_is_trained_on_what_the_engine_sampled() -> None:
    def run(row: dict[str, Any], base_url: str) -> float:
        said = run_client("OUTDO_AGENTS_SDK_PYTHON", "agents_sdk_client.py", base_url, row["prompt"])
        return float(row["answer"] in said)

    environment = agent(run)
    (rollout,) = play(environment, [call("add", a=2, b=3), "It is 5."])
    assert (rollout.status, rollout.reward, rollout.finish_reason) == ("ok", 1.0, FinishReason.stop)
    assert runs(environment, rollout) == [
        (True, call("add", a=2, b=3) + "<|end|>"),
        (False, RESULT),
        (True, "It is 5.<|end|>"),
    ]
    assert (rollout.counts["agents/calls"], rollout.counts["agents/forks"]) == (2, 0)


@needs("OUTDO_VERIFIERS_PYTHON")
def test_an_environment_of_verifiers_with_its_own_harness_and_reward_is_trained() -> None:
    def run(row: dict[str, Any], base_url: str) -> float:
        return float(
            run_client("OUTDO_VERIFIERS_PYTHON", "verifiers_client.py", base_url, row["prompt"], row["answer"])
        )

    environment = agent(run)
    for answer, reward in (("It is 5.", 1.0), ("It is 6.", 0.0)):
        (rollout,) = play(environment, [answer])
        assert (rollout.status, rollout.reward) == ("ok", reward)
        assert runs(environment, rollout) == [(True, answer + "<|end|>")]
        assert (rollout.counts["agents/calls"], rollout.counts["agents/forks"]) == (1, 0)
