"""`data.inputs` names the function that makes of a row what the model reads beside its tokens, wherever it is read."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moods import STATES, write_reading_home
from run_cases import outdo_

from outdo.config.file import RecipeError, load
from outdo.config.paths import code_of, with_absolute_paths
from outdo.config.rules import refusals
from outdo.extras.record.parquet import read
from outdo.rollouts.engines.modes import MODES, SamplingChoice
from outdo.run.assemble.engines import replays_routes
from outdo.run.folder.run_folder import read_metrics

SMALL = ("steps=2", "eval.every=0", "cluster.replicas=1")
INPUTS = "data.inputs=states.py:states"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run of two steps."""
    home = write_reading_home(tmp_path_factory.mktemp("home"))
    outdo_(home, "train", "recipe.toml", "run=./run", *SMALL, INPUTS)
    return home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_reading_home(tmp_path)


def said(home: Path, *arguments: str, status: int = 0) -> str:
    """What a command said, its lines joined."""
    return " ".join(outdo_(home, *arguments, status=status).split())


def answers(run: Path, *, step: int = 1) -> list[list[int]]:
    return [row["token_ids"] for row in read(run, step).to_pylist()]


def test_a_run_samples_and_trains_with_them(run: Path) -> None:
    metrics = [line for line in read_metrics(run / "run" / "metrics.jsonl") if "grad_norm" in line]
    assert len(metrics) == 2
    for line in metrics:
        assert line["sampling/sampling_logp_difference/max"] < 1e-4
        assert line["grad_norm"] > 0


def test_other_inputs_are_other_answers(run: Path) -> None:
    scaled = 'data.inputs={name = "states.py:states", scale = 2.0}'
    outdo_(run, "train", "recipe.toml", "run=./scaled", *SMALL, scaled)
    outdo_(run, "train", "recipe.toml", "run=./again", *SMALL, INPUTS)
    assert answers(run / "again") == answers(run / "run") != answers(run / "scaled")


def test_a_resumed_run_continues_with_them_and_refuses_another_function(run: Path) -> None:
    outdo_(run, "train", "recipe.toml", "run=./long", *SMALL, "steps=3", INPUTS)
    outdo_(run, "train", "recipe.toml", "run=./short", *SMALL, INPUTS)
    outdo_(run, "resume", "short", "steps=3")
    assert answers(run / "long", step=3) == answers(run / "short", step=3)
    (run / "states.py").write_text(STATES.replace("manual_seed(", "manual_seed(1 + "))
    try:
        assert "states.py: the code of the run has changed" in said(run, "resume", "short", "steps=4", status=2)
    finally:
        (run / "states.py").write_text(STATES)


def test_the_questions_of_an_evaluation_have_them(run: Path) -> None:
    def evaluated(*arguments: str) -> list[str]:
        outdo_(run, "eval", "run", "--answers", "answers.jsonl", "--device", "cpu", "--max-tokens", "8", *arguments)
        return [json.loads(line)["completion"] for line in (run / "answers.jsonl").read_text().splitlines()]

    with_their_own = evaluated()
    assert len(set(with_their_own)) > 1  # their prompts are the same text
    rows = [json.loads(line) for line in (run / "held_out.jsonl").read_text().splitlines()]
    moods = [row["mood"] for row in rows]
    swapped = [row | {"mood": mood} for row, mood in zip(rows, moods[::-1], strict=True)]
    (run / "swapped.jsonl").write_text("".join(json.dumps(row) + "\n" for row in swapped))
    assert evaluated("--data", "swapped.jsonl") == with_their_own[::-1]


def test_generate_answers_with_them(run: Path) -> None:
    arguments = ("--data", "held_out.jsonl", "--out", "generated.jsonl", "--device", "cpu")
    outdo_(run, "generate", "run", *arguments, "--max-tokens", "8")
    lines = (run / "generated.jsonl").read_text().splitlines()
    assert len({json.loads(line)["completion"] for line in lines}) > 1


