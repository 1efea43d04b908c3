"""The command line: every command with its arguments. A command imports what it needs only when it runs."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

import outdo
from outdo.cli.arguments import (
    Adapter,
    AsJson,
    BaseWeights,
    CheckpointEvery,
    Device,
    Engine,
    Limit,
    MaxTokens,
    OtherSettings,
    Overrides,
    Profile,
    Restarts,
    RunFolder,
    RunOrModel,
    Settings,
    Temperature,
    Template,
)
from outdo.cli.run_commands import app as run_commands
from outdo.trainer.display import Display
from outdo.trainer.progress_bar import importing
from outdo.utils.errors import OutdoError
from outdo.utils.not_deterministic import not_deterministic
from outdo.utils.out_of_memory import OUT_OF_MEMORY, is_out_of_memory
from outdo.utils.text import for_terminal
from outdo.utils.waiting_threads import wait_asleep

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


cluster = typer.Typer(no_args_is_help=True, help="Several processes and machines.")
app.add_typer(cluster, name="cluster")
env = typer.Typer(no_args_is_help=True, help="Environments: episodes of several turns.")
app.add_typer(env, name="env")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outdo {outdo.__version__}")
        raise typer.Exit


@app.callback()
def common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Improve a language model by reinforcement learning, with GRPO and its family."""


@app.command()
def quickstart(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING]...", help="settings of the run: cluster.replicas=2 ...")
    ] = None,
    *,
    task: Annotated[
        Literal["sentences", "sums", "calculator", "guessing", "programs"],
        typer.Option(
            help="sentences that meet constraints, by SmolLM2-135M-Instruct; or with a small model that is made here: "
            "sums in writing; products with a tool; a guessing game of several turns; programs in a sandbox"
        ),
    ] = "sentences",
    careless: Annotated[
        bool, typer.Option("--careless", help="sentences with a reward that forgets the topic: a hack, and its signs")
    ] = False,
    folder: Annotated[Path, typer.Option(help="folder for the data and the runs")] = Path("quickstart"),
    seed: Annotated[int, typer.Option(help="random seed of everything")] = 0,
    engine: Engine = None,
) -> None:
    """Train a model by GRPO, and show what it answers before and after: a first run, without a recipe of yours."""
    with importing():
        from outdo.cli.quickstart.command import run_quickstart

    status = run_quickstart(
        folder,
        task=task,
        careless=careless,
        seed=seed,
        display=Display(),
        engine=engine,
        overrides=settings or [],
    )
    raise typer.Exit(status)


@app.command()
def check(
    settings: Settings = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="exit with status 1 if there are warnings")] = False,
) -> None:
    """Check a recipe, its data and its rewards, without loading the model."""
    from outdo.cli.check import run_check

    raise typer.Exit(run_check(settings, Console(), strict=strict))


@app.command(context_settings={"ignore_unknown_options": True})
def convert(
    library: Annotated[Literal["trl", "verl", "openrlhf"], typer.Argument(show_default=False)],
    settings: OtherSettings,
    *,
    out: Annotated[Path, typer.Option(help="the recipe to write")] = Path("recipe.toml"),
    rows: Annotated[int | None, typer.Option(min=1, help="training questions, to turn epochs into steps")] = None,
    processes: Annotated[int, typer.Option(min=1, help="processes that TRL is started with")] = 1,
) -> None:
    """Write the recipe for a configuration of TRL, verl or OpenRLHF; a script is read and never run."""
    from outdo.cli.convert import run_convert

    raise typer.Exit(run_convert(library, settings, out, Console(), rows=rows, processes=processes))


@cluster.command(name="check")
def cluster_check(
    settings: Settings = None,
    *,
    timeout: Annotated[float, typer.Option(min=1, help="seconds in which the processes have to meet")] = 60.0,
) -> None:
    """Check the processes and machines of a run, without loading the model; also started by torchrun."""
    from outdo.cli.cluster import run_cluster_check

    raise typer.Exit(run_cluster_check(settings, Console(), timeout=timeout))


