"""The Python examples of all pages run, in a folder with what the page says that its reader has."""

import doctest
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from episode_cases import call, tool_tokenizer
from peft import LoraConfig

import outdo
from outdo.config.file import load
from outdo.extras.record import parquet
from outdo.extras.sandbox import open_sandbox
from outdo.extras.trackers.base import TrackedRun
from outdo.extras.trackers.hooks import hook
from outdo.rewards import RewardInput
from outdo.run.assemble.environment import open_environment
from outdo.run.folder.run_folder import read_metrics
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Rollout
from outdo.utils.errors import UserError

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|toml)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HERE = "documentation/test_python_of_pages.py"
PLACES: dict[str, list[str]] = {
    "README.md": ["cli/test_printed_programs.py"],
    "docs/adapters.md": [HERE],
    "docs/agents.md": [HERE, HERE, "not run: needs verifiers, in an environment of its own"],
    "docs/checkpoints.md": ["cli/test_own_loop.py"],
    "docs/data.md": [HERE],
    "docs/environments.md": [HERE, HERE],
    "docs/explain.md": ["extras/explain/test_explain.py"],
    "docs/methods/target.md": [HERE],
    "docs/pieces.md": ["cli/test_printed_programs.py"] * 16,
    "docs/reading-a-run.md": ["extras/record/test_documented_queries.py"],
    "docs/recipe.md": [HERE],
    "docs/record.md": [
        *["extras/record/test_documented_queries.py"] * 3,
        HERE,
        "not run: needs a trainer of TRL; extras/record/test_trl_run.py adds this callback to one",
        HERE,
    ],
    "docs/reproducibility.md": [HERE, HERE],
    "docs/reward-models.md": [HERE],
    "docs/rewards.md": [*["rewards/test_reward_loading.py"] * 4, HERE, "rewards/test_thinking_in_answers.py"],
    "docs/teachers.md": [HERE, HERE],
    "docs/tools.md": [HERE],
    "docs/trackers.md": [HERE],
    "docs/tutorial.md": [HERE],
}
"""For each page, in the order of its Python examples: the test that runs it, or why none does.

`test_examples_of_pages.py` looks up the names and the parameters of all of them.
"""


def blocks(page: str, language: str = "python") -> list[str]:
    """The examples of a page in a language."""
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if kind == language]


