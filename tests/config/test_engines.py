"""The engine of a recipe is checked before a model loads: its name, its options, and the environment of vLLM."""

import sys
from pathlib import Path

import pytest

from outdo.config.engines import engine_mistakes, machine_mistakes, reward_place_mistakes
from outdo.config.file import dump, load
from outdo.config.recipe import Piece
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl"]
TWO = '{name = "builtin", processes = 2}'
PYTHON = '{name = "vllm", python = "bin/python"}'
SLEEPS = '{name = "vllm", python = "bin/python", sleep = true}'


def vllm(**options: object) -> Piece:
    return Piece(name="vllm", options=options)


def builtin(**options: object) -> Piece:
    return Piece(name="builtin", options=options)


def test_the_engine_is_built_in_unless_the_recipe_names_another():
    assert load(None, NEEDED).engine == Piece(name="builtin")
    recipe = load(None, [*NEEDED, f"engine={PYTHON}", "engine.gpu_memory_utilization=0.5"])
    assert recipe.engine.options == {"python": "bin/python", "gpu_memory_utilization": 0.5}
    assert 'engine = {name = "vllm"' in dump(recipe).replace("{ ", "{").replace(" }", "}")


@pytest.mark.parametrize(
    ("piece", "mistake"),
    [
        (Piece(name="vlm"), 'nothing is called "vlm"; did you mean vllm?'),
        (builtin(proceses=2), "engine.proceses: unknown option; did you mean processes?"),
        (builtin(processes=0), "engine.processes: expected a whole number of 1 or more, found 0"),
        (builtin(processes=1, timeout=0), "engine.timeout: expected a number above 0, found 0"),
        (
            builtin(processes=1, devices=["gpu"]),
            'engine.devices: expected a list such as ["cuda:1", "cuda:2"], of "cpu", "mps" and "cuda:" with a number',
        ),
        (
            builtin(processes=1, place="here"),
            'engine.place: expected "ray", or no place for processes',
        ),
        (vllm(python="p", folder="f"), "engine.folder: has an effect only with engine.url"),
        (vllm(url="http://h", sleep=True), "engine.sleep: has an effect only with engine.python"),
        (vllm(python="p", sleep=2), "engine.sleep: expected true or false, found 2"),
        (vllm(python="p", enable_sleep_mode=True), "engine.enable_sleep_mode: outdo sets it itself: `engine.sleep`"),
        (vllm(), "vllm needs either python"),
        (vllm(python="p", url="http://h"), "set only one of them"),
        (vllm(python=3), "engine.python: expected text, found 3"),
        (vllm(url="host:8000"), "engine.url: expected a URL"),
        (vllm(url="http://h", tensor_parallel_size=2), "engine.tensor_parallel_size: unknown option"),
        (vllm(python="p", logprobs_mode="raw"), "engine.logprobs_mode: outdo sets it itself: log-probabilities are"),
    ],
)
def test_a_mistake_in_the_engine_is_one_sentence(piece: Piece, mistake: str):
    assert any(mistake in found for found in engine_mistakes(piece))


@pytest.mark.parametrize(
    ("engine", "override", "mistake"),
    [
        (PYTHON, "sampling.top_p=0.9", "sampling.top_p = 0.9: vLLM reports log-probabilities after this filter"),
        (SLEEPS, "train.max_staleness=1", "engine.sleep: vLLM samples while the policy trains, because"),
        (SLEEPS, "device=cpu", "engine.sleep: vLLM sleeps on GPUs only"),
        (TWO, "weights=nf4", "engine.processes: processes cannot share quantised weights"),
    ],
)
def test_settings_that_do_not_work_with_an_engine_are_refused(engine: str, override: str, mistake: str):
    with pytest.raises(UserError, match=mistake.replace("(", r"\(")):
        load(None, [*NEEDED, f"engine={engine}", override])


def test_an_interpreter_that_is_missing_or_has_no_vllm_is_one_sentence(tmp_path: Path):
    (missing,) = machine_mistakes(vllm(python=str(tmp_path / "python")))
    assert missing.startswith(f"engine.python: {tmp_path}/python: no such file; `make vllm` creates")
    (without,) = machine_mistakes(vllm(python=sys.executable))
    assert without == (
        f"engine.python: {sys.executable}: this Python has no vllm; `make vllm` creates an environment that has"
    )
    assert machine_mistakes(Piece(name="builtin")) == []


def test_options_are_compared_with_the_source_of_the_vllm_that_will_run(tmp_path: Path):
    package = tmp_path / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nothing imports it')\n")
    (package / "engine" / "arg_utils.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass EngineArgs:\n    tensor_parallel_size: int = 1\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "{package}/__init__.py"\n')
    python.chmod(0o755)
    assert machine_mistakes(vllm(python=str(python), tensor_parallel_size=2, timeout=5.0)) == []
    (mistake,) = machine_mistakes(vllm(python=str(python), tensor_paralel_size=2))
    assert mistake.startswith(
        "engine.tensor_paralel_size: unknown option; did you mean tensor_parallel_size? vllm takes "
    )


def test_ray_that_is_not_installed_is_one_sentence(monkeypatch):
    monkeypatch.setattr("outdo.extras.ray.check.find_spec", lambda name: None)
    (mistake,) = machine_mistakes(builtin(processes=1, place="ray"))
    assert mistake == 'engine.place: Ray is not installed: pip install "outdo[ray]"'
    assert machine_mistakes(builtin(processes=1)) == []
    recipe = load(None, [*NEEDED, "rewards=['exact', {name='math', place='ray'}]"])
    (mistake,) = reward_place_mistakes(recipe)
    assert mistake == 'rewards.math.place: Ray is not installed: pip install "outdo[ray]"'
