"""The command line. Each command imports what it needs when it runs, so that `outdo --help` starts at once."""

import itertools
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from outdo.trainer.display import Display
from outdo.utils.errors import OutdoError, UserError

if TYPE_CHECKING:
    from outdo.config.recipe import Recipe
    from outdo.data.questions import Question
    from outdo.trainer.preflight import Render

app = typer.Typer(
    help="Make a language model better than its past self: reinforcement learning with GRPO and its family.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Settings = Annotated[
    list[str] | None,
    typer.Argument(help="recipe.toml and key=value settings (optim.lr=2e-6)", show_default=False),
]
Profile = Annotated[bool, typer.Option("--profile", help="trace two steps, and say where all of them went")]
RunFolder = Annotated[Path, typer.Argument(help="the run folder")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value settings", show_default=False)]
RunOrModel = Annotated[str, typer.Argument(help="a run folder, a model folder or a hub name", show_default=False)]


@app.command()
def quickstart(
    *,
    folder: Annotated[Path, typer.Option(help="where models and the run go")] = Path("quickstart"),
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
) -> None:
    """Build a small model, warm-start it, and watch it improve itself on arithmetic."""
    from outdo.cli.quickstart.command import quickstart

    raise typer.Exit(quickstart(folder, seed=seed, display=Display()))


@app.command()
def check(settings: Settings = None) -> None:
    """Validate a recipe, its data and its reward, without loading the model."""
    from outdo.trainer.preflight import check, show

    recipe = _recipe(settings)
    report = check(recipe, render=_renderer(recipe), probe=_probe)
    show(report, Console())
    raise typer.Exit(UserError.exit_status if report.mistakes else 0)


@app.command()
def train(settings: Settings = None, profile: Profile = False) -> None:
    """Train by a recipe: outdo train recipe.toml model=DIR data.path=FILE.jsonl rewards=my_reward.py:score"""
    from outdo.config.recipe import run_folder
    from outdo.trainer.preflight import check

    recipe = _recipe(settings)
    folder = run_folder(recipe.run or _free_name(Path(recipe.model).name))
    report = check(recipe, probe=_probe)
    if report.mistakes:
        raise UserError(report.mistakes)
    display = Display()
    for note in [f"run folder: {folder}", *report.notes]:
        display.say(note)
    from outdo.trainer.run import start

    raise typer.Exit(start(recipe, folder, display, profile=profile))


@app.command()
def resume(run: RunFolder, settings: Overrides = None, profile: Profile = False) -> None:
    """Go on with a run that was stopped or killed, from its newest whole checkpoint."""
    from outdo.trainer.run import resume

    raise typer.Exit(resume(run, settings or [], Display(), profile=profile))


@app.command()
def sft(
    *,
    model: Annotated[str, typer.Argument(help="a model folder or a hub name")],
    data: Annotated[str, typer.Option(help="prompts and answers")],
    out: Annotated[Path, typer.Option(help="folder for the fine-tuned model")],
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="pairs per step")] = 32,
    lr: Annotated[float, typer.Option(min=0, help="learning rate")] = 1e-5,
    warmup: Annotated[int, typer.Option(min=0, help="steps in which it rises")] = 0,
    prompt: Annotated[str | None, typer.Option(help="prompt column (found by itself)")] = None,
    answer: Annotated[str | None, typer.Option(help="answer column (found by itself)")] = None,
    template: Annotated[str | None, typer.Option(help="prompt text for base models, with {prompt} in it")] = None,
    seed: Annotated[int, typer.Option(help="of the order of the pairs")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
) -> None:
    """Fine-tune a model on given answers."""
    from outdo.cli.sft import run_sft
    from outdo.models.optimiser import OptimiserSettings

    columns = {"prompt": prompt, "answer": answer, "template": template}
    optimiser = OptimiserSettings(lr=lr, warmup=warmup)
    run_sft(
        model, data, out, Display(), steps=steps, batch=batch, optimiser=optimiser, seed=seed, device=device, **columns
    )