def test_a_record_names_them_and_its_answers_are_not_scored_again_without_them(run: Path) -> None:
    assert {tuple(row["inputs"]) for row in read(run / "run", 1).to_pylist()} == {("encoder_hidden_states",)}
    refused = said(run, "inspect", "run", "--compare", "1", "2", status=1)
    assert "the model has read encoder_hidden_states beside the tokens of these answers" in refused


def test_a_chat_is_refused(run: Path) -> None:
    assert "(states.py:states), and a line that is typed has no row" in said(run, "chat", "run", status=2).replace(
        f"{run}/", ""
    )


def test_a_check_names_every_row_for_which_they_cannot_be_made(home: Path) -> None:
    faults = 'if row["mood"] == 3: return 5\n    if row["mood"] == 2: return {"encoder_hidden_states": 1}\n    '
    (home / "states.py").write_text(STATES.replace("numbers", f"{faults}numbers", 1))
    rows = [json.loads(line) for line in (home / "train.jsonl").read_text().splitlines()]
    del rows[1]["mood"]
    (home / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = said(home, "check", "recipe.toml", INPUTS, status=2)
    for fault in (
        "question train1: inputs: KeyError: 'mood'",
        "question train2: the input encoder_hidden_states is int, expected a tensor with one dimension or more",
        "question train3: expected its inputs as a table of tensors, found int",
        "question held_out2: the input encoder_hidden_states is int",
    ):
        assert fault in report


def test_a_model_that_does_not_name_them_is_refused_before_it_samples(home: Path) -> None:
    (home / "states.py").write_text(STATES.replace("encoder_hidden_states", "pixels"))
    refused = said(home, "train", "recipe.toml", *SMALL, INPUTS, status=2)
    assert "the prompts bring the input pixels, and the forward method of GPT2" in refused


def written(*settings: str) -> Any:
    return load(None, ["model=m", "data.path=x.jsonl", *settings])


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("states.py").write_text(STATES + "\ndef two(row, other): ...\n")


@pytest.mark.usefixtures("states")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["data.inputs=states"], 'data.inputs: nothing is called "states"; expected file.py:name'),
        (["data.inputs=states.py:state"], 'states.py has no "state"; did you mean states?'),
        (["data.inputs=stats.py:states"], "stats.py: no such file"),
        (["data.inputs=states.py:two"], "states.py:two takes row, other; it will be called with row"),
        (['data.inputs={name = "states.py:states", scales = 2.0}'], "data.inputs.scales: unknown option"),
        ([INPUTS, "engine={name='builtin', processes=1}"], "data.inputs: an engine with a copy of the weights"),
        ([INPUTS, "attention=ulysses", "cluster.replicas=2"], 'data.inputs: attention = "ulysses"'),
        ([INPUTS, "environment={name='agent', run='agent.py:run'}"], "data.inputs: an agent sends text alone"),
    ],
)
def test_what_cannot_work_with_them_is_refused(settings: list[str], sentence: str) -> None:
    Path("agent.py").write_text("async def run(base_url): ...\n")
    with pytest.raises(RecipeError) as caught:
        written(*settings)
    assert sentence in str(caught.value)


@pytest.mark.usefixtures("states")
def test_their_file_is_named_by_an_absolute_path_in_a_run() -> None:
    recipe = with_absolute_paths(written(INPUTS))
    assert code_of(recipe)[-1] == f"{Path.cwd()}/states.py:states"
    assert not refusals(recipe)


@pytest.mark.parametrize("with_inputs", [False, True])
def test_a_mixture_does_not_replay_the_experts_that_generate_does_not_return(with_inputs: bool) -> None:
    engine: Any = SimpleNamespace(choice=SamplingChoice(MODES[1]), returns_experts=True)
    forward: Any = SimpleNamespace(routers=object(), unreachable_routers="", autocast=True)
    replays, notes = replays_routes(engine, forward, with_inputs=with_inputs)
    assert replays is not with_inputs
    assert ("model.generate does not return the experts" in notes[0]) is with_inputs
