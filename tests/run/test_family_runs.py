"""Every method of the family, started by the command a user types, does in the run what it says of itself."""

from pathlib import Path

import pytest
import torch
from family_cases import ENDING, policy_weights, seen, state
from run_cases import metrics, outdo_, saved, weights

from outdo.run.checkpoints import checkpoint

TEACHER = "teachers=teacher"
EXAMPLES = Path(__file__).parents[2] / "examples"
JUDGE = '{name = "reward_model", path = "judge", labels = "score.py:score", every = 2, replay = 0.5, lr = 1e-2}'


def same(one, other):
    """Whether two mappings of tensors are equal bit for bit."""
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def values(run, name):
    return [line[name] for line in metrics(run)]


# --------------------------------------------------------------------------------------------- critics and references


def test_ppo_warms_its_critic_up_before_the_policy_moves(family, trained):
    critic = 'train.critic={name = "model", lr = 1e-2, warmup = 2}'
    run = trained("train.objective=ppo", critic, "train.passes=2", steps=4)
    untrained = checkpoint.weights_hash(family / "model")
    assert weights(run, 1) == weights(run, 2) == untrained
    assert len({weights(run, step) for step in (2, 3, 4)}) == 3
    critics = [state(run, step)["models"]["critic"]["weights"] for step in (1, 2, 3)]
    assert not same(critics[0], critics[1])
    assert not same(critics[1], critics[2])
    losses = values(run, "value/loss")
    assert losses[-1] < losses[0] / 2
    assert ["grad_norm" in line for line in metrics(run)] == [False, False, True, True]


def test_the_reference_is_synchronised_by_mix_after_every_so_many_steps(family, trained):
    objective = 'train.objective={name = "grpo", beta = 0.04}'
    run = trained(objective, "reference.sync={every = 2, mix = 0.6}", "train.passes=2", steps=4)
    references = [state(run, step)["models"]["reference"] for step in (1, 2, 3, 4)]
    policies = [policy_weights(run / f"checkpoints/step_{step:06d}") for step in (2, 4)]
    expected = policy_weights(family / "model")
    assert all(torch.equal(references[0][name], expected[name]) for name in expected)
    assert same(references[1], references[2])
    for reference, policy in zip((references[1], references[3]), policies, strict=True):
        expected = {name: torch.lerp(expected[name], policy[name], 0.6) for name in policy}
        for name in expected:
            torch.testing.assert_close(reference[name], expected[name], rtol=0, atol=1e-7)
    assert all(line["kl"] > 0 and line["loss/divergence"] > 0 for line in metrics(run))


@pytest.mark.release
def test_a_student_comes_closer_to_its_teacher_whatever_the_reward(family, trained):
    settings = ("train.objective=distillation", TEACHER, "optim.lr=2e-2", "train.prompts=4", "train.group_size=8")
    run = trained(
        *settings, steps=20
    )  # with eight seeds the gap fell to .5 to .65 of what it was; nine steps were luck
    away = values(run, "teacher/gap")
    assert sum(away[-3:]) < 0.75 * sum(away[:3])
    first, by_rarity = trained(*settings, steps=1), trained(*settings, "rewards=rewards.py:rare", steps=1)
    assert values(by_rarity, "reward") != values(first, "reward")
    assert weights(by_rarity, 1) == weights(first, 1)


# ---------------------------------------------------------------------------------------------- rollouts and advantages


