"""Series of metrics for the doctor: for each rule one that it reports, and one about which it reports nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.extras.doctor import RULES, Finding, diagnose
from outdo.extras.doctor.series import RunMetrics
from outdo.run.folder.run_folder import read_metrics

HEALTHY = read_metrics(Path(__file__).parents[1] / "extras/page/quickstart_metrics.jsonl")
"""A real run: 30 steps of GRPO from the quickstart's warm model, the evaluation before it as step 0."""

Series = Mapping[str, float | list[float]]
GRPO = {
    "train": {"objective": {"name": "grpo"}},
    "optim": {"clip_norm": 1.0},
    "sampling": {"max_tokens": 64, "temperature": 0.3},
    "rewards": ["mine.py:score", {"name": "mine.py:topic", "weight": 0}],
}


def steps(*parts: tuple[int, Series]) -> list[dict[str, Any]]:
    """So many steps of each part; a list holds a value for each step."""
    lines: list[dict[str, Any]] = []
    for count, series in parts:
        for n in range(count):
            values = {name: value[n] if isinstance(value, list) else value for name, value in series.items()}
            lines.append({"step": len(lines) + 1, **values})
    return lines


def jumping(low: float, high: float, count: int = 20) -> list[float]:
    return [low if n % 2 else high for n in range(count)]