def run(page: str, number: int, **names: Any) -> dict[str, Any]:
    """Run an example, by its number from 1 on, with the names that the reader has; return the names afterwards."""
    exec(compile(blocks(page)[number - 1], page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_is_run_by_a_test_or_has_a_reason():
    pages = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    assert {page: len(found) for page in pages if (found := blocks(page))} == {
        page: len(places) for page, places in PLACES.items()
    }
    for page, places in PLACES.items():
        for place in {each for each in places if not each.startswith("not run: ")}:
            assert Path(page).name in (ROOT / "tests" / place).read_text(encoding="utf-8"), place


def test_a_session_gives_what_its_page_shows():
    sessions = [page for page in (ROOT / "docs").rglob("*.md") if ">>> " in page.read_text(encoding="utf-8")]
    assert [page.name for page in sessions] == ["code-rewards.md"]
    try:
        open_sandbox()
    except UserError as error:
        pytest.skip(str(error))
    assert doctest.testfile(str(sessions[0]), module_relative=False, encoding="utf-8") == (0, 3)


def test_the_teacher_of_a_page_and_its_divergence():
    assert run("docs/teachers.md", 1)["models"].teachers
    assert run("docs/teachers.md", 2, outdo=outdo)["logits"].grad.abs().sum() > 0


def test_the_class_of_a_page_is_a_reward():
    names = run("docs/rewards.md", 5, outdo=outdo)
    (output,) = names["environment"].reward([RewardInput(prompt="6*7=", completion="42", answer="42")])
    assert (output.value, output.parts) == (2.0, {"length": 2.0})


@pytest.mark.parametrize(
    ("page", "name", "values"),
    [
        ("docs/recipe.md", "my_reward.py:score", {"It is 42\n": 1.0, "42 it is not": 0.0}),
        ("docs/tutorial.md", "short.py:score", {"2+40#42": 1 - 0.035, "#41": -0.015}),
    ],
)
def test_a_reward_of_a_page_scores(page: str, name: str, values: dict[str, float]):
    Path(name.partition(":")[0]).write_text(blocks(page)[0])
    reward = outdo.load_reward(name)
    found = reward([RewardInput(prompt="6*7=", completion=completion, answer="42") for completion in values])
    assert [each.value for each in found] == pytest.approx([*values.values()])
    reward.close()


def test_the_function_of_a_page_makes_inputs_of_a_row():
    assert run("docs/data.md", 1)["mood"]({"mood": 3})["mood"].tolist() == [3]


def test_the_adapters_page_trains_a_new_adapter_and_an_adapter_further():
    tiny_model("path/to/model")
    outdo.Policy.load("path/to/model", adapter=LoraConfig(r=4)).save("path/to/adapter")
    policy = run("docs/adapters.md", 1)["policy"]
    assert all(each.requires_grad == ("lora" in name) for name, each in policy.model.named_parameters())


CLIENT = """
import json, sys, urllib.request
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": sys.argv[2]}]}).encode()
call = urllib.request.Request(sys.argv[1] + "/chat/completions", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(call))["choices"][0]["message"]["content"]
print(float(sys.argv[3] in answer))
"""
"""A program of the reader that asks once, and prints the reward."""


def test_an_agent_of_another_interpreter_plays_an_episode():
    program = blocks("docs/agents.md")[1].replace("/opt/verifiers/bin/python", sys.executable)
    Path("agent.py").write_text(program)
    Path("client.py").write_text(CLIENT)
    assert episode("docs/agents.md", "42 it is", answer="42").reward == 1.0


def test_the_agent_of_the_page_calls_its_tool():
    sys.modules.pop("calculator", None)  # that of examples/, if another test of this process has imported it
    schema = "from transformers.utils import get_json_schema\n\nCALC = get_json_schema(calc)\n"
    Path("calculator.py").write_text(blocks("docs/tools.md")[0] + schema)
    Path("agent.py").write_text(blocks("docs/agents.md")[0])
    played = episode("docs/agents.md", call("calc", expression="6*7"), "It is 42.", answer="42")
    sys.modules.pop("calculator")
    assert played.reward == 1.0
    assert "<tool_response>42<" in tool_tokenizer().decode(played.token_ids)


def test_the_tool_of_the_page_is_called():
    Path("calculator.py").write_text(blocks("docs/tools.md")[0])
    played = episode("docs/tools.md", call("calc", expression="6*7"), "It is 42.", answer="42")
    assert played.reward == 1.0
    assert "<tool_response>42<" in tool_tokenizer().decode(played.token_ids)


def test_the_environment_of_the_page_plays_by_a_recipe_and_in_python():
    Path("guess.py").write_text(blocks("docs/environments.md")[0])
    assert episode("docs/environments.md", "5", "9", "7", answer="7").reward == pytest.approx(0.8)

    policy = outdo.Policy(tiny_model()[0], tool_tokenizer())
    engine, sampling = ScriptedEngine(lambda request: "7", policy.tokenizer), outdo.SamplingParams(max_tokens=400)
    names = run("docs/environments.md", 1) | {"outdo": outdo, "policy": policy, "engine": engine, "sampling": sampling}
    names = run("docs/environments.md", 2, **names)
    (group,) = names["sampler"](policy, [asked(policy, "7")], step=1)
    assert [each.reward for each in group.rollouts] == [1.0] * 8


def test_the_tracker_of_the_page_prints_every_fifth_step(capsys: pytest.CaptureFixture[str], folder: Path):
    Path("my_tracker.py").write_text(blocks("docs/trackers.md")[0])
    tracked = TrackedRun(folder=folder, tracker="my_tracker.py:log", after=0, anew=False, say=print)
    with hook(tracked, function="my_tracker.py:log", every=5) as log:
        for step in range(7):
            log(step, {"reward": 0.5} if step else {"eval/greedy": 0.5}, [{"completion": "42"}])
    assert capsys.readouterr().out == "5 0.5 42\n"


def test_the_objectives_of_the_target_page_are_made():
    names = run("docs/methods/target.md", 1)
    assert all(callable(names[name]) for name in ("objective", "literal", "stop"))


def test_the_hashes_of_two_runs_are_compared(capsys: pytest.CaptureFixture[str]):
    for name in "ab":
        tiny_model(f"runs/{name}/checkpoints/step_000040")
    run("docs/reproducibility.md", 1)
    assert capsys.readouterr().out == "True\n"


def test_deterministic_algorithms_are_switched_on():
    run("docs/reproducibility.md", 2, outdo=outdo, policy=outdo.Policy(*tiny_model()))
    assert torch.are_deterministic_algorithms_enabled()


def test_the_reward_model_of_the_page_learns_its_pair():
    tiny_model("MODEL")
    names = run("docs/reward-models.md", 1)
    better, worse = (
        names["model"]([RewardInput(prompt="7+8=", completion=each, answer=None)])[0].value for each in ("15", "14")
    )
    assert better > worse


def test_other_loops_write_the_record(folder: Path):
    policy, prompt = outdo.Policy(*tiny_model()), "1+1="
    per_token = [[-0.5, -0.5], [-0.5, -0.5]]  # of two answers of two tokens each
    lists: dict[str, Any] = {"advantages": [[1.0] * 2, [-1.0] * 2], "before": per_token, "after": per_token}
    lists |= {"prompts": [prompt] * 2, "completions": ["2.", "3."], "rewards": [1.0, 0.0]}
    run("docs/record.md", 4, outdo=outdo, step=1, tokenizer=policy.tokenizer, **lists)
    assert parquet.read(folder / "runs/mine", 1).num_rows == 2


def test_a_loop_of_outdo_writes_the_record(folder: Path):
    policy = outdo.Policy(*tiny_model(), optimiser=outdo.OptimiserSettings(lr=1e-3))
    objective = outdo.grpo(beta=0.0)
    environment = outdo.SingleTurn(lambda completion: float(len(completion)))
    sampling = outdo.SamplingParams(max_tokens=4)
    sampler = outdo.GroupSampler(outdo.BuiltinEngine(), environment, group_size=4, sampling=sampling)
    names = {"policy": policy, "objective": objective, "models": outdo.Models.of(policy, objective)}
    names |= {"prompts": [[asked(policy, "7")]] * 2, "sampler": sampler}
    run("docs/record.md", 6, outdo=outdo, advantage=outdo.per_token(outdo.group_standardised), **names)
    assert [line["step"] for line in read_metrics(folder / "runs/mine/metrics.jsonl")] == [1, 2]
    assert parquet.read(folder / "runs/mine", 2).num_rows == 4


# ---- one episode


def asked(policy: outdo.Policy, answer: str) -> outdo.Prompt:
    """A question in the format of the chat template, and its answer."""
    ids = policy.tokenizer.encode("<|user|>What is it?<|end|>\n<|assistant|>")
    return outdo.Prompt(id="q", text="What is it?", token_ids=tuple(ids), answer=answer)


def episode(page: str, *script: str, answer: str) -> Rollout:
    """Play an episode of the environment that the first recipe of a page names: `script` is what a policy says."""
    Path("recipe.toml").write_text(blocks(page, "toml")[0])
    recipe = load(Path("recipe.toml"), ["model=model", "data.path=data.jsonl"])
    policy = outdo.Policy(tiny_model()[0], tool_tokenizer())
    reward = outdo.load_reward([each.name for each in recipe.rewards])
    environment = open_environment(recipe.environment, policy, reward)
    engine, sampling = ScriptedEngine(script, policy.tokenizer), outdo.SamplingParams(max_tokens=400)
    (group,) = environment.rollouts(engine, [asked(policy, answer)], 1, sampling, step=1, purpose="train")
    reward.close()
    return group.rollouts[0]
