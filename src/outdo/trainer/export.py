"""Export a trained model as an ordinary model folder, with a model card that has its accuracy before and after."""

import shutil
from pathlib import Path
from typing import Any

from outdo.trainer.find_model import ModelRef
from outdo.utils.errors import UserError

CARD = """---
library_name: transformers
tags: [reinforcement-learning, outdo]
---
# {title}

Trained from `{base}` by `{objective}` with [outdo], on `{data}`, rewarded by `{rewards}`.

{table}

Steps: {step} of {prompts} questions × {group} answers; learning rate {lr:g}; seed {seed}. The whole recipe:

```toml
{recipe}
```

[outdo]: https://pypi.org/project/outdo/
"""


def export(source: ModelRef, folder: Path) -> Path:
    """Copy the checkpoint's model and tokenizer into `folder`, which must be empty or new, and write `README.md`."""
    if source.recipe is None or source.run is None:
        raise UserError([f"{source.name}: not a run folder; a model folder needs no export"])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError([f"{folder}: exists and is not empty; choose a new folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(source.model).iterdir()):
        if path.is_file() and path.name != "manifest.json":
            shutil.copy2(path, folder / path.name)
    (folder / "README.md").write_text(card(source), encoding="utf-8")
    return folder


def card(source: ModelRef) -> str:
    """Return the model card, in Markdown."""
    recipe = source.recipe
    assert recipe is not None
    assert source.run is not None
    return CARD.format(
        title=source.run.name,
        base=_portable(recipe.model),
        objective=recipe.train.objective.name,
        data=_portable(recipe.data.path),
        rewards=", ".join(_portable(reward.name) for reward in recipe.rewards),
        table=_table(source.summary, source.step),
        step=source.step,
        prompts=recipe.train.prompts,
        group=recipe.train.group_size,
        lr=recipe.optim.lr,
        seed=recipe.seed,
        recipe=(source.run / "recipe.toml").read_text(encoding="utf-8").strip(),
    )


def _portable(name: str) -> str:
    """Return a hub name as it is, and the last part of a local path, which means nothing on another machine."""
    return Path(name).name if Path(name).is_absolute() else name


def _table(summary: dict[str, Any], step: int | None) -> str:
    """Return the accuracy before the first step and after `step`, if the run was evaluated then."""
    before = summary.get("before", {})
    evaluated = {summary.get("steps"): summary.get("after", {})}
    best = summary.get("best", {})
    after = (evaluated | {best.get("step"): best}).get(step, {})
    rows = [
        f"| {name} | {_share(before, name)} | {_share(after, name)} |"
        for name in ("greedy", "sampled")
        if name in before and name in after
    ]
    if not rows:
        return f"The run was not evaluated after step {step}, so its accuracy is not known."
    head = ["| held-out questions right | before | after |", "|---|---|---|"]
    return "\n".join([*head, *rows, "", "In brackets: 95 % confidence intervals."])


def _share(numbers: dict[str, float], name: str) -> str:
    return f"{numbers[name]:.1%} [{numbers[f'{name}_low']:.1%}, {numbers[f'{name}_high']:.1%}]"
