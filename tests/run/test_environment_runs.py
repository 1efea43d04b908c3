"""Test runs whose environment has turns and tools: train, kill, resume and evaluate, from the command line."""

import math
import os
import re
import signal
from pathlib import Path

import pytest
from browser import by_test_id, open_page, opened_browser, watched_page
from episode_cases import tool_tokenizer
from kill_cases import assert_same, killed_and_resumed
from playwright.sync_api import expect
from run_cases import cold, family, metrics, outdo_, steps_done, timeless, wait_until, write_home
from test_replicated_runs import finished, second_of, tokens, weights

from outdo.extras.record.parquet import read

GAME = '''
import helper
from outdo import Reply


def count(text: str) -> int:
    """Count the letters of a text.

    Args:
        text: The text.
    """
    return len(text)


class Game:
    tools = [count]

    def __init__(self, rounds=3):
        self.left = rounds

    def reply(self, message):
        self.left -= 1
        told = [{"role": "user", "content": f"{self.left} left."}]
        return Reply(messages=told if self.left else [], reward=helper.score(message["content"]))
'''
SETTINGS = (
    'environment={name = "game.py:Game", rounds = 3, turn_tokens = 8}',
    "rewards=environment",
    "sampling.max_tokens=120",
    "data.max_prompt_tokens=200",
    "steps=6",
    "eval.every=3",
)


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose model has a chat template with tools, and a run of six steps in it."""
    home = write_home(tmp_path_factory.mktemp("game"))
    tool_tokenizer().save_pretrained(home / "model")
    (home / "game.py").write_text(GAME)
    (home / "helper.py").write_text("def score(text):\n    return sum(map(str.isalnum, text)) / 8\n")
    outdo_(home, "train", "recipe.toml", "run=./whole", *SETTINGS)
    return home


@pytest.mark.release
def test_a_run_that_is_killed_within_its_episodes_equals_an_uninterrupted_one(game: Path) -> None:
    killed_and_resumed(game, game / "killed", 2, *SETTINGS)
    assert_same(game / "killed", game / "whole")


def test_a_policy_with_echo_learns_to_foresee_what_the_game_says(game: Path) -> None:
    echo = 'train.objective={name = "grpo", beta = 0.0, echo = 1.0}'
    outdo_(game, "train", "recipe.toml", "run=./echo", *SETTINGS, echo, "optim.lr=1e-2", "eval.every=0")
    lines, usual = metrics(game / "echo"), metrics(game / "whole")
    foreseen = [line["loss/environment"] for line in lines]
    assert foreseen[-1] > foreseen[0] / 2  # both are below 0
    for name in ("reward", "num_tokens", "entropy", "num_trained_tokens", "loss/policy", "advantage"):
        assert lines[0][name] == pytest.approx(usual[0][name], abs=1e-6), name
    assert "loss/environment" not in usual[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        (),
        ("cluster.shard=true", "train.advantage=turn_to_go", "train.dynamic_sampling=1"),
        ('engine={name = "builtin", processes = 1}',),
        ('engine={name = "builtin", processes = 1}', "train.max_staleness=1"),
    ],
    ids=["alone", "divided", "beside", "ahead"],
)
def test_two_replicas_play_what_one_process_does_and_resume_exactly(
    game: Path, way: tuple[str, ...], request: pytest.FixtureRequest
):
    name = request.node.callspec.id
    alone, both, run = (game / f"{name}-{each}" for each in ("1", "2", "killed"))
    adamw = 'optim.algorithm={name = "adamw", eps = 1e-5}'  # some gradients are rounding errors alone
    settings = (*SETTINGS, "optim.lr=1e-4", adamw, "checkpoint.every=1", *way)
    outdo_(game, "train", "recipe.toml", f"run=./{alone.name}", *[each for each in settings if "shard" not in each])
    said, status = finished(cold(game, "train", "recipe.toml", f"run=./{both.name}", *settings, "cluster.replicas=2"))
    assert status == 0, said
    for step in range(1, 7):
        assert tokens(alone, step) == tokens(both, step)
    mine = weights(both)
    for key, value in weights(alone).items():
        assert (mine[key] - value).abs().max() <= 3e-6, key
    assert [line.keys() for line in timeless(alone)] == [line.keys() for line in timeless(both)]
    for one, two in zip(timeless(alone), timeless(both), strict=True):
        assert {key: value for key, value in one.items() if "tools/" in key or "turns" in key} == {
            key: value for key, value in two.items() if "tools/" in key or "turns" in key
        }
    command = cold(game, "train", "recipe.toml", f"run=./{run.name}", *settings, "cluster.replicas=2")
    wait_until(lambda: steps_done(run) >= 3, command)
    os.kill(second_of(family(command.pid)), signal.SIGKILL)
    said, status = finished(command)
    assert status == 75, said
    said, status = finished(cold(game, "resume", str(run)))
    assert status == 0, said
    assert_same(run, both)


def test_the_page_of_a_run_has_the_turns_of_the_record(game: Path) -> None:
    run = game / "whole"
    last = len(metrics(run))
    rows = {(row["group"], row["rollout"]): row for row in read(run, last).to_pylist()}
    with opened_browser() as browser, watched_page(browser) as page:
        open_page(page, run / "report.html", step=last)
        expect(by_test_id(page, "costs")).to_have_text("count0 calls")
        for shown in by_test_id(page, "rollout").all():
            shown.scroll_into_view_if_needed()
            found = re.search(r"rollout (\d+)", shown.inner_text())
            group = re.search(r"group (\d+)", page.locator("#rollouts-title").inner_text())
            assert found
            assert group
            row = rows[int(group[1]), int(found[1])]
            values = row["policy_push"], row["kl_pull"], row["token_rewards"]
            turns = by_test_id(shown, "turn").filter(has_text="policy")
            expect(turns).to_have_count(3)
            for number, turn in enumerate(turns.all()):
                places = [place for place, of in enumerate(row["turn"]) if of == number]
                push, pull, reward = (math.fsum(each[place] for place in places) for each in values)
                for name, expected in (("push", push + pull), ("reward", reward)):
                    figure = turn.locator(f"data[data-name={name}]").get_attribute("value")
                    assert float(figure or "nan") == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_a_run_measures_its_turns_and_its_calls(game: Path) -> None:
    lines = metrics(game / "whole")
    assert all(line["completions/mean_turns"] == 3 for line in lines)
    assert all(line["tools/calls"] == 0 for line in lines)
    assert all(line["tools/calls/count"] == line["tools/seconds/count"] == 0 for line in lines)
    assert all("rewards/environment/mean" in line for line in lines)
    assert lines[-1]["sampling/sampling_logp_difference/max"] < 1e-5


ENDS = """
from outdo import Reply