STALE = {"staleness/max": 2.0, "sampling/sampling_logp_difference/mean": 0.2}
SAME = {"reward": 0.3, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
NO_SIGNAL = {"frac_reward_zero_std": 0.9}
BADLY_FORMATTED = {"reward": 0.1, "right": 0.02, "rewards/format/mean": 0.1, "rewards/exact/mean": 0.02}
DRIFTED = ((1, {"eval/start_logprob": -2.9}), (9, {}), (1, {"eval/start_logprob": -3.1}), (9, {}))
FIRES: Mapping[str, tuple[list[dict[str, Any]], str]] = {
    "failed_rewards": (
        steps((3, {}), (1, {"reward_status/timed_out": 7.0})),
        r"7 answers in 1 step .*timed_out.*reward_limits.timeout",
    ),
    "constant_reward": (
        steps((6, SAME)),
        "every answer has the reward 0.3, so that it teaches the policy nothing.*outdo check",
    ),
    "random_reward": (steps((6, {"reward_disagreement": 0.4})), "40% have different rewards"),
    "reward_against_right": (
        steps((6, {"reward_right_correlation": -0.8})),
        "the reward is lower where an answer is right .correlation -0.80.*answer wrongly.*sign",
    ),
    "reward_follows_length": (
        steps((6, {"reward_length_correlation": [0.99, 0.97, 0.95, 1.0, 0.98, 0.99]})),
        "the reward follows the length of the answer .correlation 0.98.*learns to answer longer",
    ),
    "reward_against_length": (
        steps((6, {"reward_length_correlation": -0.97})),
        "the reward follows the length of the answer .correlation -0.97.*learns to answer shorter",
    ),
    "watched_reward_fell": (
        steps(
            (20, {"rewards/score/mean": jumping(0.1, 0.2), "rewards/topic/mean": jumping(0.8, 0.9)}),
            (20, {"rewards/score/mean": jumping(0.8, 0.9), "rewards/topic/mean": jumping(0.1, 0.2)}),
        ),
        "^the answers earn less of the reward topic, which is only watched: its weight is 0, and it fell from 0.85 to "
        "0.15 while score rose. .*let the reward check this too",
    ),
    "stopped_reading": (
        steps((1, {"reads/about a _ Use": 20.1}), (8, {}), (1, {"reads/about a _ Use": 0.3})),
        r'no longer read the word in "about a _ Use".* lost 20.1 nats at the start.* loses 0.3 now.*reward check',
    ),
    "repeats_itself": (
        steps((5, {"completions/repeated_ratio": 0.02}), (9, {"completions/repeated_ratio": 0.6})),
        "^the answers repeat themselves: 60% of the pairs of words .* before; at the start it was 2%",
    ),
    "gain_without_right": (
        steps((10, BADLY_FORMATTED), (10, {**BADLY_FORMATTED, "reward": 0.5, "rewards/format/mean": 0.9})),
        "^the answers earn more and are not right more often: the reward rose from 0.1 to 0.5 by format, and",
    ),
    "left_language": (
        steps(*DRIFTED, (1, {"eval/start_logprob": -5.5})),
        "^the answers leave the language of the starting policy: .* -5.5 nats; of its own answers it had -2.9",
    ),
    "fewer_words": (
        steps((1, {"eval/greedy_distinct_words": 0.168}), (9, {}), (1, {"eval/greedy_distinct_words": 0.094})),
        r"fewer words that differ: 9.4% of the first words of all answers; at the start it was 16.8%",
    ),
    "identical_answers": (
        steps((6, {"completions/identical_ratio": 0.99, "frac_all_right": 0.4})),
        r"99% of the further answers .* repeat an earlier one.*temperature = 0.3",
    ),
    "truncation": (steps((8, {"completions/clipped_ratio": 0.5})), "50% of the answers are truncated.*max_tokens = 64"),
    "too_easy": (
        steps((10, NO_SIGNAL | {"frac_all_right": 0.81})),
        "81% of the groups are all right. The data is too easy.*data.select.*train.dynamic_sampling",
    ),
    "too_hard": (
        steps((10, NO_SIGNAL | {"frac_all_wrong": 0.9, "reward": 0.01})),
        "90% .* all wrong. .* too hard.*data.select",
    ),
    "no_signal": (
        steps((10, NO_SIGNAL | {"frac_all_right": 0.5, "frac_all_wrong": 0.4})),
        "in 90% of the groups all rewards are equal, so that the rewards teach the policy nothing",
    ),
    "nothing_trained": (steps((5, {"passes/done": 1.0}), (3, {"passes/done": 0.0})), "nothing was trained"),
    "groups_missing": (steps((6, {"dynamic_sampling/missing": 20.0})), r"20.0 groups per step were still missing"),
    "engine_mismatch": (steps((9, {"sampling/sampling_logp_difference/mean": 0.2})), "differ by 0.2 nats"),
    "stale_answers": (steps((9, STALE | {"sampling/effective_sample_size": 0.7})), "up to 2 steps behind count as 70%"),
    "critic_worse_than_mean": (steps((12, {"value/explained_variance": -0.4})), r"explains -0.40 of the variance"),
    "reward_outweighed": (steps((9, {"regularisation": 0.7})), "70% of the push .* KL from the reference.*Lower beta"),
    "steps_too_small": (
        steps((9, {"moved_not": 0.95, "learning_rate": 1e-8, "grad_norm": 50.0})),
        r"95% of what was pushed did not move.*learning rate 1e-08.*norm, 50, is clipped to 1 \(optim.clip_norm\)",
    ),
    "steps_too_large": (
        steps((9, {"step_kl": 0.9, "learning_rate": 1e-2})),
        r"one step moves the policy by 0.9 nats per token \(KL\).*learning rate 0.01.*Lower optim.lr",
    ),
    "refused_updates": (steps((9, {"updates/refused": 0.0}), (1, {"updates/refused": 1.0})), "1 of the steps"),
    "kl_explosion": (steps((10, {"kl": 0.1}), (10, {"kl": 2.0})), "2 nats per token away"),
    "entropy_explosion": (steps((10, {"entropy": 0.3}), (10, {"entropy": 3.0})), "rose from 0.3 to 3 nats"),
    "entropy_collapse": (steps((10, {"entropy": 1.0}), (10, {"entropy": 0.05, "right": 0.4})), "fell from 1 to 0.05"),
    "teacher_no_better": (
        steps((12, {"teacher/right_minus_wrong": jumping(-0.1, 0.0, 12)})),
        r"right answers no more probable than wrong ones .* by -0.04 nats an answer .-0.11 to .0.03.*makes no answer "
        r"right.*outdo eval",
    ),
    "repeats_the_hint": (
        steps(
            (1, {"teacher/repeats_hint_ratio": 0.02, "teacher/opening_gap": 0.8, "completions/mean_length": 40.0}),
            (5, {"teacher/repeats_hint_ratio": 0.5, "teacher/opening_gap": 0.8, "completions/mean_length": 40.0}),
            (6, {"teacher/repeats_hint_ratio": 0.7, "teacher/opening_gap": 0.2, "completions/mean_length": 15.0}),
        ),
        "^61% of the answers repeat words of the hint, which only the teacher reads; at the start it was 2%.*"
        "went from 0.8 to 0.2 nats. An answer has 15 tokens .40 at the start.*rlsd",
    ),
    "learns_the_opening": (
        steps(
            (10, {"teacher/opening_gap": 1.0, "teacher/later_gap": jumping(0.4, 0.5, 10)}),
            (10, {"teacher/opening_gap": 0.3, "teacher/later_gap": jumping(0.4, 0.5, 10)}),
        ),
        "learns how the teacher begins.*fell from 1 to 0.3 nats a token, after them it went from 0.45 to 0.45",
    ),
    "memorised": (
        steps(
            (1, {"eval/sampled": 0.5, "eval/sampled_high": 0.6}),
            (19, {"right": 0.5, "transfer/visits": 2.0}),
            (19, {"right": 0.95, "transfer/visits": 30.0}),
            (1, {"eval/sampled": 0.56, "eval/sampled_high": 0.66}),
        ),
        "training questions went from 50.0% to 95.0%, held-out questions from 50.0% to 56.0%.* 30 visits .*by heart",
    ),
    "shorter_answers": (
        steps(
            (10, {"completions/mean_length": 40.0, "right": 0.5}), (10, {"completions/mean_length": 2.0, "right": 0.0})
        ),
        "fell from 40 to 2 tokens",
    ),
    "longer_not_better": (
        steps(
            (10, {"completions/mean_length": 50.0, "reward": 0.5}),
            (10, {"completions/mean_length": 150.0, "reward": 0.5}),
        ),
        "grew from 50 to 150 tokens, and the reward did not rise",
    ),
    "closer_not_better": (
        steps((20, {"teacher/divergence": [2.0 - 0.09 * n for n in range(20)], "right": jumping(0.44, 0.46)})),
        r"still comes closer to the teacher .from 0.65 to 0.38 nats a token., and the share of right answers does not "
        r"rise: by .0.7% .*stop here",
    ),
    "accuracy_fell": (
        steps(
            (10, {"reward": 0.4}),
            (1, {"reward": 0.4, "eval/greedy": 0.6, "eval/greedy_low": 0.55, "eval/greedy_high": 0.65}),
            (10, {"reward": 0.9}),
            (1, {"reward": 0.9, "eval/greedy": 0.3, "eval/greedy_low": 0.25, "eval/greedy_high": 0.35}),
        ),
        r"fell from 60.0% \(55.0% to 65.0%\) .step 11. to 30.0% .* reward rose from 0.4 to 0.9",
    ),
    "answers_got_worse": (
        steps((2, {"frac_all_wrong": 0.3}), (9, {"frac_all_wrong": 1.0, "learning_rate": 3e-3})),
        "all wrong; before it was 30%.*the policy has become worse.*Lower optim.lr",
    ),
    "reward_fell": (
        steps((20, {"reward": jumping(0.6, 0.8)}), (20, {"reward": jumping(0.1, 0.3)})),
        r"fell from 0.7 \(the first 8 steps\) to 0.2 \(the last 8\)",
    ),
    "no_calls": (
        steps((9, {"tools/calls": 12.0}), (9, {"tools/calls": 0.0})),
        "the policy has stopped calling its tools",
    ),
    "calls_not_read": (steps((9, {"tools/unparsed_ratio": 0.8})), "80% of the calls of tools cannot be read"),
    "calls_fail": (steps((9, {"tools/failed_ratio": 0.5})), "50% of the calls of tools end with an error"),
    "turns_at_limit": (steps((9, {"completions/turns_ratio": 0.9})), "90% of the episodes end at the limit"),
    "slow_replica": (
        steps((9, {"replicas/slowest": 3.0, "replicas/slowest_ratio": 10.0})),
        "replica 3 takes 10.0 times as long as the others",
    ),
    "slow_steps": (
        steps((20, {"tokens_per_second": 1000.0}), (6, {"tokens_per_second": 100.0})),
        "100 tokens per second; usual in this run are 1,000",
    ),
    "held_out_rose": (
        steps((1, {"eval/sampled": 0.2}), (5, {}), (1, {"eval/sampled": 0.7})),
        "70.0% of the sampled answers to held-out questions are right; at the start it was 20.0%",
    ),
    "reward_rose": (
        steps((20, {"reward": jumping(0.1, 0.3)}), (20, {"reward": jumping(0.6, 0.8)})),
        r"rose from 0.2 \(the first 8 steps\) to 0.7 \(the last 8\)",
    ),
    "moved_as_intended": (
        steps((9, {"moved_as_intended": 0.93, "moved/tokens": 100.0})),
        r"93.0% of the pushed tokens moved as intended, weighted by how far the pushes could move them "
        r"\(900 tokens were measured\)",
    ),
}
"""A series for every rule, and what is then reported."""

SILENT: Mapping[str, list[dict[str, Any]]] = {
    "failed_rewards": steps((9, {"reward_status/not_applicable": 4.0})),
    "constant_reward": steps((9, SAME | {"reward": 0.5, "reward_std": 0.5})),  # by the question
    "random_reward": steps((9, {"reward_disagreement": 0.1})),  # a model that scores is not exact
    "reward_against_right": steps((9, {"reward_right_correlation": 0.4})),  # other parts of the reward vary more
    "reward_follows_length": steps(
        (9, {"reward_length_correlation": [0.8, 0.9, 0.86, 0.7, 0.88, 0.9, 0.95, 0.6, 0.5]})
    ),
    "reward_against_length": steps((9, {"reward_length_correlation": 0.99})),
    "watched_reward_fell": steps(
        (20, {"rewards/score/mean": jumping(0.1, 0.2), "rewards/topic/mean": jumping(0.8, 0.9)}),
        (20, {"rewards/score/mean": jumping(0.8, 0.9), "rewards/topic/mean": jumping(0.8, 0.9)}),
    ),
    "stopped_reading": steps(
        (1, {"reads/about a _ Use": 20.0, "reads/a _": 3.0}),
        (8, {}),
        (1, {"reads/about a _ Use": 5.0, "reads/a _": 0.1}),  # what was hardly read is not missed
    ),
    "repeats_itself": steps((9, {"completions/repeated_ratio": 0.6})),  # it always was so
    "gain_without_right": steps(  # more are right, too
        (10, BADLY_FORMATTED), (10, {**BADLY_FORMATTED, "reward": 0.5, "rewards/format/mean": 0.9, "right": 0.3})
    ),
    "left_language": steps(*DRIFTED, (1, {"eval/start_logprob": -3.5})),
    "fewer_words": steps((1, {"eval/greedy_distinct_words": 0.168}), (1, {"eval/greedy_distinct_words": 0.12})),
    "identical_answers": steps(  # as at the end of the quickstart: the others are neither equal nor all right
        (9, {"completions/identical_ratio": 0.96, "frac_all_right": 0.72, "frac_reward_zero_std": 0.78})
    ),
    "truncation": steps((4, {"completions/clipped_ratio": 0.9}), (9, {"completions/clipped_ratio": 0.0})),  # too short
    "too_easy": steps((10, {"frac_all_right": 0.9, "frac_reward_zero_std": 0.1})),  # rewards differ all the same
    "too_hard": steps((10, {"frac_all_wrong": 1.0, "frac_reward_zero_std": 0.0})),
    "no_signal": steps((10, {"frac_reward_zero_std": 0.6})),
    "nothing_trained": steps((2, {"passes/done": 0.0}), (9, {"passes/done": 1.0})),
    "groups_missing": steps((9, {"dynamic_sampling/missing": 0.0})),
    "engine_mismatch": steps((9, {"sampling/sampling_logp_difference/mean": 0.01})),
    "stale_answers": steps((9, STALE | {"sampling/effective_sample_size": 0.97})),
    "critic_worse_than_mean": steps((5, {"value/explained_variance": -0.4}), (9, {"value/explained_variance": 0.6})),
    "reward_outweighed": steps((9, {"regularisation": 0.1})),
    "steps_too_small": steps((20, {"attained": [0.0001, 0.03, -0.01, 0.0002] * 5})),  # few tokens in every second step
    "steps_too_large": steps((20, {"step_kl": [0.0, 0.5, 0.02, 0.01, 0.3] * 4})),  # few tokens: single steps jump
    "refused_updates": steps((9, {"updates/refused": 0.0})),
    "kl_explosion": steps((20, {"kl": [0.001 * 1.25**n for n in range(20)]})),
    "entropy_explosion": steps((10, {"entropy": 0.01}), (10, {"entropy": 0.05})),
    "entropy_collapse": steps((10, {"entropy": 1.0}), (10, {"entropy": 0.05, "right": 0.97})),  # certain, and right
    "teacher_no_better": steps((12, {"teacher/right_minus_wrong": jumping(-0.1, 0.1, 12)})),
    "repeats_the_hint": steps((1, {"teacher/repeats_hint_ratio": 0.12}), (9, {"teacher/repeats_hint_ratio": 0.6})),
    "learns_the_opening": steps(
        (10, {"teacher/opening_gap": 1.0, "teacher/later_gap": 0.6}),
        (10, {"teacher/opening_gap": 0.3, "teacher/later_gap": 0.5}),
    ),
    "memorised": steps(
        (1, {"eval/sampled": 0.5, "eval/sampled_high": 0.6}),
        (19, {"right": 0.5, "transfer/visits": 2.0}),
        (19, {"right": 0.9, "transfer/visits": 30.0}),
        (1, {"eval/sampled": 0.75, "eval/sampled_high": 0.85}),
    ),
    "shorter_answers": steps(
        (10, {"completions/mean_length": 40.0, "right": 0.2}), (10, {"completions/mean_length": 10.0, "right": 0.9})
    ),
    "longer_not_better": steps(
        (10, {"completions/mean_length": 50.0, "reward": 0.2}), (10, {"completions/mean_length": 150.0, "reward": 0.8})
    ),
    "closer_not_better": steps(
        (20, {"teacher/divergence": [2.0 - 0.09 * n for n in range(20)], "right": jumping(0.88, 0.94)})
    ),
    "accuracy_fell": steps(
        (1, {"reward": 0.4, "eval/greedy": 0.6, "eval/greedy_low": 0.4, "eval/greedy_high": 0.8}),
        (9, {"reward": 0.9}),
        (1, {"reward": 0.9, "eval/greedy": 0.5, "eval/greedy_low": 0.3, "eval/greedy_high": 0.7}),
    ),
    "answers_got_worse": steps((10, {"frac_all_wrong": 1.0})),  # they always were
    "reward_fell": steps((20, {"reward": jumping(0.15, 0.95)}), (20, {"reward": jumping(0.1, 0.9)})),  # noise
    "no_calls": steps((9, {"tools/calls": jumping(0.0, 12.0)})),
    "calls_not_read": steps((9, {"tools/unparsed_ratio": 0.3})),
    "calls_fail": steps((9, {"tools/failed_ratio": 0.2})),
    "turns_at_limit": steps((9, {"completions/turns_ratio": 0.3})),
    "slow_replica": steps(*((1, {"replicas/slowest": rank, "replicas/slowest_ratio": 3.0}) for rank in 4 * (0, 1))),
    "slow_steps": steps((20, {"tokens_per_second": 1000.0}), (20, {"tokens_per_second": 700.0})),
    "held_out_rose": steps((1, {"eval/greedy": 0.5}), (5, {}), (1, {"eval/greedy": 0.5})),
    "reward_rose": steps(
        (20, {"reward": jumping(0.1, 0.9)}), (20, {"reward": jumping(0.15, 0.95)})
    ),  # within the noise
    "moved_as_intended": steps((9, {"moved_as_intended": 0.5})),
}
"""A series for every rule that comes near, and about which it reports nothing."""


def found_by(rule: str, lines: list[dict[str, Any]], recipe: Mapping[str, Any] | None = GRPO) -> list[Finding]:
    (named,) = [each for each in RULES if each.__name__ == rule]
    return list(named(RunMetrics(lines, recipe or {})))


def roots(lines: list[dict[str, Any]], recipe: Mapping[str, Any] | None = GRPO) -> list[str]:
    return [each.rule for each in diagnose(lines, recipe=recipe) if not each.cause and each.level != "good"]


def merged(*series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One run with the metrics of all of these; where two have the same metric, those of the last one."""
    lines: dict[int, dict[str, Any]] = {}
    for each in series:
        for line in each:
            lines[line["step"]] = lines.get(line["step"], {}) | line
    return list(lines.values())