@app.command(name="reward-model")
def reward_model(
    *,
    model: Annotated[str, typer.Argument(help="a language model or a reward model: folder or hub name")],
    data: Annotated[str, typer.Option(help="preference pairs, or rated answers")],
    out: Annotated[Path, typer.Option(help="folder for the reward model")],
    kind: Annotated[
        Literal["pairs", "scored", "regression"], typer.Option(help="what the data holds, and what is learnt of it")
    ] = "pairs",
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="pairs, or rated prompts, per step")] = 32,
    lr: Annotated[float, typer.Option(min=0, help="learning rate")] = 1e-5,
    warmup: Annotated[int, typer.Option(min=0, help="steps in which it rises")] = 0,
    holdout: Annotated[float, typer.Option(min=0, max=0.9, help="share of the prompts that is only ranked")] = 0.1,
    prompt: Annotated[str | None, typer.Option(help="prompt column (found by itself, as the others)")] = None,
    chosen: Annotated[str | None, typer.Option(help="column of the better answer")] = None,
    rejected: Annotated[str | None, typer.Option(help="column of the worse answer")] = None,
    completion: Annotated[str | None, typer.Option(help="column of a rated answer")] = None,
    reward: Annotated[str | None, typer.Option(help="column of its rating")] = None,
    template: Annotated[str | None, typer.Option(help="prompt text for base models, with {prompt} in it")] = None,
    seed: Annotated[int, typer.Option(help="of the new head, the held-out prompts and the order")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
) -> None:
    """Train a reward model on preferences or on rated answers."""
    from outdo.cli.reward_model import run_reward_model
    from outdo.models.optimiser import OptimiserSettings

    columns = {
        "prompt": prompt, "chosen": chosen, "rejected": rejected, "completion": completion, "reward": reward
    }  # fmt: skip
    optimiser = OptimiserSettings(lr=lr, warmup=warmup)
    run_reward_model(
        model, data, out, Display(), kind=kind, steps=steps, batch=batch, optimiser=optimiser, seed=seed, device=device,
        holdout=holdout, template=template, columns=columns,
    )  # fmt: skip


@app.command(name="eval")
def evaluate(
    *,
    model: RunOrModel,
    data: Annotated[str | None, typer.Option(help="questions; of a run: its held-out ones")] = None,
    against: Annotated[str | None, typer.Option(help="a second model, beside the first")] = None,
    rewards: Annotated[str | None, typer.Option(help="what says which answers are right; of a run: its own")] = None,
    k: Annotated[int, typer.Option(min=1, help="answers per question")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: the likeliest; unset: 0 for k=1, else 1")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only so many questions")] = None,
    template: Annotated[str | None, typer.Option(help="prompt text for base models, with {prompt} in it")] = None,
    seed: Annotated[int, typer.Option(help="of the sampling")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    rates: Annotated[Path | None, typer.Option(help="write each question's pass rate here, for data.select")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """How many questions a model gets right, and how sure that is."""
    from outdo.cli.evaluate import Arguments, run_eval

    asked = Arguments(
        data=data, rewards=rewards, k=k, temperature=temperature, max_tokens=max_tokens, limit=limit,
        template=template, seed=seed, device=device, rates=rates,
    )  # fmt: skip
    run_eval([model] if against is None else [model, against], asked, Console(), as_json=as_json)


@app.command()
def chat(
    *,
    model: RunOrModel,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest answer")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer")] = None,
    seed: Annotated[int, typer.Option(help="of the sampling")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
) -> None:
    """Talk to a model: a line in, an answer out, an empty line ends it."""
    from outdo.cli.chat import run_chat

    run_chat(model, Console(), temperature=temperature, max_tokens=max_tokens, seed=seed, device=device)


@app.command()
def explain(
    objective: Annotated[str, typer.Argument(help="a preset, or file.py:name")] = "grpo",
    *,
    old: Annotated[float | None, typer.Option(help="probability of the token when it was sampled")] = None,
    new: Annotated[list[float] | None, typer.Option(help="its probability now; may be given several times")] = None,
    ref: Annotated[float | None, typer.Option(help="under the reference; unset: as when it was sampled")] = None,
    advantage: Annotated[float, typer.Option(help="of its answer")] = 1.0,
    settings: Annotated[list[str] | None, typer.Option("--set", help="option of the objective: beta=0.02")] = None,
    group: Annotated[int, typer.Option(help="answers to the question")] = 1,
    length: Annotated[int, typer.Option(help="tokens of each")] = 1,
    example: Annotated[int | None, typer.Option(help="a worked example instead: 1, 2, 3 or 4")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw J and its gradient: .svg or .png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """What an objective does to one token: how fast, how much, and where it stops."""
    from outdo.cli.explain import Arguments, named_objective, run_example, run_explain

    if example is not None:
        run_example(example, Console(), picture=picture, as_json=as_json)
        return
    asked = Arguments(old=old, news=new or (), ref=ref, advantage=advantage, group=group, length=length)
    make = partial(named_objective, objective, settings or [], length=length)
    run_explain(objective, make, asked, Console(), picture=picture, as_json=as_json)


@app.command()
def config(
    schema: Annotated[bool, typer.Option("--schema", help="the JSON schema instead")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="every named piece and its options instead")] = False,
) -> None:
    """Print a commented recipe with every default."""
    from outdo.config import file
    from outdo.config.options import list_pieces

    if pieces:
        print("\n".join(list_pieces()))
        return
    print(json.dumps(file.schema(), indent=2) if schema else file.commented())


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="the run folder")],
    folder: Annotated[Path, typer.Argument(help="a new folder for the model")],
    best: Annotated[bool, typer.Option("--best", help="the best checkpoint instead of the newest")] = False,
) -> None:
    """Write a run's model as an ordinary model folder with a model card."""
    from outdo.trainer.export import export
    from outdo.trainer.find_model import find_model

    source = find_model(run, best=best)
    print(f"{source.name} is now in {export(source, folder)}")


