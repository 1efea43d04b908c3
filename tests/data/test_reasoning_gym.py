"""Tasks of reasoning-gym as data and reward: with a stand-in that has its interface, and with the package itself."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from outdo.config.file import RecipeError, load
from outdo.data.batches import in_batches
from outdo.data.files import read_rows
from outdo.data.splits import load_questions
from outdo.rewards.loading import load_reward
from outdo.rewards.types import RewardInput, Status
from outdo.types import Prompt
from outdo.utils.errors import UserError

STAND_IN = '''
from dataclasses import dataclass


class Sums:
    """Sums of two numbers below `most`. An answer that is a number, but the wrong one, scores 0.25."""

    def __init__(self, seed, size, most):
        self.seed, self.size, self.most = seed, size, most

    def __getitem__(self, number):
        a, b = (self.seed + 3 * number) % self.most, (2 * self.seed + number) % self.most
        metadata = {"source_dataset": "sums", "terms": [a, b]}
        return {"question": f"{a} + {b} =", "answer": str(a + b), "metadata": metadata}

    def score_answer(self, answer, entry):
        right = str(sum(entry["metadata"]["terms"]))
        return 1.0 if answer == right else 0.25 if answer and answer.isdigit() else 0.0


class Tuples(Sums):
    def __getitem__(self, number):
        return {**super().__getitem__(number), "metadata": {"source_dataset": "tuples", "terms": (1, 2)}}

    def score_answer(self, answer, entry):
        return float(isinstance(entry["metadata"]["terms"], tuple))


class Grids(Sums):
    def __getitem__(self, number):
        return {"question": "Count.", "answer": "1 2\\n3 4.", "metadata": {"source_dataset": "grids"}}

    def score_answer(self, answer, entry):
        return {entry["answer"]: 1.0, "1 2": 0.1}.get(answer, 0.0)


DATASETS = {"sums": Sums, "tuples": Tuples, "grids": Grids}


def create_dataset(name, seed=None, size=500, most=10):
    assert most > 1, "most must be above 1"
    return DATASETS[name](seed, size, most)


class Attribute:
    def __init__(self, levels):
        self.levels = levels


@dataclass
class Config:
    seed: int = 9
    size: int = 9
    most: int = 0


class Curriculum:
    attributes = {"most": Attribute([3, 5, 9]), "other": Attribute([0])}

    def set_global_level(self, level):
        self.level = level

    def generate_configuration(self, defaults):
        return Config(most=self.attributes["most"].levels[self.level])


def has_curriculum(name):
    return name == "sums"


def create_curriculum(name):
    return Curriculum()


def get_score_answer_fn(name):
    return DATASETS[name](0, 1, 10).score_answer
'''


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "site" / "reasoning_gym"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "factory.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(package.parent))
    kept = {name: sys.modules.pop(name) for name in _loaded()}
    yield
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(kept)


def _loaded() -> list[str]:
    return [name for name in sys.modules if name.startswith(("reasoning_gym", "outdo.extras.gym.reward"))]


def inputs(path: str, *completions: str) -> list[RewardInput]:
    rows = list(read_rows(path).values.values())
    return [
        RewardInput(prompt=row["question"], completion=completion, answer=row["answer"], columns=row)
        for row, completion in zip(rows, completions, strict=False)
    ]


@pytest.mark.usefixtures("stand_in")
def test_a_text_generates_the_same_questions_each_time() -> None:
    rows = read_rows("reasoning-gym:sums?seed=3&size=4&most=7")
    assert [row["question"] for row in rows.values.values()] == ["3 + 6 =", "6 + 0 =", "2 + 1 =", "5 + 2 ="]
    assert rows.columns == ("question", "answer", "entry")
    assert rows.fingerprint == read_rows("reasoning-gym:sums?seed=3&size=4&most=7").fingerprint
    assert rows.fingerprint != read_rows("reasoning-gym:sums?seed=4&size=4&most=7").fingerprint
    assert len(read_rows("reasoning-gym:sums").values) == 1000
    assert len(read_rows("reasoning-gym:sums", limit=5).values) == 5


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("reasoning-gym:sum", "reasoning-gym has no task 'sum'; did you mean sums?"),
        ("reasoning-gym:sums?most=1", "reasoning-gym refuses it: most must be above 1"),
        ("reasoning-gym:tuples", "JSON changes the entries of this task"),
        ("reasoning-gym:sums?level=3", "expected a level of sums from 0 to 2, found 3"),
        ("reasoning-gym:tuples?level=0", "reasoning-gym has no curriculum for the task 'tuples'"),
    ],
)
def test_a_task_that_cannot_be_generated_is_one_sentence(path: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_rows(path)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(path)
    assert sentence in caught.value.problems[0]


@pytest.mark.usefixtures("stand_in")
def test_a_level_has_the_settings_of_the_curriculum_unless_others_are_given() -> None:
    def questions(path: str) -> list[str]:
        return [row["question"] for row in read_rows(path).values.values()]

    assert questions("reasoning-gym:sums?seed=3&size=4&level=1") == questions("reasoning-gym:sums?seed=3&size=4&most=5")
    assert questions("reasoning-gym:sums?level=0") == questions("reasoning-gym:sums?most=3")
    assert questions("reasoning-gym:sums?level=0&most=9") == questions("reasoning-gym:sums?most=9")


@pytest.mark.usefixtures("stand_in")
def test_a_curriculum_has_the_questions_of_all_levels_and_takes_those_of_one(written) -> None:
    other = written([{"question": f"o{n}", "answer": "1"} for n in range(2)])
    listed = (
        f"[{{path='reasoning-gym:sums?size=4', weight=1, curriculum={{levels=[0, 2]}}}}, {{path='{other}', weight=1}}]"
    )
    recipe = load(None, ["model=m", "rewards=reasoning_gym", f"data.path={listed}"])
    questions = load_questions(recipe)
    assert [each.id for each in questions.train] == [
        *(f"1:level {level}:{n}" for level in (0, 2) for n in range(1, 5)),
        *("2:1", "2:2"),
    ]
    assert set(questions.fingerprints) == {"data.path[1] level 0", "data.path[1] level 2", "data.path[2]"}
    prompts = [Prompt(id=each.id, text="", token_ids=(5,)) for each in questions.train]
    batches = in_batches(prompts, questions, per_step=4, seed=0, shuffle=True)
    taken = batches.take(16)
    assert len(taken) == 2 * sum(each.id.startswith("1:level 0:") for each in taken)
    assert batches.metrics(taken) == {"data/level/1": 0.0}
    with pytest.raises(UserError, match="no question of level 2 is left to train on"):
        in_batches([each for each in prompts if "level 2" not in each.id], questions, per_step=4, seed=0, shuffle=True)
    alone = load(
        None, ["model=m", "rewards=reasoning_gym", "data.path={path='reasoning-gym:sums?size=2', curriculum=true}"]
    )
    assert {each.level for each in load_questions(alone).train} == {0, 1, 2}
    missing = load(
        None, ["model=m", "rewards=reasoning_gym", "data.path={path='reasoning-gym:sums', curriculum={levels=[0, 3]}}"]
    )
    with pytest.raises(UserError, match=r"data\.path: curriculum\.levels: expected levels from 0 to 2, found 3"):
        load_questions(missing)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("{path='a.jsonl', curriculum=true}", "only a task of reasoning-gym has a curriculum"),
        ("{path='reasoning-gym:sums?level=2', curriculum=true}", "the curriculum sets the level"),
        ("[{path='reasoning-gym:sums', curriculum=true}, 'a.jsonl']", "needs a weight for each of them"),
    ],
)
def test_a_curriculum_that_cannot_work_is_refused_in_one_sentence(path: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(None, ["model=m", "rewards=reasoning_gym", f"data.path={path}"])
    assert sentence in str(caught.value)


def test_a_curriculum_needs_a_reward_that_tells_what_is_right() -> None:
    path = "data.path={path='reasoning-gym:sums', curriculum=true}"
    for told in (["rewards=reasoning_gym"], ["rewards=exact"], ["rewards=format", "eval.right=format"]):
        load(None, ["model=m", path, *told])
    with pytest.raises(RecipeError, match="counts right answers, and right is not defined; use rewards ="):
        load(None, ["model=m", path, "rewards=format"])


def test_without_the_package_data_and_reward_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reasoning_gym", "reasoning_gym.factory"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "outdo.extras.gym.reward", raising=False)
    with pytest.raises(UserError, match=r'pip install "outdo\[gym\]"'):
        read_rows("reasoning-gym:sums")
    with pytest.raises(UserError, match=r'pip install "outdo\[gym\]"'):
        import_module("outdo.extras.gym.reward")


@pytest.mark.usefixtures("stand_in")
def test_the_task_scores_the_final_answer() -> None:
    from outdo.extras.gym.reward import reasoning_gym

    entry = json.loads(read_rows("reasoning-gym:sums?seed=3").values[1]["entry"])  # 3 + 6
    for completion, score in (
        ("9", 1.0),
        ("First 3, then 6 more. The answer is 9.", 1.0),
        ("<think>8</think> It is <answer>9</answer>", 1.0),
        ("#### 8", 0.25),
        ("nine", 0.0),
        ("", 0.0),
    ):
        assert reasoning_gym(completion, json.dumps(entry)) == score, completion
    with pytest.raises(ValueError, match="needs the column `entry`"):
        reasoning_gym("9", "no entry")


@pytest.mark.usefixtures("stand_in")
def test_an_answer_of_several_lines_may_follow_the_words_that_announce_it() -> None:
    from outdo.extras.gym.reward import reasoning_gym

    entry = read_rows("reasoning-gym:grids").values[1]["entry"]
    for completion, score in (
        ("1 2\n3 4.", 1.0),
        ("I count.\n\nThe answer is:\n\n1 2\n3 4.\n", 1.0),
        ("**Answer:** 1 2\n3 4.", 1.0),
        ("<answer>1 2\n3 4.</answer>", 1.0),
        ("The answer is 1 2\n3 5.", 0.1),
        ("The answer is 1 2\n3 4. The answer is 5.", 0.0),
    ):
        assert reasoning_gym(completion, entry) == score, completion


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
def test_the_package_itself_generates_and_scores() -> None:
    path = "reasoning-gym:chain_sum?seed=5&size=3&min_terms=2&max_terms=2"
    rows = list(read_rows(path).values.values())
    asked = inputs(path, rows[0]["answer"], f"The answer is {rows[1]['answer']}.", "no idea")
    reward = load_reward("reasoning_gym")
    try:
        outputs = reward(asked)
    finally:
        reward.close()
    assert [output.status for output in outputs] == [Status.ok] * 3
    assert [output.value for output in outputs][:2] == [1.0, 1.0]
    assert outputs[2].value < 0.1