@app.command()
def plan(
    settings: Settings = None,
    *,
    gpus: Annotated[str, typer.Option(help="number and name of the devices: 8xH100")] = "1xH100",
    card: Annotated[
        list[str] | None, typer.Option(help="a number of the card: memory=141, price=2; may be given several times")
    ] = None,
    model: Annotated[str | None, typer.Option(help="7B, qwen2.5-7b or a folder; unset: the recipe's")] = None,
    answer_tokens: Annotated[float | None, typer.Option(min=1, help="mean length of an answer")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=0, help="mean length of a prompt")] = None,
    spread: Annotated[
        float | None, typer.Option(min=0.01, max=4, help="standard deviation of the logarithm of the lengths")
    ] = None,
    staleness: Annotated[int, typer.Option(min=0, max=64, help="updates by which an answer may be behind")] = 1,
    validation: Annotated[
        bool, typer.Option("--validate", help="compare predictions with published measurements instead")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan a run on 1 to 10,000 GPUs: memory, seconds, cost, the best split, and what binds."""
    from outdo.cli.plan import PlanArguments, run_plan, run_validation

    arguments = PlanArguments(
        gpus=gpus,
        card=card or [],
        model=model,
        answer_tokens=answer_tokens,
        prompt_tokens=prompt_tokens,
        spread=spread,
        staleness=staleness,
    )
    if validation:
        run_validation(settings, arguments, Console(), as_json=as_json)
        return
    run_plan(settings, arguments, Console(), as_json=as_json)


@env.command(name="try")
def env_try(
    settings: Settings = None,
    *,
    question: Annotated[int, typer.Option(min=1, help="which question, in the order of training")] = 1,
) -> None:
    """Play one episode of the recipe's environment, and show its tokens: which are trained, and which are read."""
    with importing():
        from outdo.cli.env import run_env_try

    raise typer.Exit(run_env_try(settings, Display(), question=question))


@app.command()
def train(
    settings: Settings = None,
    profile: Profile = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="sample and score one group, show it, and write nothing")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run if its folder holds one; needs `run`")
    ] = False,
    restarts: Restarts = 0,
) -> None:
    """Train by a recipe: outdo train recipe.toml model=DIR data.path=FILE.jsonl rewards=my_reward.py:score"""
    from outdo.cli.train import TrainArguments, run_train

    arguments = TrainArguments(profile=profile, dry_run=dry_run, resume=resume, restarts=restarts)
    raise typer.Exit(run_train(settings, Display(), arguments))


@app.command()
def resume(
    run: RunFolder,
    settings: Overrides = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="accept settings, data or code that make it another run")
    ] = False,
    profile: Profile = False,
    restarts: Restarts = 0,
) -> None:
    """Continue a run, or an unfinished sft or reward-model, from its latest complete checkpoint."""
    with importing():
        from outdo.cli.resume import run_resume

    status = run_resume(run, settings or [], Display(), changed=changed, profile=profile, restarts=restarts)
    raise typer.Exit(status)


@app.command()
def sft(
    *,
    model: Annotated[str, typer.Argument(help="a model folder, a .gguf file or a hub name")],
    data: Annotated[list[str], typer.Option(help="conversations, or prompts and answers; may be given several times")],
    weight: Annotated[
        list[float] | None, typer.Option(min=0.001, help="share of each --data in every batch; unset: by their sizes")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the fine-tuned model")],
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="examples per step")] = 32,
    lr: Annotated[float, typer.Option(min=0, help="learning rate")] = 1e-5,
    warmup: Annotated[int, typer.Option(min=0, help="steps of learning-rate warm-up")] = 0,
    prompt: Annotated[str | None, typer.Option(help="column of the prompts; unset: found by its name")] = None,
    answer: Annotated[str | None, typer.Option(help="column of the answers; unset: found by its name")] = None,
    template: Template = None,
    adapter: Adapter = None,
    base_weights: BaseWeights = "auto",
    seed: Annotated[int, typer.Option(help="random seed of the order of the examples, and of --adapter")] = 0,
    device: Device = "auto",
    checkpoint_every: CheckpointEvery = 100,
) -> None:
    """Fine-tune a model on given answers (supervised fine-tuning)."""
    with importing():
        from outdo.cli.sft import SftSettings, run_sft

    settings = SftSettings(
        model=model,
        data=data,
        weights=weight or (),
        steps=steps,
        batch=batch,
        lr=lr,
        warmup=warmup,
        seed=seed,
        device=device,
        prompt=prompt,
        answer=answer,
        template=template,
        adapter=adapter,
        base_weights=base_weights,
        checkpoint_every=checkpoint_every,
    )
    raise typer.Exit(run_sft(settings, out, Display()))


