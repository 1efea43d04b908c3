"""GRPO from Python, with the model and the questions that `outdo quickstart --task sums` makes."""

from itertools import islice

import outdo


def reward(completion: str, answer: str) -> bool:
    return completion.rpartition("#")[2] == answer  # the model ends with "#" and the sum


policy = outdo.Policy.load("quickstart/seed-0/warm", optimiser=outdo.OptimiserSettings(lr=2e-4))
questions = outdo.tokenise(outdo.questions_from("quickstart/seed-0/questions.jsonl"), policy.tokenizer)
sampling = outdo.SamplingParams(max_tokens=48)
sampler = outdo.GroupSampler(outdo.BuiltinEngine(), outdo.SingleTurn(reward), group_size=8, sampling=sampling)
rollouts = outdo.in_turn(policy, outdo.Prompts(questions, per_step=32), sampler)
objective, advantage = outdo.grpo(beta=0.0), outdo.per_token(outdo.group_standardised)
for step in islice(outdo.train(outdo.Models.of(policy, objective), rollouts, advantage, objective), 20):
    print(f"step {step.index}: {step.batch.rewards.mean():.0%} right")
policy.save("trained")
