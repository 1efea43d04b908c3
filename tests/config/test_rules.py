"""Settings that cannot work together are refused; settings without effect get a note."""

import pytest

from outdo.config.file import load
from outdo.config.rules import conflicts
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl"]
VLLM = 'engine={name = "vllm", python = "python"}'


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["train.group_size=1"], "train.group_size = 1: group_standardised compares"),
        (["sampling.temperature=0"], "would be the same"),
        (["sampling.temperature=1e-38"], "use 0.01 or more, such as 1.0"),
        (["train.minibatches=33"], "only train.prompts = 32"),
        (["eval.every=5"], "there are no held-out questions"),
        (
            ["data.eval_path=y.jsonl", "data.eval_rows=5"],
            "data.eval_rows = 5: has no effect together with data.eval_path",
        ),
        (["data.limit=5", "data.eval_rows=5"], "no row of data.limit = 5 remains to train on"),
        (["eval.greedy=false"], "eval.greedy is false, so these answers are never evaluated"),
        (["eval.best=sampled", "eval.samples=0"], "eval.samples is 0, so these answers are never evaluated"),
        (["data.template=Question:"], "data.template: expected {prompt} in it"),
        (
            ["data.template=Q: {prompt}", "data.system=Be brief."],
            "a template needs {system} at the place of the system message",
        ),
        (["train.objective=gpro"], 'nothing is called "gpro"; did you mean grpo?'),
        (["train.objective.clip=0.2"], "train.objective.clip: unknown option"),
        (["train.objective.clip_low='0.2'"], "train.objective.clip_low: expected a number such as 0.2"),
        (["train.objective.beta=true"], "train.objective.beta: expected a number"),
        (["train.objective.beta=nan"], "train.objective.beta: expected a finite number"),
        (["train.advantage.eps=-1"], "train.advantage.eps: expected a finite number that is not negative"),
        (["train.objective={name='cispo', ratio_max=0.5}"], "expected 1 or more, because every token's ratio is 1"),
        (["train.objective={name='target', weight='total'}"], "target is not made of pieces"),
        (["optim.algorithm=polyak"], "polyak needs a loss whose minimum is 0; grpo has none"),
        (["train.objective=target", "train.compat=trl"], "this library does not have target"),
        (["train.objective.beta={start=0.1}"], "train.objective.beta.target: required"),
        (["train.critic={name='head', seed=1.5}"], "train.critic.seed: expected a whole number such as 0, found 1.5"),
        (["train.kl_in_reward=k1"], "train.kl_in_reward.beta: required"),
        (
            ["train.kl_in_reward={name='k1', beta=0.1, after_baseline=true}", "train.advantage=reinforce_pp"],
            "train.kl_in_reward.after_baseline: reinforce_pp subtracts no baseline",
        ),
        (
            ["train.kl_in_reward={name='k1', beta=0.1, after=true}"],
            "train.kl_in_reward.after: unknown option; did you mean after_baseline? k1 takes beta, after_baseline",
        ),
        (["optim.algorithm=adam"], 'nothing is called "adam"; did you mean adamw?'),
        (["optim.algorithm.betas=0.9"], "optim.algorithm.betas: expected a list such as [0.9, 0.999], found 0.9"),
        (["rewards=overlong"], "rewards.overlong.cache: required"),
        (
            [
                'environment={name = "tools", functions = "outdo.testing:tiny_model"}',
                "rewards={name='reward_model', path='m', labels='exact', every=2}",
            ],
            "rewards.reward_model.labels: a reward model learns from answers to one prompt",
        ),
        (["train.advantage=pass_at_k", "train.advantage.k=9"], "k = 9: a group has only 8 answers"),
        (
            ["train.advantage=pass_at_k", "train.kl_in_reward={name='k1', beta=0.1}"],
            "pass_at_k compares rewards with 1",
        ),
        (
            ["train.objective=ppo", "train.advantage.lam=1.5"],
            "train.advantage.lam = 1.5: expected a number from 0 to 1",
        ),
        (
            ["train.objective=distillation"],
            "teachers: distillation with the advantage distillation learns from a teacher",
        ),
        (["train.objective=gkd"], "teachers: gkd with the advantage distillation learns from a teacher"),
        (["train.advantage=rlsd"], "teachers: grpo with the advantage rlsd learns from a teacher, and there is none"),
        (["train.objective=gkd", "teachers=policy"], "the policy without a hint knows nothing that it does not know"),
        (["data.demonstrations=answer"], "data.demonstrations: grpo learns from answers that the policy has sampled"),
        (
            [
                "train.objective=gkd",
                "train.advantage=group_standardised",
                "teachers=x",
                "data.demonstrations=answer",
                "train.dynamic_sampling=1",
            ],
            "data.demonstrations: train.dynamic_sampling compares the answers to a question, of which there is one",
        ),
        (
            [
                "train.objective=gkd",
                "teachers=x",
                "data.demonstrations=answer",
                "train.max_staleness=1",
                "engine={name='builtin', processes=1}",
            ],
            "data.demonstrations: the trainer's own weights score them, which train.max_staleness samples beside",
        ),
        (
            [
                "train.objective=gkd",
                "teachers=x",
                "data.demonstrations=answer",
                'environment={name = "tools", functions = "outdo.testing:tiny_model"}',
            ],
            "data.demonstrations: an answer of the data is one turn; leave the environment out",
        ),
        (
            ["train.objective=gkd", "teachers=x", "data.demonstrations={column='answer', share=0}"],
            "share = 0 uses no demonstration; leave data.demonstrations out",
        ),
        (
            ["train.objective=gkd", 'teachers={model = "reference", weights = "int8"}'],
            "reference has its weights already: weights and device are for a model of its own",
        ),
        (
            ["train.objective=gkd", 'teachers={model = "a/x", weights = "int8"}', "cluster={replicas=2, shard=true}"],
            "teachers: cluster.shard divides weights in float32 and bfloat16, and those of x are int8",
        ),
        (
            ["train.objective=gkd", 'teachers=["a/x", "b/x"]'],
            "two teachers have the name x: give each a name of its own",
        ),
        (
            ["train.objective=gkd", 'teachers={model = "x", hint = "it is {answer}"}'],
            "expected a text with {prompt} in it",
        ),
        (
            ["train.objective=ppo", "train.dynamic_sampling=1"],
            "when a group is sampled its advantages are not known: gae needs values, which sampled groups do not have",
        ),
        (
            ["train.objective={name='kl_cov', batch_transform='high_entropy'}"],
            "kl_cov is defined by its own batch transform",
        ),
        (["train.advantage=gdpo", "train.kl_in_reward={name='k1', beta=0.1}"], "gdpo uses the parts of the reward"),
        (
            ["train.advantage=max_rl", "train.kl_in_reward={name='k1', beta=0.1}"],
            "train.kl_in_reward: max_rl divides by the mean reward",
        ),
        (
            ["train.objective=gpg", "train.kl_in_reward={name='k1', beta=0.1}"],
            "train.kl_in_reward: gpg counts groups of equal rewards, of which even the smallest KL leaves none",
        ),
        (["rewards=nowhere.py:score"], "rewards: nowhere.py: no such file"),
        (["train.max_staleness=1"], "train.max_staleness = 1: needs an engine with a copy of the weights"),
        (
            ["train.max_staleness=1", VLLM, "rewards={name='reward_model', path='m', labels='exact', every=2}"],
            "train.max_staleness = 1: a reward model with `labels` learns after each step",
        ),
        (["cluster.shard=3"], "cluster.shard: expected true, false, or a table such as {offload = true}"),
        (
            ["engine={name='builtin', processes=1, partial_rollouts=true}", "train.max_staleness=1"],
            "engine.partial_rollouts = true: needs train.max_staleness = 2 or more, found 1",
        ),
        (["rewards=[]"], "rewards: expected at least one"),
        (
            ["rewards={name='exact', place='ray'}"],
            "rewards.exact.place: Ray places the rewards that have worker processes",
        ),
        (["data.system=the key is hf_aaaaaaaaaaaaaaaaaaaaaaaa"], "data.system: looks like a secret"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides, sentence):
    with pytest.raises(UserError) as caught:
        load(None, [*NEEDED, *overrides])
    assert len(caught.value.problems) == 1
    assert sentence in caught.value.problems[0]