@app.command(name="reward-model")
def reward_model(
    *,
    model: Annotated[str, typer.Argument(help="a language model or a reward model: a folder, .gguf file or hub name")],
    data: Annotated[str, typer.Option(help="preference pairs, or rated answers")],
    out: Annotated[Path, typer.Option(help="folder for the reward model")],
    kind: Annotated[
        Literal["pairs", "scored", "regression"] | None,
        typer.Option(help="content of the data, and how it is learnt; unset: pairs or scored, by its columns"),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="pairs, or rated prompts, per step")] = 32,
    lr: Annotated[float, typer.Option(min=0, help="learning rate")] = 1e-5,
    warmup: Annotated[int, typer.Option(min=0, help="steps of learning-rate warm-up")] = 0,
    holdout: Annotated[float, typer.Option(min=0, max=0.9, help="share of the prompts held out as a test")] = 0.1,
    prompt: Annotated[str | None, typer.Option(help="column of the prompts; unset: found by its name")] = None,
    chosen: Annotated[str | None, typer.Option(help="column of the better answers; unset: found")] = None,
    rejected: Annotated[str | None, typer.Option(help="column of the worse answers; unset: found")] = None,
    completion: Annotated[str | None, typer.Option(help="column of the rated answers; unset: found")] = None,
    reward: Annotated[str | None, typer.Option(help="column of the ratings; unset: found")] = None,
    template: Template = None,
    adapter: Adapter = None,
    base_weights: BaseWeights = "auto",
    seed: Annotated[int, typer.Option(help="random seed of new weights, the held-out prompts and the order")] = 0,
    device: Device = "auto",
    checkpoint_every: CheckpointEvery = 100,
) -> None:
    """Train a reward model on preferences or on rated answers."""
    with importing():
        from outdo.cli.reward_model import RewardModelSettings, run_reward_model

    columns = {
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "completion": completion,
        "reward": reward,
    }
    settings = RewardModelSettings(
        model=model,
        data=data,
        kind=kind,
        steps=steps,
        batch=batch,
        lr=lr,
        warmup=warmup,
        holdout=holdout,
        columns=columns,
        template=template,
        adapter=adapter,
        base_weights=base_weights,
        seed=seed,
        device=device,
        checkpoint_every=checkpoint_every,
    )
    raise typer.Exit(run_reward_model(settings, out, Display()))


@app.command(name="eval")
def evaluate(
    *,
    model: RunOrModel,
    data: Annotated[
        list[str] | None, typer.Option(help="questions; may be given several times; unset: those held out by the run")
    ] = None,
    against: Annotated[str | None, typer.Option(help="a second model to compare with")] = None,
    rewards: Annotated[
        list[str] | None, typer.Option(help="a reward, as in a recipe; may be given several times; unset: the run's")
    ] = None,
    right: Annotated[
        str | None, typer.Option(help="the reward that decides which answers are right; unset: see eval.right")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="answers per question")] = 1,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    limit: Limit = None,
    template: Template = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    rates: Annotated[Path | None, typer.Option(help="write the pass rate of each question, for data.select")] = None,
    answers: Annotated[Path | None, typer.Option(help="write every answer with its rewards: a .jsonl file")] = None,
    engine: Engine = None,
    as_json: AsJson = False,
) -> None:
    """Measure how many questions a model answers right, and its mean reward, with confidence intervals."""
    with importing():
        from outdo.cli.evaluate import EvalArguments, run_eval

    arguments = EvalArguments(
        data=data or (),
        rewards=rewards or (),
        right=right,
        k=k,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        template=template,
        seed=seed,
        device=device,
        rates=rates,
        answers=answers,
        engine=engine,
    )
    models = [model] if against is None else [model, against]
    run_eval(models, arguments, Console(), as_json=as_json)


@app.command()
def generate(
    *,
    model: RunOrModel,
    data: Annotated[str, typer.Option(help="prompts, in the formats of data.path")],
    out: Annotated[Path, typer.Option(help="the .jsonl file to write, one line for each answer")],
    k: Annotated[int, typer.Option(min=1, help="answers per prompt")] = 1,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    limit: Limit = None,
    template: Template = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    engine: Engine = None,
) -> None:
    """Answer a file of prompts."""
    with importing():
        from outdo.cli.generate import GenerateArguments, run_generate

    arguments = GenerateArguments(
        data=data,
        out=out,
        k=k,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        template=template,
        seed=seed,
        device=device,
        engine=engine,
    )
    run_generate(model, arguments, Console())