@app.command()
def inspect(
    runs: Annotated[list[Path], typer.Argument(help="a run folder, or two side by side", show_default=False)],
    *,
    out: Annotated[Path | None, typer.Option(help="the file to write; unset: report.html in the run folder")] = None,
    step: Annotated[
        list[int] | None, typer.Option(help="a step whose tokens are shown, once for each; unset: those that tell most")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="two checkpoints that read the same answers: step_40 step_80")
    ] = None,
    serve: Annotated[
        bool | None, typer.Option("--serve/--file", help="follow the run in a browser; unset: while it is alive")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="of the server; 0: a free one")] = 0,
    terminal: Annotated[bool, typer.Option("--terminal", help="print one group of one step here instead")] = False,
    group: Annotated[int | None, typer.Option(min=0, help="the group that --terminal prints")] = None,
    by: Annotated[
        str | None, typer.Option(help="what colours its tokens: moved, ratio, advantage, ...", show_default=False)
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="groups of each step on the page; unset: as many as it has room for")
    ] = None,
) -> None:
    """Look at what was trained: every token, and whether it really moved."""
    from outdo.cli.inspect import run_inspect

    run_inspect(
        runs, display=Display(), out=out, steps=step or (), groups=groups, compare=compare, serve=serve, port=port,
        terminal=terminal, group=group, by=by,
    )  # fmt: skip


@app.command()
def doctor(
    run: Annotated[Path, typer.Argument(help="a run folder", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Say in sentences what went well in a run, what did not, and what to do."""
    from outdo.cli.report import run_doctor

    run_doctor(run, Console(), as_json=as_json)


@app.command()
def glossary(
    metric: Annotated[str | None, typer.Argument(help="unset: all of them", show_default=False)] = None,
) -> None:
    """Say what a metric is, when it is healthy, and what to do when it is not."""
    from outdo.cli.report import run_glossary

    run_glossary(metric, Console())


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="a run folder, or two together", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="a .png or .svg file")] = Path("curves.png"),
    metric: Annotated[
        list[str] | None, typer.Option(help="a metric to draw, once for each; unset: the usual ones")
    ] = None,
) -> None:
    """Draw a run's curves."""
    from outdo.cli.report import run_plot

    run_plot(runs, out, metric, Console())


def _recipe(settings: list[str] | None) -> "Recipe":
    """The recipe as the arguments have it; if it is wrong, what it names is looked over all the same."""
    from outdo.config.file import RecipeError, load
    from outdo.trainer.preflight import faults

    try:
        return load(*_recipe_and_overrides(settings))
    except RecipeError as error:
        others = faults(error.recipe, error.broken) if error.recipe else []
        raise UserError([*error.problems, *others]) from None


def _recipe_and_overrides(settings: list[str] | None) -> tuple[Path | None, list[str]]:
    """`[recipe.toml] [key=value ...]` apart from each other."""
    files = [each for each in settings or [] if "=" not in each]
    if len(files) > 1:
        raise UserError([f"{each}: expected key=value; the recipe is {files[0]}" for each in files[1:]])
    return Path(files[0]) if files else None, [each for each in settings or [] if "=" in each]


def _free_name(model: str) -> str:
    """A run's name that no folder in `runs/` has yet."""
    from outdo.config.recipe import run_folder

    return next(name for n in itertools.count(1) if not run_folder(name := f"{model}-{n}").exists())


def _probe(recipe: "Recipe") -> list[str]:
    """What the pieces say against their options when they are made."""
    from outdo.trainer.build_method import piece_mistakes

    return piece_mistakes(recipe)


def _renderer(recipe: "Recipe") -> "Render":
    """Questions as the model will read them; the tokenizer is loaded when the first is asked for."""

    def render(question: "Question") -> str:
        from outdo.models.loading import load_tokenizer
        from outdo.models.prompt_encoding import encode_prompt

        tokenizer, data = load_tokenizer(recipe.model), recipe.data
        where = f"question {question.id}"
        ids = encode_prompt(tokenizer, question.text, template=data.template, system=data.system, where=where)
        return str(tokenizer.decode(ids))

    return render


def main() -> None:
    """Run a command; what the user can act upon is a message and an exit status, anything else a traceback."""
    try:
        app()
    except OutdoError as error:
        print(f"outdo: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
