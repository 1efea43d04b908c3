"""No note of `outdo check` is false whatever the other settings: each of them, and the settings that make it untrue."""

from collections.abc import Mapping, Sequence

import pytest
from test_rules import NEEDED

from outdo.config import method_notes, rules
from outdo.config.file import load
from outdo.config.rules import conflicts

VLLM = "engine={name='vllm', python='python'}"
OLDER = ["engine={name='builtin', processes=1}", "train.max_staleness=2"]
KL = "train.kl_in_reward={name='k1', beta=0.1}"
GAME = "environment={name='examples.small_models.guessing:Game'}"
BYPASS = "train.objective={name='ppo', dual=3.0, bypass=true}"
ONE_UPDATE = "one update per batch and one minibatch: the ratio is 1"
CORRECTION = "the built-in engine samples with the trained weights"
TRUNCATE = "train.objective={name='grpo', correction='truncate'}"

Case = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""What the note says, settings with which it is true, and such with which it would be false."""

NOTES: Mapping[str, Sequence[Case]] = {
    "_echo_without_environment": [
        (
            "train.objective.echo has no effect",
            ["train.objective={name='grpo', echo=0.05}"],
            [["train.objective={name='grpo', echo=0.05}", GAME, "rewards=environment"]],
        ),
    ],
    "_unused_teachers": [
        (
            "teachers have no effect",
            ["teachers=model"],
            [
                ["teachers=model", "train.objective=gkd"],
                ["teachers=model", "train.objective={name='dapo', teacher_beta=0.1}"],
                ["teachers=model", "train.advantage=mopd"],
                ["teachers=model", "train.advantage=outdo.algorithms.advantages:mopd"],
            ],
        ),
        (
            "train.objective.teacher_divergence has no effect: teacher_beta is 0",
            ["train.objective={name='grpo', teacher_divergence='forward_kl'}"],
            [["teachers=model", "train.objective={name='grpo', teacher_divergence='forward_kl', teacher_beta=0.1}"]],
        ),
    ],
    "_without_later_steps": [
        (
            ONE_UPDATE,
            [BYPASS, "train.advantage=group_centred"],
            [
                [BYPASS, VLLM],
                [BYPASS, *OLDER],
                [BYPASS, "train.passes=2"],
                [BYPASS, "train.minibatches=2"],
                ["train.objective={name='ppo', surrogate='unclipped'}"],
            ],
        ),
        ("train.stop has no effect", ["train.stop.kl=0.1"], [["train.stop.kl=0.1", "train.passes=2"]]),
        ("is made for several passes", ["train.objective=target"], [["train.objective=target", "train.passes=4"]]),
    ],
    "_options_of_a_replaced_surrogate": [
        (
            "train.objective.clip_low has no effect: its surrogate is replaced",
            ["train.objective={name='grpo', clip_low=0.1, surrogate='unclipped'}"],
            [["train.objective={name='grpo', clip_low=0.1}"]],
        )
    ],
    "_level_without_effect": [
        (
            "train.objective.level has no effect",
            ["train.objective={name='dro', level='sequence'}"],
            [
                ["train.objective={name='dro', level='sequence', beta=0.1}"],
                ["train.objective={name='grpo', level='sequence'}"],
            ],
        )
    ],
    "_objective_without_ratio": [
        (
            "rloo has no ratio",
            ["train.objective=rloo", "train.passes=2"],
            [
                ["train.objective=rloo"],
                ["train.objective={name='rloo', surrogate={name='clip', low=0.2, high=0.2}}", "train.passes=2"],
                ["train.objective={name='rloo', bypass=true, correction='truncate'}", "train.passes=2"],
            ],
        )
    ],
    "_unused_reference": [
        (
            "reference.sync.every = 5 has no effect",
            ["train.objective.beta=0", "reference.sync.every=5"],
            [["reference.sync.every=5"], ["train.objective.beta=0", "reference.sync.every=5", KL]],
        )
    ],
    "_kl_twice_or_never": [
        ("KL counts twice", [KL], [["train.objective.beta=0", KL]]),
        (
            "train.objective.divergence has no effect: beta is 0",
            ["train.objective={name='dapo', divergence='k1'}"],
            [["train.objective={name='dapo', divergence='k1', beta=0.1}"]],
        ),
        (
            "train.objective.divergence_weight has no effect: beta is 0",
            ["train.objective={name='dapo', divergence_weight='token_mean'}"],
            [["train.objective={name='dapo', divergence_weight='token_mean', beta=0.1}"]],
        ),
        (
            "entropy_weight has no effect",
            ["train.objective={name='grpo', entropy_weight='token_mean'}"],
            [["train.objective={name='grpo', entropy_weight='token_mean', entropy_bonus=0.1}"]],
        ),
    ],
    "_kl_scaled_up": [
        (
            "makes advantages of full size of the KL alone",
            [KL],
            [
                [KL, "train.dynamic_sampling=2"],
                [KL, "train.advantage={name='turn_centred', scale=false}"],
                [KL, "train.advantage={name='sign', band=0.5}"],
                [KL, "train.advantage=leave_one_out"],
                ["train.kl_in_reward={name='k1', beta=0.1, after_baseline=true}"],
            ],
        )
    ],
    "_divergence_with_another_gradient": [
        (
            "k1 in the loss without its ratio",
            ["train.objective={name='grpo', divergence='k1'}"],
            [["train.objective={name='grpo', divergence='k1', kl_ratio=true}"]],
        )
    ],
    "_not_as_published": [
        (
            "grpo was published with the advantage group_standardised, not sign",
            ["train.advantage=sign"],
            [["train.advantage=group_standardised"], []],
        ),
        (
            "reinforce_pp was published with the advantage reinforce_pp, not sign",
            ["train.objective=reinforce_pp", "train.advantage=sign"],
            [["train.objective=reinforce_pp", "train.advantage=reinforce_pp_baseline"]],
        ),
        (
            "dapo was published with train.dynamic_sampling",
            ["train.objective=dapo"],
            [["train.objective=dapo", "train.dynamic_sampling=2", "train.mask_truncated=true"]],
        ),
    ],
    "_correction_of_the_built_in_engine": [
        (
            CORRECTION,
            [TRUNCATE],
            [
                [TRUNCATE, VLLM],
                [TRUNCATE, *OLDER],
                ["train.objective={name='grpo', correction='truncate', bypass=true}"],
                ["train.objective={name='prime_rl', correction='truncate'}"],
            ],
        )
    ],
    "_nothing_corrects_for_older_weights": [
        (
            "nothing corrects for the older weights",
            [*OLDER, "train.objective={name='grpo', correction='none'}"],
            [
                OLDER,
                [*OLDER, "train.objective={name='grpo', correction='none', bypass=true}"],
                [*OLDER, "train.objective={name='prime_rl', correction='none'}"],
            ],
        )
    ],
    "_unused_critic": [
        ("train.critic has no effect", ["train.critic=head"], [["train.critic=head", "train.objective=ppo"]])
    ],
    "_rewards_of_turns": [
        (
            "gdpo compares whole episodes",
            ["train.advantage=gdpo", GAME],
            [["train.advantage=gdpo"], [GAME], ["train.advantage=turn_to_go", GAME]],
        )
    ],
    "_more_threads_than_cores": [("more threads wait for", ["threads=1024"], [["threads=1"]])],
    "_warmup_as_long_as_the_run": [("is never reached", ["optim.schedule.warmup=100"], [["optim.schedule.warmup=5"]])],
    "_schedule_with_fewer_steps": [
        (
            "may have fewer optimiser steps (train.dynamic_sampling)",
            ["optim.schedule=linear", "train.dynamic_sampling=1"],
            [["optim.schedule=linear"], ["train.dynamic_sampling=1"]],
        )
    ],
    "_later_than_the_last_step": [
        (
            "evaluated only before and after",
            ["eval.every=101", "data.eval_rows=5"],
            [["eval.every=9", "data.eval_rows=5"]],
        ),
        (
            "saved only at the end, at a best evaluation and every ten",
            ["checkpoint.every=101"],
            [["checkpoint.every=9"]],
        ),
    ],
    "_weight_of_a_single_reward": [
        (
            "the weight 2.0 of a single reward has no effect except for its sign",
            ["rewards=[{name='exact', weight=2.0}]"],
            [
                ["rewards=[{name='exact', weight=2.0}]", KL],
                ["rewards=[{name='exact', weight=2.0}]", GAME],
                ["rewards=[{name='exact', weight=2.0}]", "train.advantage=group_centred"],
                ["rewards=[{name='exact', weight=2.0}, 'format']"],
            ],
        ),
    ],
    "_weight_0": [
        (
            "exact has the weight 0: it is only watched",
            ["rewards=['format', {name='exact', weight=0}]"],
            [
                ["rewards=['format', {name='exact', weight=0}]", "train.advantage=pass_at_k"],
                ["rewards=['format', {name='exact', weight=0}]", "train.objective=rejection"],
                ["rewards=['format', {name='exact', weight=0}]", "train.objective=rejection", "eval.right=exact"],
            ],
        ),
        (
            "exact has the weight 0: it is only watched",
            ["rewards=['format', {name='exact', weight=0}]", "train.advantage={name='rejection', threshold=0.5}"],
            [],
        ),
    ],
    "_divided_among_one": [("has no effect with cluster.replicas = 1", ["cluster.shard=true"], [[]])],
    "_braces_in_the_template": [
        ("every prompt has {question} as it is", ["data.template={question} {prompt}"], [["data.template={prompt}"]])
    ],
    "_tokens_that_are_never_sampled": [
        ("answers do not come from the policy that is trained", ["sampling.top_p=0.8"], [[], ["sampling.top_p=1.0"]])
    ],
    "unmerged_bias": [
        (
            "works only if all adapted layers of the model have a bias",
            ["train.adapter={name='lora', rank=8, lora_bias=true}"],
            [["train.adapter={name='lora', rank=8}"]],
        )
    ],
}
CASES = [case for cases in NOTES.values() for case in cases]


def notes_of(overrides: Sequence[str]) -> list[str]:
    mistakes, notes = conflicts(load(None, [*NEEDED, "steps=100", *overrides]))
    assert not mistakes
    return notes


def test_every_note_has_an_entry() -> None:
    assert {rule.__name__ for rule in (*method_notes.NOTES, *rules.NOTES)} == set(NOTES)


@pytest.mark.parametrize(("sentence", "overrides", "_"), CASES)
def test_a_note_is_made_where_it_is_true(sentence: str, overrides: Sequence[str], _: object) -> None:
    assert any(sentence in note for note in notes_of(overrides))


@pytest.mark.parametrize(("sentence", "overrides"), [(case[0], each) for case in CASES for each in case[2]])
def test_a_note_is_not_made_where_it_would_be_false(sentence: str, overrides: Sequence[str]) -> None:
    assert not any(sentence in note for note in notes_of(overrides))