@app.command()
def chat(
    *,
    model: RunOrModel,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy")] = 1.0,
    max_tokens: MaxTokens = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    engine: Engine = None,
) -> None:
    """Talk to a model, line by line; an empty line ends the conversation."""
    with importing():
        from outdo.cli.chat import run_chat

    run_chat(model, Console(), temperature=temperature, max_tokens=max_tokens, seed=seed, device=device, engine=engine)


@app.command()
def explain(
    objective: Annotated[str, typer.Argument(help="a preset, or file.py:name")] = "grpo",
    *,
    old: Annotated[float | None, typer.Option(help="probability of the token when it was sampled")] = None,
    new: Annotated[list[float] | None, typer.Option(help="its probability now; may be given several times")] = None,
    ref: Annotated[float | None, typer.Option(help="its probability under the reference; unset: as --old")] = None,
    advantage: Annotated[float, typer.Option(help="advantage of its answer")] = 1.0,
    settings: Annotated[list[str] | None, typer.Option("--set", help="option of the objective: beta=0.02")] = None,
    group: Annotated[int, typer.Option(help="number of answers to the question")] = 1,
    length: Annotated[int, typer.Option(help="tokens of each answer")] = 1,
    example: Annotated[int | None, typer.Option(help="print a worked example: 1, 2, 3 or 4")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw J and its gradient: .svg or .png")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what an objective does to one token: its gradient, its bounds, and where it stops."""
    with importing():
        from outdo.cli.explain import ExplainArguments, named_objective, run_example, run_explain

    if example is not None:
        run_example(example, Console(), picture=picture, as_json=as_json)
        return
    arguments = ExplainArguments(old=old, news=new or (), ref=ref, advantage=advantage, group=group, length=length)
    make = partial(named_objective, objective, settings or [], length=length)
    run_explain(objective, make, arguments, Console(), picture=picture, as_json=as_json)


@app.command()
def config(
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON schema instead")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="print every named piece and its options instead")] = False,
) -> None:
    """Print a commented recipe with every default."""
    from outdo.cli.config import run_config

    run_config(Console(), schema=schema, pieces=pieces)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="the run folder; with --merge also an adapter folder")],
    folder: Annotated[Path, typer.Argument(help="a new folder for the model")],
    *,
    best: Annotated[bool, typer.Option("--best", help="the best checkpoint instead of the newest")] = False,
    dtype: Annotated[
        Literal["source", "float32", "bfloat16", "float16"],
        typer.Option(help="dtype of the weights; source: that of the model that the run started from"),
    ] = "source",
    merge: Annotated[bool, typer.Option("--merge", help="merge the adapter into its base: a whole model")] = False,
    push: Annotated[str | None, typer.Option(help="also upload the folder to the Hub: owner/name")] = None,
    public: Annotated[bool, typer.Option("--public", help="create it for everybody; otherwise it is private")] = False,
    licence: Annotated[str | None, typer.Option("--license", help="the model's licence: apache-2.0, mit, ...")] = None,
) -> None:
    """Write the model of a run as an ordinary model folder with a model card; of a run with an adapter, the adapter."""
    with importing():
        from outdo.cli.export import Upload, run_export

    upload = Upload(name=push, public=public, licence=licence)
    run_export(run, folder, Console(), best=best, dtype=dtype, merge=merge, upload=upload)


app.add_typer(run_commands)


def main() -> None:
    """Run a command. An error that the user can fix is printed without a traceback, and sets the exit status."""
    if sys.platform == "win32":
        sys.exit("outdo: Windows is not supported; use Linux, macOS, or Linux on Windows (WSL)")
    wait_asleep()
    try:
        app(prog_name="outdo")  # also for `python -m outdo`
    except OutdoError as error:
        print(f"outdo: {for_terminal(str(error))}", file=sys.stderr)
        sys.exit(error.exit_status)
    except (MemoryError, RuntimeError) as error:
        reason = OUT_OF_MEMORY if is_out_of_memory(error) else not_deterministic(error)
        if reason is None:
            raise
        print(f"outdo: {for_terminal(reason)}", file=sys.stderr)
        sys.exit(OutdoError.exit_status)


if __name__ == "__main__":
    main()