def test_dapo_samples_dynamically_penalises_long_answers_and_masks_truncated_ones(family, trained):
    run = trained(
        'train.objective={name = "own.py:Seen", file = "dapo.jsonl"}',
        *(
            "train.dynamic_sampling=2",
            "train.mask_truncated=true",
            "train.group_size=2",
            "sampling.max_tokens=6",
            ENDING,
        ),
        'rewards=["rewards.py:rare", {name = "overlong", cache = 2, weight = 0.5}]',
        steps=4,
    )
    lines = metrics(run)
    assert sum(line["dynamic_sampling/rounds"] for line in lines) > 0
    assert sum(line["dynamic_sampling/dropped"] for line in lines) > 0
    assert {line["frac_reward_zero_std"] for line in lines} == {0.0}
    assert all(-1 <= line["rewards/overlong/mean"] <= 0 for line in lines)
    assert min(values(run, "rewards/overlong/mean")) < 0
    parts = [line["rewards/rare/mean"] + 0.5 * line["rewards/overlong/mean"] for line in lines]
    assert values(run, "reward") == pytest.approx(parts)
    batches = seen(family / "dapo.jsonl")
    cut = [row for batch in batches for row in zip(batch["truncated"], batch["loss_mask"], strict=True)]
    assert {any(mask) for truncated, mask in cut if truncated} == {False}
    assert {any(mask) for truncated, mask in cut if not truncated} == {True}


def test_remax_subtracts_the_reward_of_the_greedy_answer(trained):
    run = trained("train.objective=remax", steps=3)
    assert len(set(values(run, "baseline"))) > 1
    for line in metrics(run):
        assert line["advantage"] == pytest.approx(line["reward"] - line["baseline"], abs=1e-6)