def test_a_message_about_one_answer_is_in_the_singular():
    with pytest.raises(UserError, match="a group has only 1 answer "):
        load(None, [*NEEDED, "train.advantage=pass_at_k", "train.advantage.k=2", "train.group_size=1"])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "the ratio is 1, so clip_low and clip_high cannot take effect"),
        (["train.objective={name='grpo', divergence='k1'}"], "k1 in the loss without its ratio has no gradient"),
        (
            ["train.objective={name='grpo', divergence='k2', kl_ratio=true}"],
            "k2 times the ratio has the gradient of no",
        ),
        (["train.stop.kl=0.1"], "train.stop has no effect"),
        (["train.objective=target"], "in one pass few tokens reach their targets"),
        (["train.objective=rloo", "train.passes=2"], "rloo has no ratio"),
        (["train.kl_in_reward.beta=0.1"], "KL counts twice: in the loss with beta = 0.04"),
        (["train.kl_in_reward.beta=0.1"], "group_standardised makes advantages of full size of the KL alone"),
        (["train.objective=dapo"], "dapo was published with train.dynamic_sampling and"),
        (["train.objective.correction=truncate"], "the built-in engine samples with the trained weights"),
        (["train.critic=head"], "train.critic has no effect: group_standardised does not use values"),
        (["train.objective.beta=0", "reference.sync.every=5"], "reference.sync.every = 5 has no effect"),
        (
            ["optim.schedule=linear", "train.passes=4", "train.stop.kl=0.1"],
            "the run may have fewer optimiser steps (train.stop)",
        ),
        (["sampling.top_p=0.8"], "sampling.top_p = 0.8: answers do not come from the policy that is trained"),
        (["sampling.min_p=0.1"], "log-probabilities are those before min_p, so that no correction and no metric"),
        (["optim.schedule.warmup=100"], "optim.lr is never reached"),
        (["eval.every=101", "data.eval_rows=5"], "evaluated only before and after the run"),
        (["rewards=['exact', {name='format', weight=0}]"], "format has the weight 0"),
        (
            ["data.template={question} {prompt} {answer}"],
            "data.template: only {prompt} and {system} are replaced; every prompt has {question}, {answer} as it is",
        ),
    ],
)
def test_settings_without_effect_get_a_note(overrides, sentence):
    _, notes = conflicts(load(None, [*NEEDED, *overrides]))
    assert any(sentence in note for note in notes), notes