def exact(completion, answer):
    return float(completion == answer)


class Ends:
    def reply(self, message):
        self.length = len(message["content"])

    def final_reward(self):
        return self.length % 2


class Gym:
    def reset(self, *, seed, options):
        return "", {}

    def step(self, action):
        return "", 1.0, True, False, {}
"""


def test_gdpo_adds_what_an_environment_gives_at_the_end_with_the_weight_1(game: Path) -> None:
    (game / "ends.py").write_text(ENDS)
    settings = (*SETTINGS, "train.advantage=gdpo", "rewards=ends.py:exact", "steps=2", "environment=ends.py:Ends")
    assert "a turn (Reply.reward) ends the run" in " ".join(outdo_(game, "check", "recipe.toml", *settings).split())
    outdo_(game, "train", "recipe.toml", "run=./gdpo", *settings, 'sampling.stop=["a", "e", "1"]')
    first, _ = metrics(game / "gdpo")
    assert {"rewards/exact/mean", "rewards/environment/mean"} <= first.keys()
    assert first["grad_norm"] > 0


def test_gdpo_refuses_rewards_of_turns_in_one_sentence(game: Path) -> None:
    (game / "ends.py").write_text(ENDS)
    settings = (*SETTINGS, "train.advantage=gdpo", "rewards=ends.py:exact", "steps=1")
    said = outdo_(game, "train", "recipe.toml", "run=./turns", *settings, status=2)
    assert "Traceback" not in said
    assert "let the environment give its reward when the episode has ended" in " ".join(said.split())
    known = outdo_(game, "check", "recipe.toml", *settings, "environment=ends.py:Gym", status=2)
    assert "ends.py:Gym rewards every turn, which gdpo would lose: use turn_to_go" in " ".join(known.split())


def test_a_run_is_not_resumed_with_another_environment_or_other_code_of_it(game: Path) -> None:
    for file, change in {"game.py": "# changed\n", "helper.py": "# changed\n"}.items():
        code = (game / file).read_text()
        (game / file).write_text(code + change)
        said = outdo_(game, "resume", "whole", "steps=7", status=2)
        assert file in said
        assert "the code of the run has changed" in said
        (game / file).write_text(code)
    said = outdo_(game, "resume", "whole", "steps=7", "environment.rounds=2", status=2)
    assert "environment.rounds: 3 in the saved run, 2 now" in said


def test_eval_plays_the_episodes_of_the_run(game: Path) -> None:
    said = outdo_(game, "eval", "whole", "--json")
    assert '"rewards' not in said
    assert '"reward"' in said


def test_check_names_the_tools_and_what_the_chat_template_keeps(game: Path) -> None:
    said = " ".join(outdo_(game, "check", "recipe.toml", *SETTINGS).split())
    assert "environment: at most 8 turns; tools: count" in said
    assert "prefix kept at a tool result: yes" in said
    assert "<|system|>count(text)" in said


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        (("environment=tols",), 'nothing is called "tols"; did you mean tools?'),
        (("environment=game.py:Gam",), 'game.py has no "Gam"; did you mean Game?'),
        (("environment={name = 'tools', functions = 'game.py:counts'}",), "did you mean count?"),
        (("environment=game.py:Game", "data.template={prompt}"), "data.template: an environment needs"),
        (("rewards=environment",), "needs an environment that gives rewards"),
        (
            ("environment=game.py:Game", "rewards=[{name = 'environment', weight = 2}]"),
            '"environment" takes no weight; what the environment gives is added as it is',
        ),
    ],
)
def test_a_wrong_environment_is_refused_before_a_model_is_loaded(game: Path, settings: tuple[str, ...], mistake: str):
    said = " ".join(outdo_(game, "train", "recipe.toml", *settings, "model=model", status=2).split())
    assert mistake in said


def test_a_template_that_has_no_place_for_tools_is_refused(game: Path, home: Path) -> None:
    said = outdo_(game, "train", "recipe.toml", f"model={home / 'model'}", *SETTINGS, status=2)
    assert "chat template" in said


def test_one_episode_is_played_as_in_the_run_and_its_tokens_are_shown(game: Path) -> None:
    files = {each for each in game.rglob("*") if not each.name.startswith("log-")}
    said = outdo_(game, "env", "try", "recipe.toml", *SETTINGS, "--question", "2")
    assert {each for each in game.rglob("*") if not each.name.startswith("log-")} == files
    rows = read(game / "whole", 1).to_pylist()
    *_, second = dict.fromkeys(each["prompt_id"] for each in rows)
    row = next(each for each in rows if each["prompt_id"] == second)
    assert f"question {second}, " in said
    turns = [int(each) for each in re.findall(r"turn \d, policy: (\d+) tokens, trained", said)]
    between = [int(each) for each in re.findall(r"environment: (\d+) tokens, read and not trained", said)]
    assert len(turns) == 3
    assert sum(turns) == sum(row["loss_mask"])
    assert sum(turns) + sum(between) == len(row["token_ids"])
    assert f"the episode: reward {row['reward']:g}, ended by {row['finish_reason']}" in said


def test_a_recipe_without_an_environment_has_no_episode_to_play(home: Path) -> None:
    said = outdo_(home, "env", "try", "recipe.toml", status=2)
    assert "the recipe has no `environment`" in said
