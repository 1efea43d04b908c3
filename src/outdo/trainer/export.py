"""Export a trained model as an ordinary model folder, with a model card that has its results before and after."""

import shutil
from pathlib import Path
from typing import Any

import torch

from outdo.config.file import dump
from outdo.config.paths import file_name, with_file_names
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model
from outdo.storage.model_folder import save_model_folder
from outdo.trainer.find_model import ModelRef
from outdo.utils.errors import ModelError, UserError
from outdo.utils.outcome import EVALUATIONS

CARD = """---
library_name: transformers
tags: [reinforcement-learning, outdo]
---
# {title}

Trained from `{base}` by `{objective}` with [outdo], on `{data}`, rewarded by `{rewards}`.

{table}

Steps: {step} of {prompts} questions × {group} answers; learning rate {lr:g}; seed {seed}.
The whole recipe, with file names in place of paths:

```toml
{recipe}
```

[outdo]: https://pypi.org/project/outdo/
"""


def export(source: ModelRef, folder: Path, *, dtype: str = "source") -> Path:
    """Write the checkpoint's model and tokenizer into `folder`, which must be empty or new, and `README.md`.

    A checkpoint is in float32, the dtype of training. `dtype` is that of the exported weights, such as bfloat16;
    source is the dtype of the model that the run started from.

    Raises `UserError` if `folder` is not empty, or if the source's dtype is not known.
    """
    if source.recipe is None or source.run is None:
        raise UserError([f"{source.name}: not a run folder; a model folder needs no export"])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError([f"{folder}: exists and is not empty; choose a new folder"])
    wanted = _source_dtype(source.recipe.model) if dtype == "source" else dtype

    def write(aside: Path) -> None:
        _write_model(Path(source.model), aside, wanted)
        (aside / "README.md").write_text(card(source), encoding="utf-8")

    save_model_folder(folder, write)
    return folder


def _source_dtype(model: str) -> str:
    """Return the dtype of the model that a run started from. Raises `UserError` if it cannot be read any more."""
    try:
        dtype = inspect_folder(model).dtype
    except ModelError:
        dtype = None
    if dtype is None:
        raise UserError(
            [f"export: the dtype of {model}, which the run started from, cannot be read; choose one: --dtype"]
        )
    return dtype


def _write_model(checkpoint: Path, folder: Path, dtype: str) -> None:
    """Copy model and tokenizer of a checkpoint into `folder`, with the weights in `dtype`."""
    converted = inspect_folder(checkpoint).dtype != dtype
    for path in sorted(checkpoint.iterdir()):
        is_weights = ".safetensors" in path.name
        if path.is_file() and path.name != "manifest.json" and not (converted and is_weights):
            shutil.copy2(path, folder / path.name)
    if converted:
        load_model(checkpoint, dtype=getattr(torch, dtype)).save_pretrained(folder)


def card(source: ModelRef) -> str:
    """Return the model card, in Markdown; it has no path of this machine."""
    recipe = source.recipe
    assert recipe is not None
    assert source.run is not None
    return CARD.format(
        title=source.run.name,
        base=file_name(recipe.model),
        objective=recipe.train.objective.name,
        data=", ".join(file_name(each.path) for each in recipe.data.path),
        rewards=", ".join(file_name(reward.name) for reward in recipe.rewards),
        table=_table(source.summary, source.step),
        step=source.step,
        prompts=recipe.train.prompts,
        group=recipe.train.group_size,
        lr=recipe.optim.lr,
        seed=recipe.seed,
        recipe=dump(with_file_names(recipe)).strip(),
    )


def _table(summary: dict[str, Any], step: int | None) -> str:
    """Return the held-out results before the first step and after `step`, if the run was evaluated then.

    They are the shares of right answers where right is defined, the mean rewards, and the parts of the rewards.
    """
    before = summary.get("before", {})
    evaluated = {summary.get("steps"): summary.get("after", {})}
    best = summary.get("best", {})
    after = (evaluated | {best.get("step"): best}).get(step, {})
    labels = {kind: f"right, {kind}" for kind in EVALUATIONS}
    labels |= {f"{kind}_reward": f"reward, {kind}" for kind in EVALUATIONS}
    labels |= {
        name: f"{name.split('/')[1]}, {kind}"  # greedy_rewards/format/mean
        for kind in EVALUATIONS
        for name in before
        if name.startswith(f"{kind}_rewards/")
    }
    rows = [
        f"| {label} | {_number(before, name)} | {_number(after, name)} |"
        for name, label in labels.items()
        if name in before and name in after
    ]
    if not rows:
        return f"The run was not evaluated after step {step}, so its held-out results are not known."
    head = ["| held-out questions | before | after |", "|---|---|---|"]
    return "\n".join([*head, *rows, "", "In brackets: 95 % confidence intervals."])


def _number(numbers: dict[str, float], name: str) -> str:
    """Return a share in per cent, a reward as it is, and its confidence interval if it has one."""
    style = ".1%" if name in EVALUATIONS else ".3f"
    ends = [f"{numbers[end]:{style}}" for end in (f"{name}_low", f"{name}_high") if end in numbers]
    return f"{numbers[name]:{style}}" + (f" [{', '.join(ends)}]" if ends else "")