def test_a_sampler_of_all_tokens_gets_no_note():
    assert not any("sampling." in note for note in conflicts(load(None, list(NEEDED)))[1])


@pytest.mark.parametrize("literal", ["", r"\\boxed{answer}", "{}", "{{x}}", '{"a": 1}', "{1}"])
def test_braces_of_latex_and_json_in_a_template_get_no_note(literal):
    _, notes = conflicts(load(None, [*NEEDED, f"data.template={{prompt}} {literal}"]))
    assert not any("data.template" in note for note in notes)


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.passes=2"],
        ["train.minibatches=2"],
        ["train.passes=2", "train.objective.correction={name='off_policy_rows', limit=0.1}"],
    ],
)
def test_options_that_work_get_no_note(overrides):
    assert conflicts(load(None, [*NEEDED, *overrides])) == ([], [])


@pytest.mark.parametrize("advantage", ["group_standardised", "sign", "max_rl", "gpg"])
def test_after_the_baseline_the_kl_is_not_scaled_up(advantage):
    penalty = "train.kl_in_reward={name='k1', beta=0.1, after_baseline=true}"
    _, notes = conflicts(load(None, [*NEEDED, f"train.advantage={advantage}", penalty]))
    assert not any("full size" in note for note in notes)


def test_a_rule_does_not_check_a_setting_that_is_wrong_in_itself():
    with pytest.raises(UserError) as caught:
        load(None, [*NEEDED, "train.minibatches=33", "train.prompts=many"])
    assert len(caught.value.problems) == 1


def test_a_rule_does_not_check_a_setting_of_which_a_part_is_wrong():
    with pytest.raises(UserError) as refused:
        load(None, [*NEEDED, "train.objective=gkd", 'teachers={model = "x", weight = 0}'])
    assert len(refused.value.problems) == 1  # and not that there is no teacher
    assert "teachers.0.weight" in refused.value.problems[0]


def test_the_options_of_a_users_own_piece_are_checked_without_running_it(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit\ndef mine(*, sharpness, kind='a'): ...\n")
    with pytest.raises(UserError) as caught:
        load(None, [*NEEDED, f"train.objective={tmp_path}/mine.py:mine", "train.objective.kind=3"])
    assert [line.split(": ", 2)[1:] for line in caught.value.problems] == [
        ["train.objective.kind", "expected text such as 'a', found 3"],
        ["train.objective.sharpness", f"required by {tmp_path}/mine.py:mine"],
    ]
