"""The reward `reasoning_gym`: the score, from 0 to 1, that a task of reasoning-gym gives to the final answer."""

import json
from importlib import import_module

from outdo.rewards.final_answer import after_cue, final_answer, lines_after_cue
from outdo.utils.errors import UserError

try:
    factory = import_module("reasoning_gym.factory")
except ImportError:
    raise UserError(['the reward "reasoning_gym" needs the package reasoning-gym: pip install "outdo[gym]"']) from None


def reasoning_gym(completion: str, entry: str = "", prefill: str = "") -> float:
    """Return the score of the final answer (`outdo.rewards.final_answer`) by the rules of the entry's task.

    After "the answer is" this is the sentence, or all lines to the end, whichever scores more: answers to many tasks
    are grids, or sentences with their period.

    `entry` is the column of this name, which `data.path = "reasoning-gym:chain_sum"` and other tasks have. Many tasks
    give a small score to an answer that is wrong but well formed.

    Raises:
        ValueError: the row has no entry of reasoning-gym.
    """
    try:
        row = json.loads(entry)
        task = row["metadata"]["source_dataset"]
    except (json.JSONDecodeError, TypeError, KeyError):
        raise ValueError("reasoning_gym needs the column `entry` of data from reasoning-gym") from None
    final = final_answer(prefill + completion)
    if final is None:
        return 0.0
    score = factory.get_score_answer_fn(task)
    if final.stated:
        return float(score(final.text, row))
    value = float(score(next(after_cue(final.text), final.text), row))
    lines = lines_after_cue(final.text)
    return value if value >= 1 or not lines else max(value, float(score(lines, row)))
