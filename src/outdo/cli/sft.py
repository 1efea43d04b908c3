"""`outdo sft`: fine-tune a model on given answers."""

from dataclasses import replace
from pathlib import Path

from outdo.cli.arguments import not_empty
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import questions_from
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.trainer.display import Display
from outdo.trainer.sft import sft
from outdo.utils.errors import UserError


def run_sft(
    model: str,
    data: str,
    out: Path,
    display: Display,
    *,
    steps: int,
    batch: int,
    optimiser: OptimiserSettings,
    seed: int,
    device: str,
    prompt: str | None = None,
    answer: str | None = None,
    template: str | None = None,
) -> None:
    """Fine-tune a model on the pairs of a file, and write it to a new folder."""
    if problem := not_empty(out):
        raise UserError([problem])
    pairs = questions_from(data, prompt=prompt, answer=answer)
    if all(pair.answer is None for pair in pairs):
        raise UserError([f"{data}: no column looks like the answers to learn; name it: --answer NAME"])
    policy = Policy.load(model, device=device, optimiser=replace(optimiser, total=steps))
    longest = None if policy.context is None else policy.context - 1
    prompts = tokenise(pairs, policy.tokenizer, max_tokens=longest, template=template)
    for step in display.track(sft(policy, Prompts(prompts, per_step=batch, seed=seed), steps=steps), total=steps):
        if not display.live and (step.index % max(1, steps // 20) == 0 or step.index == steps):
            display.say(f"step {step.index}/{steps}  log-likelihood of a token {step.likelihood:.3f}")
    policy.save(out)
    display.say(f"the fine-tuned model is in {out}")
