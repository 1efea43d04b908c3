"""Thinking is never the answer, whoever opens it and however its tags are tokens: a table of all combinations."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerFast

from outdo.data.prompts import tokenise
from outdo.data.questions import Question
from outdo.extras.agents.agent import Agent
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Player, Reply
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.judge.questions import ask_score
from outdo.rewards import BUILTIN, Reward, RewardInput, load_reward, reward_input
from outdo.rewards.matchers import MATCHERS, majorities, matcher_called
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.run.evaluation.evaluation import evaluate
from outdo.testing import END, ScriptedEngine, byte_bpe_tokenizer
from outdo.types import Prompt, Request, Rollout
from outdo.utils.imports import signature_of

SAMPLING = SamplingParams(max_tokens=600)
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>OPENING{% endif %}"
)
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
ANSWERS = {  # the reference, a thought that states it, and another answer
    "exact": ("Paris", "Maybe it is Paris", "Rome"),
    "last_number": ("42", "I try 6*7. That gives 42", "41"),
    "math": ("42", "So x = 42", "41"),
    "multiple_choice": ("B", "Perhaps it is (B)", "(C)"),
}


@pytest.fixture(scope="module")
def rewards() -> Iterator[dict[str, Reward]]:
    loaded = {name: load_reward(name) for name in ANSWERS}
    yield loaded
    for reward in loaded.values():
        reward.close()


def tokenizer_of(*, special: bool, opening: str) -> PreTrainedTokenizerFast:
    tokenizer = byte_bpe_tokenizer([], 300)
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": TAGS})
    tokenizer.chat_template = TEMPLATE.replace("OPENING", opening)
    return tokenizer


def prompts_of(tokenizer: PreTrainedTokenizerFast, reference: str = "42") -> list[Prompt]:
    return tokenise([Question(id="1", text="Q?", answer=reference, columns={})], tokenizer)


class OnceAgain:
    """Asks a second time after the first turn, and keeps the turns that it gets."""

    def __init__(self, turns: list[Any]) -> None:
        self.turns = turns

    def reply(self, message: Any) -> Reply:
        self.turns.append(message)
        again = [{"role": "user", "content": "again"}]
        return Reply(done=True) if len(self.turns) == 2 else Reply(messages=again)


def ask_twice(row: dict[str, Any], base_url: str, api_key: str) -> None:
    """An agent that asks, and asks again in the same conversation."""
    messages = [{"role": "user", "content": "Q?"}]
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(2):
            message = client.chat.completions.create(model="any", messages=messages).choices[0].message
            messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "again"}]


def template_of(tokenizer: PreTrainedTokenizerFast) -> Template:
    return Template(tokenizer, end_ids={tokenizer.convert_tokens_to_ids(END)})


def in_one_turn(tokenizer: PreTrainedTokenizerFast, reward: Reward) -> SingleTurn:
    return SingleTurn(reward)


def in_a_dialogue(tokenizer: PreTrainedTokenizerFast, reward: Reward) -> Dialogue:
    def make() -> Player:
        return Player(OnceAgain([]), ToolBox([]), timeout=60)

    return Dialogue(make, template_of(tokenizer), reward, turns=2)


def in_an_agent(tokenizer: PreTrainedTokenizerFast, reward: Reward) -> Agent:
    return Agent(ask_twice, template_of(tokenizer), reward)


SETTINGS: dict[str, Callable[[PreTrainedTokenizerFast, Reward], Any]] = {
    "single turn": in_one_turn,
    "dialogue": in_a_dialogue,
    "agent": in_an_agent,
}


def script(answer: str, first: str) -> Callable[[Request], str]:
    """An engine's script: `answer` where the conversation has an end token after its first turn, else `first`."""
    return lambda request: answer if len(request.token_ids) > (request.prompt_length or 0) else first


def rollout_of(
    setting: str, tokenizer: PreTrainedTokenizerFast, reward: Reward, reference: str, answer: str
) -> Rollout:
    """One rollout whose last turn is `answer`."""
    first = answer if setting == "single turn" else "nothing yet"
    engine = ScriptedEngine(script(answer, first), tokenizer)
    environment = SETTINGS[setting](tokenizer, reward)
    (group,) = environment.rollouts(engine, prompts_of(tokenizer, reference), 1, SAMPLING, step=1, purpose="test")
    return group.rollouts[0]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("opened", [False, True], ids=["by the completion", "by the prompt"])
