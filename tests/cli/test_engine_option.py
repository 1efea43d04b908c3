"""`--engine`: which engine answers, what is wrong with its name is one sentence, and its weights are proved."""

import json

import pytest

ENGINES = """
from outdo import Engine
from outdo.rollouts.engines.builtin import BuiltinEngine


class Own(BuiltinEngine):
    def __init__(self, policy, *, seed=0, offset=0.0):
        super().__init__(policy, seed=seed)
        self.offset = offset

    def score(self, sequences):
        return [[each - self.offset for each in scores] for scores in super().score(sequences)]

    def close(self):
        print("closed")


class Alike:
    def __init__(self, policy, *, seed=0): ...


class Half(Engine):
    def __init__(self, policy, *, seed=0): ...

    def update_weights(self, policy): ...
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "own.py").write_text(ENGINES)
    rows = [json.dumps({"question": f"{n}=", "answer": "7"}) + "\n" for n in range(3)]
    (tmp_path / "three.jsonl").write_text("".join(rows))
    return tmp_path


def evaluated(outdo, model, files, engine):
    return outdo("eval", model, "--data", files / "three.jsonl", "--rewards", "exact", "--engine", engine)


def test_an_engine_of_the_user_answers_and_is_closed(outdo, seven, files):
    done = evaluated(outdo, seven, files, f"{files}/own.py:Own")
    assert (done.status, done.error) == (0, "")
    assert "100.0%" in done.out
    assert "closed" in done.out


def test_an_engine_whose_scores_are_not_those_of_the_model_is_refused(outdo, seven, files):
    done = evaluated(outdo, seven, files, f'{{name = "{files}/own.py:Own", offset = 0.5}}')
    assert done.status == 1
    assert "the engine does not sample from the policy's weights" in done.error
    assert "0.5 nats apart" in done.error
    assert "Traceback" not in done.error


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("Alike", "engine: {own}:Alike: Alike does not inherit from outdo.Engine, whose methods a run calls"),
        ("Half", "engine: {own}:Half lacks what every outdo.Engine has: generate, score, tokenizer, version"),
    ],
)
def test_an_engine_of_the_user_that_is_none_is_told_what_to_inherit_and_what_is_missing(
    outdo, seven, files, engine, sentence
):
    done = evaluated(outdo, seven, files, f"{files}/own.py:{engine}")
    assert done.status == 2
    assert sentence.format(own=files / "own.py") in done.error
    assert "Traceback" not in done.error


@pytest.mark.parametrize(
    ("command", "engine", "sentence"),
    [
        ("eval", "vlm", 'engine: nothing is called "vlm"; did you mean vllm?'),
        ("generate", "vllm", 'engine: vllm needs either python = "path/to/its/python" or url'),
        ("chat", "{name = ", "--engine: expected a name, or a table such as"),
        ("quickstart", '{name = "vllm", python = "/nowhere/python"}', "engine.python: /nowhere/python: no such file"),
    ],
)
def test_a_mistake_in_the_engine_is_one_sentence(outdo, seven, files, command, engine, sentence):
    data = ["--data", files / "three.jsonl"]
    arguments = {
        "eval": [seven, *data],
        "generate": [seven, *data, "--out", files / "answers.jsonl"],
        "chat": [seven],
        "quickstart": ["--task", "sums", "--folder", files / "quickstart"],
    }[command]
    done = outdo(command, *arguments, "--engine", engine)
    assert done.status == 2
    assert sentence in done.error
    assert "Traceback" not in done.error
