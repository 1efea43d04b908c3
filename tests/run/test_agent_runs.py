"""Test runs that train an agent: train, kill, resume and evaluate, from the command line."""

from pathlib import Path

import pytest
from episode_cases import tool_tokenizer
from kill_cases import assert_same, killed_and_resumed
from run_cases import metrics, outdo_, write_home

from outdo.extras.record.parquet import read

AGENT = """
import asyncio
import random

import helper


async def run(row, *, base_url, http_client, rounds=3, rewrite=False):
    messages = list(row["messages"])
    for left in range(rounds)[::-1]:
        await asyncio.sleep(random.random() * 0.02)
        if rewrite and left == 0 and int(row["answer"]) % 2:
            messages[1] = {"role": "assistant", "content": "(left out)"}
        request = {"messages": messages, "max_tokens": 8}
        answer = (await http_client.post(f"{base_url}/chat/completions", json=request)).json()["choices"][0]["message"]
        messages += [answer, {"role": "user", "content": f"{left} left."}]
    return helper.score(answer["content"])


class Workflow:
    def __init__(self, rounds=1):
        self.rounds = rounds

    async def run(self, data, **given):
        return await run(data, base_url=given["base_url"], http_client=given["http_client"], rounds=self.rounds)
"""
SETTINGS = (
    'environment={name = "agent.py:run", rounds = 3, rewrite = true, calls = 4}',
    "rewards=environment",
    "sampling.max_tokens=120",
    "data.max_prompt_tokens=200",
    "steps=6",
    "eval.every=3",
)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose model has a chat template, and a run of six steps of an agent in it."""
    home = write_home(tmp_path_factory.mktemp("office"))
    tool_tokenizer().save_pretrained(home / "model")
    (home / "agent.py").write_text(AGENT)
    (home / "helper.py").write_text("def score(text):\n    return sum(map(str.isalnum, text)) / 8\n")
    outdo_(home, "train", "recipe.toml", "run=./whole", *SETTINGS)
    return home


@pytest.mark.release
def test_a_run_that_is_killed_while_its_agents_work_equals_an_uninterrupted_one(office: Path) -> None:
    killed_and_resumed(office, office / "killed", 2, *SETTINGS)
    assert_same(office / "killed", office / "whole")


def test_a_run_measures_the_calls_of_its_agents_and_the_engine_has_the_probabilities_of_the_policy(office: Path):
    lines = metrics(office / "whole")
    assert all(line["completions/mean_turns"] == 3 for line in lines)
    assert all(line["agents/calls"] == 3 * line["num_completions"] for line in lines)
    assert all(line["agents/overridden"] == 0 for line in lines)
    assert 0 < sum(line["agents/forks"] for line in lines) < sum(line["num_completions"] for line in lines)
    assert all("rewards/environment/mean" in line for line in lines)
    assert lines[-1]["sampling/sampling_logp_difference/max"] < 1e-5
    assert {turn for row in read(office / "whole", 6)["turn"].to_pylist() for turn in row} == {-1, 0, 1, 2}


def test_a_class_with_a_method_run_is_an_agent_and_eval_runs_the_agent_of_a_run(office: Path) -> None:
    workflow = "environment={name = 'agent', run = 'agent.py:Workflow', rounds = 2}"
    outdo_(office, "train", "recipe.toml", "run=./workflow", *SETTINGS, workflow, "steps=1", "eval.every=0")
    assert "all conversations of an episode are trained" in (office / "workflow/start.txt").read_text()
    assert metrics(office / "workflow")[0]["completions/mean_turns"] == 2
    assert '"reward"' in outdo_(office, "eval", "workflow", "--json")


def test_a_run_is_not_resumed_with_other_code_of_its_agent(office: Path) -> None:
    for file in ("agent.py", "helper.py"):
        code = (office / file).read_text()
        (office / file).write_text(code + "# changed\n")
        said = outdo_(office, "resume", "whole", "steps=7", status=2)
        assert file in said
        assert "the code of the run has changed" in said
        (office / file).write_text(code)


def test_check_says_what_it_found_about_the_agent_and_the_chat_template(office: Path) -> None:
    said = " ".join(outdo_(office, "check", "recipe.toml", *SETTINGS).split())
    assert (
        "the agent agent.py:run(row, *, base_url, http_client, rounds=3, rewrite=True): at most 4 calls and 600 s an "
        "episode" in said
    )
    assert "the same text after every turn: yes" in said


def test_an_agent_needs_a_chat_template(office: Path) -> None:
    (office / "plain").mkdir()
    plain = write_home(office / "plain")
    said = outdo_(office, "train", "recipe.toml", f"model={plain / 'model'}", *SETTINGS, status=2)
    assert "chat template" in said