@pytest.mark.parametrize("matcher", ANSWERS)
def test_a_thought_is_not_read_and_what_follows_it_is(
    setting: str, special: bool, opened: bool, matcher: str, rewards: dict[str, Reward]
) -> None:
    tokenizer = tokenizer_of(special=special, opening="<think>\n" if opened else "")
    reference, thought, other = ANSWERS[matcher]
    begin = "" if opened else "<think>"
    for answer, right in (
        (f"{begin}{thought}", False),  # cut
        (f"{begin}{thought}</think>{other}", False),
        (f"{begin}It may be {other}.</think>{reference}", True),
    ):
        rollout = rollout_of(setting, tokenizer, rewards[matcher], reference, answer)
        assert (rollout.right, rollout.reward, rollout.text) == (right, float(right), answer)


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("opened", [False, True], ids=["by the completion", "by the prompt"])
@pytest.mark.parametrize("matcher", ANSWERS)
def test_cut_thoughts_have_no_vote(special: bool, opened: bool, matcher: str, rewards: dict[str, Reward]) -> None:
    tokenizer = tokenizer_of(special=special, opening="<think>\n" if opened else "")
    reference, _, other = ANSWERS[matcher]
    begin = "" if opened else "<think>"
    cut, closed = f"{begin}So it is {other}", f"{begin}It may be {other}.</think>{reference}"
    engine = ScriptedEngine(lambda request: closed if request.stream.sample == 2 else cut, tokenizer)
    evaluation = evaluate(
        engine,
        SingleTurn(rewards[matcher]),
        prompts_of(tokenizer, reference),
        SAMPLING,
        k=3,
        vote=lambda groups: majorities(rewards[matcher], groups),
    )
    assert [rollout.text for rollout in evaluation.majority] == [closed]
    assert evaluation.summary()["maj@3"] == 1.0


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize(
    ("opening", "answer", "content", "thought"),
    [
        ("", "<think>That gives 42</think>no", "no", "That gives 42"),
        ("", "<think>That gives 42", "", "That gives 42"),
        ("<think>\n", "That gives 42</think>no", "no", "That gives 42"),
        ("<think>\n", "That gives 42", "", "That gives 42"),
        ("<think>\n\n</think>\n\n", "no", "no", None),
        ("</think>", "no <think>or 42", "no", "or 42"),
    ],
)
def test_each_turn_of_an_episode_is_read_so(
    special: bool, opening: str, answer: str, content: str, thought: str | None
) -> None:
    tokenizer, turns = tokenizer_of(special=special, opening=opening), list[Any]()
    environment = Dialogue(lambda: Player(OnceAgain(turns), ToolBox([]), timeout=60), template_of(tokenizer), turns=2)
    engine = ScriptedEngine([answer, answer], tokenizer)
    environment.rollouts(engine, prompts_of(tokenizer), 1, SAMPLING, step=1, purpose="test")
    expected = {"role": "assistant", "content": content} | ({} if thought is None else {"reasoning_content": thought})
    assert turns == [expected, expected]


# -------------------------------------------------------------------------------------------- every built-in reward


def test_every_builtin_that_reads_the_completion_takes_what_the_prompt_wrote_of_it() -> None:
    read = {name: signature_of(where).parameters for name, where in BUILTIN.items()}
    readers = {name for name, parameters in read.items() if "completion" in parameters}
    readers -= {"overlong", "environment"}  # one counts tokens, and the other returns what an environment gave
    assert readers == {*ANSWERS, "code", "format", "reasoning_gym"}
    assert {name for name in readers if "prefill" not in read[name]} == set()


@pytest.mark.parametrize("name", MATCHERS)
def test_no_matcher_reads_an_open_thought(name: str) -> None:
    read = matcher_called(name).read
    assert read("<think>\nIt is \\boxed{B}. #### 42\n```python\nprint(42)\n```\n<answer>42</answer>") is None


