"""What a reward sees of an answer: the completion, and the prompt as the policy read it."""

from types import SimpleNamespace

import pytest

from outdo.data.prompts import tokenise
from outdo.data.questions import Question
from outdo.extras.agents.agent import Agent
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.reward_models.online_model import OnlineRewardModel
from outdo.rewards import WeightedSum, load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import ScriptedEngine, byte_bpe_tokenizer
from outdo.utils.errors import UserError

TOKENIZER = byte_bpe_tokenizer([], 300)
QUESTION = Question(id="1", text="9 * 2?", answer="18", columns={})


def rewards(template: str, answer: str) -> dict[str, float | None]:
    """Return the rewards of one answer to a question in this template."""
    prompts = tokenise([QUESTION], TOKENIZER, template=template)
    environment = SingleTurn(load_reward(["format", "last_number"]))
    sampling = SamplingParams(max_tokens=200)
    (group,) = environment.rollouts(ScriptedEngine([answer], TOKENIZER), prompts, 1, sampling, step=1, purpose="test")
    return dict(group.rollouts[0].reward_parts)


def score(completion: str, answer: str) -> float:
    return float(completion == answer)


def test_a_plain_function_is_a_reward_in_python_as_in_a_recipe():
    prompts, sampling = tokenise([QUESTION], TOKENIZER, template="{prompt}"), SamplingParams(max_tokens=9)
    for reward in (score, WeightedSum([(score, 1.0)])):
        engine = ScriptedEngine(["18"], TOKENIZER)
        (group,) = SingleTurn(reward).rollouts(engine, prompts, 1, sampling, step=1, purpose="test")
        assert (group.rollouts[0].reward, group.rollouts[0].reward_parts) == (1.0, {"score": 1.0})
    assert Dialogue(lambda: None, None, score).reward.name == "score"
    assert Agent(lambda row: None, None, score).reward.name == "score"
    assert OnlineRewardModel(SimpleNamespace(name="model", is_divided=False), score, every=1).labels.name == "score"


def test_what_is_no_reward_is_refused_before_anything_is_sampled():
    with pytest.raises(UserError, match=r"found 'exact': outdo\.load_reward\(\.\.\.\) makes a reward of it"):
        SingleTurn("exact")


def test_a_template_that_opens_the_thinking_begins_the_format():
    answer = "two nines</think> <answer>18</answer>"
    assert rewards("{prompt}\nAssistant: <think>", answer) == {"format": 1.0, "last_number": 1.0}
    assert rewards("{prompt}\nAssistant: ", answer) == {"format": 0.0, "last_number": 1.0}
    assert rewards("{prompt}\nAssistant: ", f"<think>{answer}") == {"format": 1.0, "last_number": 1.0}
