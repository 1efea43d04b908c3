"""The model card of an exported model: the metadata that the Hub reads, the results before and after, the recipe."""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from outdo.config.fields import by_set
from outdo.config.file import dump
from outdo.config.messages import to_toml
from outdo.config.names import OBJECTIVES
from outdo.config.paths import file_name, with_file_names
from outdo.config.recipe import Recipe
from outdo.data.data_set_names import hub_data_set
from outdo.models.template_header import DATE
from outdo.run.export.find_model import ModelRef
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.hub_names import is_local
from outdo.utils.imports import resolve
from outdo.utils.outcome import EVALUATIONS, left_out
from outdo.utils.run_names import folder_name

CARD = """---
{metadata}
---
# {title}

{what} `{base}` by `{objective}`{paper} with [outdo], on `{data}`, rewarded by `{rewards}`.

{table}

Steps: {step} of {prompts} questions × {group} answers; learning rate {lr:g}; seed {seed}.{chat}
The whole recipe, with file names in place of paths:

```toml
{recipe}
```

[outdo]: https://pypi.org/project/outdo/
"""


METRICS = {"greedy": "accuracy", "greedy_reward": "mean_reward"}
"""Held-out results, and their names in the metadata of a card."""


def card(source: ModelRef, *, is_adapter: bool = False, licence: str | None = None) -> str:
    """Return the model card of a run, in Markdown; it has no path of this machine."""
    recipe = source.recipe
    assert recipe is not None
    assert source.run is not None
    paper = _paper(recipe)
    return CARD.format(
        metadata=_metadata(source, recipe, is_adapter=is_adapter, licence=licence).to_yaml(),
        title=folder_name(source.run),
        what="An adapter (PEFT), trained from" if is_adapter else "Trained from",
        base=file_name(recipe.model),
        objective=recipe.train.objective.name,
        paper=f" ([arXiv {paper}](https://arxiv.org/abs/{paper}))" if paper else "",
        data=", ".join(file_name(file.path) for file in recipe.data.path),
        rewards=", ".join(file_name(reward.name) for reward in recipe.rewards),
        chat=_chat_options(recipe),
        table=_table(*_evaluations(source), source.step),
        step=source.step,
        prompts=recipe.train.prompts,
        group=recipe.train.group_size,
        lr=recipe.optim.lr,
        seed=recipe.seed,
        recipe=dump(with_file_names(recipe.model_copy(update={"track": ()}))).strip(),
    )


def _metadata(source: ModelRef, recipe: Recipe, *, is_adapter: bool, licence: str | None) -> ModelCardData:
    """Return what the Hub reads: models and data sets are named if they are on the Hub."""
    assert source.run is not None
    results = _results(recipe, _evaluations(source)[1])
    on_hub = not is_local(recipe.model)
    return ModelCardData(
        base_model=recipe.model.partition("@")[0] if on_hub else None,
        base_model_relation=("adapter" if is_adapter else "finetune") if on_hub else None,
        datasets=_data_sets([file.path for file in recipe.data.path]) or None,
        library_name="peft" if is_adapter else "transformers",
        license=licence,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "outdo", file_name(recipe.train.objective.name)],
        model_name=folder_name(source.run),
        eval_results=results or None,
    )


def _results(recipe: Recipe, after: Mapping[str, float]) -> list[EvalResult]:
    """Return the held-out results of greedy answers."""
    sets = by_set(recipe.data.eval_path or ()) or {None: [file.path for file in recipe.data.path]}
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=next(iter(_data_sets(paths)), "custom"),
            dataset_name=of_set or ", ".join(map(file_name, paths)),
            dataset_config=of_set,  # results of one type and configuration are merged
            metric_type=name,
            metric_value=after[key],
            metric_name=", ".join(filter(None, ["held-out questions, greedy answers", left_out(key, after)])),
        )
        for of_set, paths in sets.items()
        for kind, name in METRICS.items()
        if (key := f"{of_set}/{kind}" if of_set else kind) in after
    ]


def _chat_options(recipe: Recipe) -> str:
    options = ", ".join(f"`{name} = {to_toml(value)}`" for name, value in recipe.data.chat_options.items())
    date = " It writes that date and not today's." if DATE in recipe.data.chat_options else ""
    return f"\nThe chat template has the defaults of the training: {options}.{date}" if options else ""


def _data_sets(paths: Iterable[str]) -> list[str]:
    """Return the names of those that are on the Hub, each once."""
    return list(dict.fromkeys(data_set.name for data_set in map(hub_data_set, paths) if data_set))


def _paper(recipe: Recipe) -> str | None:
    """Return the arXiv number in the first line of the objective's docstring, if it is one of outdo's."""
    spec = OBJECTIVES.get(recipe.train.objective.name)
    line = (inspect.getdoc(resolve(spec)) or "").partition("\n")[0] if spec else ""
    match = re.search(r"arXiv (\d{4}\.\d{5})", line)
    return match[1] if match else None


def _evaluations(source: ModelRef) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the held-out results before the first step and after that of the model; empty if they are not known."""
    assert source.run is not None
    steps = read_metrics(source.run / "metrics.jsonl", report=lambda _: None)
    metrics = next((line for line in reversed(steps) if line.get("step") == source.step), {})
    after = {name.removeprefix("eval/"): value for name, value in metrics.items() if name.startswith("eval/")}
    return source.summary.get("before", {}), {name: value for name, value in after.items() if value is not None}


def _table(before: Mapping[str, Any], after: Mapping[str, Any], step: int | None) -> str:
    """Return the held-out results before the first step and after `step`, if the run was evaluated then.

    They are the shares of right answers where right is defined, the mean rewards, and the parts of the rewards.
    """
    labels = {kind: f"right, {kind}" for kind in EVALUATIONS}
    labels |= {f"{kind}_reward": f"reward, {kind}" for kind in EVALUATIONS}
    labels |= {
        name: f"{name.split('/')[1]}, {kind}"  # greedy_rewards/format/mean
        for kind in EVALUATIONS
        for name in before
        if name.startswith(f"{kind}_rewards/")
    }
    sets = [name.removesuffix("/questions") for name in before if name.endswith("/questions")]
    labels |= {f"{set_name}/{name}": f"{set_name}: {label}" for set_name in sets for name, label in labels.items()}
    rows = [
        f"| {label} | {_number(before, name)} | {_number(after, name)} |"
        for name, label in labels.items()
        if name in before and name in after
    ]
    if not rows:
        return f"The run was not evaluated after step {step}, so its held-out results are not known."
    head = ["| held-out questions | before | after |", "|---|---|---|"]
    return "\n".join([*head, *rows, "", "In brackets: 95 % confidence intervals."])


def _number(numbers: Mapping[str, float], name: str) -> str:
    """Return a share in per cent, a reward as it is, its confidence interval and what it leaves out, if it has them."""
    style = ".1%" if name.rpartition("/")[2] in EVALUATIONS else ".3f"
    ends = [f"{numbers[end]:{style}}" for end in (f"{name}_low", f"{name}_high") if end in numbers]
    number = f"{numbers[name]:{style}}" + (f" [{', '.join(ends)}]" if ends else "")
    missing = left_out(name, numbers)
    return f"{number}, {missing}" if missing else number
