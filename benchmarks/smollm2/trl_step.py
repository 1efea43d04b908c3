"""Compare a step of TRL with one of outdo, from equal weights, prompts and answers.

    python -m benchmarks.smollm2.trl_step

TRL samples 4 groups of 8 answers to `instructions` and makes a step of gradient descent with the learning rate 1, so
that the weights before it minus those after it are the gradient. outdo makes the same step with the same answers: with
its own advantages, and with those of TRL, so that what is left is the difference of all that follows.
"""

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import outdo
from benchmarks.smollm2 import trl_run
from outdo.extras.quickstart.smollm2 import model_file
from outdo.models.gguf_folder import converted
from outdo.models.optimiser import sgd
from outdo.run.display import Display
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout

TASK = "instructions"
NO_CLIPPING = 1e9  # so that the step is the whole gradient


Rows = list[list[int]]
Rewards = dict[tuple[int, ...], float]
"""By the token ids of a completion."""


class Compared(NamedTuple):
    """What a library makes of the same answers; rows are in the order of TRL's batch."""

    advantages: Tensor  # [B]
    loss: float
    gradient: dict[str, Tensor]


def of_trl(
    model: Path, folder: Path
) -> tuple[Compared, list[list[int]], list[list[int]], dict[tuple[int, ...], float]]:
    """Return TRL's numbers, its prompts and completions as token ids, and the reward of each completion."""
    import trl
    from transformers import TrainerCallback

    rewards: Rewards = {}
    seen: dict[str, Any] = {}
    score = trl_run.reward(TASK)

    def kept(completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
        values = score(completions, completion_ids, **columns)
        rewards.update(zip(map(tuple, completion_ids), values, strict=True))
        return values

    class Watched(trl.GRPOTrainer):
        """Keeps the batch and the loss of the step."""

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **others: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **others)
            seen.update(inputs, loss=float(loss))
            return loss

    class Weights(TrainerCallback):
        """Keeps the gradient, which a step of length 1 subtracts from the weights."""

        def on_train_begin(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
            seen["before"] = copied(model)

        def on_step_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
            seen["gradient"] = {
                name: seen["before"][name] - weight.detach() for name, weight in model.named_parameters()
            }

    config = trl_run.settings(TASK, folder, seed=0, rate=1.0)
    config |= {"max_steps": 1, "optim": "sgd", "max_grad_norm": NO_CLIPPING, "save_strategy": "no"}
    Watched(
        model=str(model),
        args=trl.GRPOConfig(**config),
        reward_funcs=kept,
        train_dataset=trl_run.questions(TASK),
        callbacks=[Weights()],
    ).train()
    prompts, completions = (unpadded(seen, name) for name in ("prompt", "completion"))
    return Compared(seen["advantages"], seen["loss"], seen["gradient"]), prompts, completions, rewards


def copied(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def moved(before: dict[str, Tensor], model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: before[name] - weight.detach() for name, weight in model.named_parameters()}


def unpadded(batch: dict[str, Any], name: str) -> Rows:
    rows = zip(batch[f"{name}_ids"], batch[f"{name}_mask"].bool(), strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


def of_outdo(model: Path, groups: Sequence[Group], given: Tensor | None = None) -> Compared:
    """Return outdo's numbers, with its own advantages or with `given` ones [B]."""
    settings = outdo.OptimiserSettings(lr=1.0, algorithm=sgd, clip_norm=NO_CLIPPING)
    policy = outdo.Policy.load(model, device="cpu", optimiser=settings)
    before = copied(policy.model)
    objective = outdo.grpo(beta=0.0)
    batch = Batch.from_groups(groups)
    advantages = outdo.group_standardised(batch.rewards, batch.group) if given is None else given
    batch = objective.prepare(batch.with_(advantages=advantages[:, None] * batch.loss_mask))
    update = policy.update(batch, objective)
    return Compared(advantages, update.metrics["loss"], moved(before, policy.model))


def groups_of(prompts: Rows, completions: Rows, rewards: Rewards) -> tuple[list[Group], list[int]]:
    """Return the answers of each prompt as a group, and the rows of TRL's batch in their order."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(tuple(prompt), []).append(row)
    groups = [
        Group(
            prompt=Prompt(id=str(number), text="", token_ids=prompt),
            rollouts=tuple(rollout(completions[row], rewards[tuple(completions[row])]) for row in members),
        )
        for number, (prompt, members) in enumerate(rows.items())
    ]
    return groups, [row for members in rows.values() for row in members]


def rollout(ids: list[int], reward: float) -> Rollout:
    return Rollout(
        token_ids=tuple(ids),
        loss_mask=(True,) * len(ids),
        logprobs=(0.0,) * len(ids),
        text="",
        reward=reward,
        finish_reason=FinishReason.stop,
        policy_version=0,
    )


def norm(weights: dict[str, Tensor]) -> float:
    return float(sum(weight.double().square().sum() for weight in weights.values()) ** 0.5)


def report(name: str, ours: Compared, theirs: Compared) -> None:
    """Print how far the numbers of outdo are from those of TRL."""
    difference = {name: ours.gradient[name] - theirs.gradient[name] for name in ours.gradient}
    print(f"{name}: loss {ours.loss:.3e}, gradient of norm {norm(ours.gradient):.6f}; ", end="")
    print(f"the difference from TRL's gradient has the norm {norm(difference):.1e}")


def main() -> None:
    """Print the differences."""
    model = converted(model_file(Display()))
    with tempfile.TemporaryDirectory() as folder:
        theirs, prompts, completions, rewards = of_trl(model, Path(folder))
    gc.collect()
    groups, order = groups_of(prompts, completions, rewards)
    theirs = theirs._replace(advantages=theirs.advantages[order])
    own = of_outdo(model, groups)
    apart = (own.advantages - theirs.advantages).abs()
    equal = own.advantages == 0
    print(f"{len(order)} answers, {sum(map(len, completions))} tokens, in {len(groups)} groups")
    print(f"advantages: at most {apart.max():.1e} apart, of at most {own.advantages.abs().max():.2f}; ", end="")
    print(f"where outdo has 0, TRL has at most {theirs.advantages[equal].abs().max():.1e}")
    print(f"TRL: loss {theirs.loss:.3e}, gradient of norm {norm(theirs.gradient):.6f}")
    report("outdo", own, theirs)
    report("outdo with TRL's advantages", of_outdo(model, groups, theirs.advantages), theirs)


if __name__ == "__main__":
    main()