def test_gdpo_standardises_each_reward_by_itself_and_weighs_it_then(family, trained):
    rewards = 'rewards=["score.py:score", {name = "rewards.py:small", weight = 0.25}]'
    trained('train.objective={name = "own.py:Seen", file = "gdpo.jsonl"}', "train.advantage=gdpo", rewards, steps=1)
    (batch,) = seen(family / "gdpo.jsonl")
    group, mask = torch.tensor(batch["group"]), torch.tensor(batch["loss_mask"])
    rows = torch.zeros(len(group))
    for name, weight in (("score", 1.0), ("small", 0.25)):
        part = torch.tensor(batch["parts"][name])
        for each in group.unique():
            ours = part[group == each]
            rows[group == each] += weight * (ours - ours.mean()) / (ours.std() + 1e-4)
    advantages = (torch.tensor(batch["advantages"]) * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(advantages, (rows - rows.mean()) / (rows.std() + 1e-4), rtol=1e-4, atol=1e-5)


def test_rejection_trains_on_good_answers_alone(trained):
    good = 'train.advantage={name = "rejection", threshold = 0.375}'
    run = trained("train.objective=rejection", good, "train.prompts=4", steps=3)
    lines = metrics(run)
    assert any(line["passes/done"] for line in lines)
    assert {line["advantage"] for line in lines if line["passes/done"]} == {1.0}
    assert all(line["loss"] > 1 for line in lines if line["passes/done"])  # -log πθ of a token, over 264 of them


# ---------------------------------------------------------------------------------------------------- other objectives


def test_target_ends_its_passes_when_the_targets_are_reached(trained):
    stop = 'train.stop={name = "first_of", attained = 0.2}'
    stopped = trained("train.objective=target", "train.passes=4", "optim.lr=3e-3", stop, steps=3)
    for line in metrics(stopped):
        attained = line["target/attained"] >= 0.2
        assert ("passes/stopped/attained" in line) == attained
        assert ("passes/stopped/maximum" in line) == (not attained)
    assert min(values(stopped, "passes/done")) < 4


def test_high_entropy_tokens_alone_are_pushed_and_the_bonus_follows_its_target(trained):
    bonus = "{start = 0.01, target = 10.0, step = 0.002}"
    transform = '{name = "high_entropy", share = 0.2}'
    settings = f'{{name = "grpo", beta = 0, batch_transform = {transform}, entropy_bonus = {bonus}}}'
    run = trained(f"train.objective={settings}", steps=3)
    assert values(run, "coefficient/entropy_bonus") == pytest.approx([0.01, 0.012, 0.014])
    for line in metrics(run):
        assert line["loss/entropy"] == pytest.approx(line["coefficient/entropy_bonus"] * line["entropy"], rel=1e-5)
        assert line["loss"] == pytest.approx(-line["loss/policy"] - line["loss/entropy"], abs=1e-6)
    assert any(abs(line["advantage"]) > 1e-3 for line in metrics(run))  # of all tokens of whole groups it is 0


def test_the_conventions_of_another_library_are_these_settings(trained):
    usual, objective = ("train.passes=2", ENDING), 'train.objective={name = "grpo", beta = 0.04, kl_ratio = true}'
    theirs = trained(*usual, "train.compat=trl", "train.objective.beta=0.04")
    ours = trained(*usual, objective, 'train.advantage={name = "group_standardised", eps = 1e-4}')
    assert weights(theirs) == weights(ours)


# ----------------------------------------------------------------------------------------------------- a user's own


def test_custom_surrogates_and_advantages_are_used_with_their_options(trained):
    share = 'train.objective={{name = "grpo", beta = 0, surrogate = {{name = "own.py:share_of", share = {}}}}}'
    lines = [metrics(trained(share.format(each), "train.advantage=own.py:three", steps=1))[0] for each in (1.0, 0.25)]
    assert lines[0]["advantage"] == 3.0
    assert lines[1]["grad_norm"] == pytest.approx(lines[0]["grad_norm"] / 4, rel=1e-4)


def test_a_custom_objective_replaces_everything(family, trained):
    run = trained("train.objective=own.py:nothing", steps=1)
    assert values(run, "passes/done") == [1.0]
    assert weights(run) == checkpoint.weights_hash(family / "model")


# -------------------------------------------------------------------------------------------------------- reward models


def test_a_reward_model_rewards_and_learns_from_labels_that_the_policy_never_sees(family, trained):
    run = trained(f"rewards={JUDGE}", steps=4)
    lines = metrics(run)
    assert all(line["reward"] == line["rewards/reward_model/mean"] for line in lines)
    assert all(0 < line["reward_model/label"] < 1 and line["reward_model/label"] != line["reward"] for line in lines)
    assert ["reward_model/fresh" in line for line in lines] == [False, True, False, True]
    assert (lines[1]["reward_model/replayed"], lines[3]["reward_model/replayed"]) == (0.0, 4.0)
    learnt = [state(run, step)["parts"]["reward_model 0"]["model"]["weights"] for step in (1, 2, 3, 4)]
    start = policy_weights(family / "judge")
    assert all(torch.equal(learnt[0][name], start[name]) for name in start)
    assert not same(learnt[0], learnt[1])
    assert same(learnt[1], learnt[2])
    assert not same(learnt[2], learnt[3])


# ----------------------------------------------------------------------------------------------- as they are handed out


@pytest.mark.release
@pytest.mark.parametrize("name", ["ppo", "dapo", "target", "reward_model"])
def test_the_examples_run(family, name):
    outdo_(family, "train", EXAMPLES / f"{name}.toml", f"run=./example-{name}", "steps=2", "device=cpu", "threads=1")
    assert saved(family / f"example-{name}") == [2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["train.objective={name = 'ppo', dual = 1.0}"], "train.objective: ppo: dual must be above 1, not 1.0"),
        (["train.objective=own.py:nothing", "train.compat=trl"], 'train.compat = "trl": '),
        (["rewards={name = 'reward_model', path = 'judge', labels = 'exact'}"], "given together, or neither"),
        (["rewards={name = 'reward_model', path = 'judge', labels = 'exact', every = 2.5}"], "every must be a whole"),
        (["rewards={name = 'reward_model', path = 'judge', labels = ['exact'], every = 2}"], "labels must be the name"),
    ],
)
def test_an_option_out_of_its_range_is_one_line_and_no_run(family, tmp_path, settings, said):
    told = outdo_(family, "train", "recipe.toml", f"run={tmp_path}/none", *settings, status=2)
    assert said in told.splitlines()[-1]
    assert not list(tmp_path.glob("none/*.*"))