def test_the_program_of_a_fence_that_the_prompt_opens_is_the_completion() -> None:
    (sample,) = [RewardInput(prompt="", completion="print(1)\n```\nDone.", prefill="```python\n", answer="")]
    assert matcher_called("code").read(sample.answer_text) == "print(1)\n"


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize(
    ("opening", "answer"),
    [
        ("", "<think>a</think><answer>b</answer>"),
        ("<think>\n", "a</think><answer>b</answer>"),
        ("<think>\n\n</think>\n<answer>", "b</answer>"),
    ],
)
def test_the_format_can_be_earned(special: bool, opening: str, answer: str) -> None:
    tokenizer = tokenizer_of(special=special, opening=opening)
    assert rollout_of("single turn", tokenizer, load_reward("format"), "b", answer).reward == 1.0
    assert rollout_of("single turn", tokenizer, load_reward("format"), "b", answer + "!").reward == 0.0


def test_a_judge_reads_the_thought_as_a_thought() -> None:
    answer = RewardInput(prompt="Q?", completion="That gives 42", prefill="<think>\n", answer=None)
    shown = ask_score(answer, "Is it right?", scale=10, reference=True).messages[-1]["content"]
    assert "<think>\nThat gives 42" in shown


# ------------------------------------------------------------------------------------------------ functions of users


def test_a_function_sees_the_completion_as_the_policy_wrote_it_and_beside_it_what_the_prompt_wrote() -> None:
    tokenizer = tokenizer_of(special=True, opening="<think>\n")
    seen: list[tuple[Any, ...]] = []

    def plain(completion: str, rendered_prompt: str, prefill: str) -> float:
        seen.append((completion, rendered_prompt, prefill))
        return 1.0

    def trl(completions: Sequence[Any], prefills: Sequence[str]) -> list[float]:
        seen.append((completions, prefills))
        return [1.0] * len(completions)

    def verl(data_source: str, solution_str: str, ground_truth: str) -> float:
        seen.append((solution_str,))
        return 1.0

    def cs336(response: str, ground_truth: str) -> float:
        seen.append((response,))
        return 1.0

    for function in (plain, trl, verl, cs336):
        rollout_of("single turn", tokenizer, load_reward(function), "42", "6*7</think>42")
    assert seen == [
        ("6*7</think>42", "<|user|>Q?<|end|><|assistant|><think>\n", "<think>\n"),
        (["6*7</think>42"], ["<think>\n"]),
        ("6*7</think>42",),
        ("6*7</think>42",),
    ]


def test_a_function_of_a_user_passes_the_prefill_on_to_a_matcher_as_on_its_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/rewards.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(# mine\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(source)
    reward, tokenizer = load_reward(f"{tmp_path}/mine.py:score"), tokenizer_of(special=True, opening="<think>\n")
    for answer, right in (("That gives 42", False), ("That gives 41</think>42", True)):
        assert rollout_of("single turn", tokenizer, reward, "42", answer).right is right
    reward.close()


def test_a_prefill_in_a_message_is_in_the_completion_of_a_trl_function_and_read_by_matchers() -> None:
    asked = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "The answer is "}]
    question = Question(id="1", text=asked, answer="42", columns={})
    sample = reward_input(question, "42, as I have 7 fingers", rendered_prompt="<|user|>Q?<|assistant|>The answer is ")
    seen: list[Any] = []

    def score(prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
        seen.extend([prompts, completions])
        return [1.0]

    load_reward(score)([sample])
    answer = [{"role": "assistant", "content": "The answer is 42, as I have 7 fingers"}]
    assert seen == [[asked[:1]], [answer]]
    assert [load_reward("last_number")([each])[0].right for each in (sample, replace(sample, prefill=""))] == [
        True,
        False,
    ]
    template = template_of(tokenizer_of(special=False, opening="<think>\n"))
    before = template.tokenizer.encode("<|user|>Q?<|end|><|assistant|><think>\nThe answer is", add_special_tokens=False)
    assert template.prefill(before, asked) == "<think>\nThe answer is"


def test_the_prefill_is_that_of_the_rendered_prompt_unless_it_is_given() -> None:
    question = Question(id="1", text="Q?", answer="42", columns={})
    assert reward_input(question, "42", rendered_prompt="Q? <think>").prefill == "<think>"
    assert reward_input(question, "42", rendered_prompt="Q? <think>", prefill="").prefill == ""
