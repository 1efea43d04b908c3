"""What a reward sees of an answer: the completion, and the prompt as the policy read it."""

from outdo.data.prompts import tokenise
from outdo.data.questions import Question
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import ScriptedEngine, byte_bpe_tokenizer

TOKENIZER = byte_bpe_tokenizer([], 300)
QUESTION = Question(id="1", text="9 * 2?", answer="18", columns={})


def rewards(template: str, answer: str) -> dict[str, float | None]:
    """Return the rewards of one answer to a question in this template."""
    prompts = tokenise([QUESTION], TOKENIZER, template=template)
    environment = SingleTurn(load_reward(["format", "last_number"]))
    sampling = SamplingParams(max_tokens=200)
    (group,) = environment.rollouts(ScriptedEngine([answer], TOKENIZER), prompts, 1, sampling, step=1, purpose="test")
    return dict(group.rollouts[0].reward_parts)


def test_a_template_that_opens_the_thinking_begins_the_format():
    answer = "two nines</think> <answer>18</answer>"
    assert rewards("{prompt}\nAssistant: <think>", answer) == {"format": 1.0, "last_number": 1.0}
    assert rewards("{prompt}\nAssistant: ", answer) == {"format": 0.0, "last_number": 1.0}
    assert rewards("{prompt}\nAssistant: ", f"<think>{answer}") == {"format": 1.0, "last_number": 1.0}
