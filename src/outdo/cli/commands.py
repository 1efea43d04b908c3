"""The commands of `outdo`: a table of names. A command is imported when it is called, or when its own help is shown."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from outdo.run.progress_bar import importing
from outdo.utils.extras import load_extra, missing_extra


class CommandRow(NamedTuple):
    """What `outdo --help` says of a command, and where its code is.

    The parameters of `function` are the arguments of the command. It returns the exit status; None is 0.
    """

    help: str
    function: str  # "module:function"
    resume: str | None = None  # "module:function" that continues what the command has left unfinished
    loads_torch: bool = False  # its import takes seconds
    foreign_options: bool = False  # it takes options that it does not declare as words


COMMANDS: Mapping[str, CommandRow] = {
    "quickstart": CommandRow(
        "Train a model by GRPO, and show what it answers before and after: a first run, which needs no settings.",
        "outdo.extras.quickstart.command:command",
        loads_torch=True,
    ),
    "check": CommandRow(
        "Check a recipe (the file with the settings of a run), its data and its rewards, without loading the model.",
        "outdo.cli.check:command",
    ),
    "convert": CommandRow(
        "Write the recipe for a configuration of TRL, verl or OpenRLHF; a script is run in a sandbox.",
        "outdo.extras.convert.command:command",
        foreign_options=True,
    ),
    "plan": CommandRow(
        "Plan a run on 1 to 10,000 GPUs: memory, seconds, cost, how to divide it, and what limits its speed.",
        "outdo.extras.plan.command:command",
    ),
    "train": CommandRow(
        "Train by a recipe: outdo train recipe.toml model=DIR data.path=FILE.jsonl rewards=my_reward.py:score",
        "outdo.cli.train:command",
    ),
    "resume": CommandRow(
        "Continue a run, or an unfinished sft or reward-model, from its latest complete checkpoint.",
        "outdo.cli.resume:command",
        loads_torch=True,
    ),
    "sft": CommandRow(
        "Fine-tune a model on given answers (supervised fine-tuning).",
        "outdo.extras.sft.command:command",
        resume="outdo.extras.sft.command:resume_sft",
        loads_torch=True,
    ),
    "reward-model": CommandRow(
        "Train a reward model on preferences or on rated answers.",
        "outdo.extras.reward_models.command:command",
        resume="outdo.extras.reward_models.command:resume_reward_model",
        loads_torch=True,
    ),
    "eval": CommandRow(
        "Measure how many questions a model answers right, and its mean reward, with confidence intervals.",
        "outdo.cli.evaluate:command",
        loads_torch=True,
    ),
    "generate": CommandRow("Answer a file of prompts.", "outdo.cli.generate:command", loads_torch=True),
    "chat": CommandRow(
        "Talk to a model, line by line; an empty line ends the conversation.",
        "outdo.cli.chat:command",
        loads_torch=True,
    ),
    "explain": CommandRow(
        "Show how an objective changes the probability of one token: its gradient, and where it stops.",
        "outdo.extras.explain.command:command",
        loads_torch=True,
    ),
    "config": CommandRow("Print a commented recipe with every default.", "outdo.cli.config:command"),
    "export": CommandRow(
        "Write the model of a run as an ordinary model folder with a model card; of a run with an adapter, the "
        "adapter.",
        "outdo.cli.export:command",
        loads_torch=True,
    ),
    "cluster check": CommandRow(
        "Check the processes and machines of a run, without loading the model; also started by torchrun.",
        "outdo.extras.replicas.cluster_command:command",
    ),
    "env try": CommandRow(
        "Play one episode of the recipe's environment, and show its tokens: which are trained, and which are read.",
        "outdo.extras.episodes.command:command",
        loads_torch=True,
    ),
    "inspect": CommandRow(
        "Show what was trained: every token, and whether its probability moved the way that the rewards push it.",
        "outdo.extras.page.command:command",
    ),
    "runs": CommandRow("List runs: state, step, latest accuracy or reward, size, age.", "outdo.cli.runs:command"),
    "compare": CommandRow(
        "Compare runs: the settings in which they differ, and their last metrics; or metrics with ranges in a file.",
        "outdo.extras.page.compare_command:command",
    ),
    "doctor": CommandRow(
        "Diagnose runs: what went well, what did not, why, and what to do. Or the installed packages.",
        "outdo.extras.doctor.command:command",
    ),
    "track": CommandRow(
        "Send a run to trackers, as a new run there: one that has ended, or one that goes on.",
        "outdo.extras.trackers.command:command",
    ),
    "glossary": CommandRow(
        "Explain a metric or a word on the screen: what it means, which values are healthy, and what to do otherwise.",
        "outdo.extras.page.glossary_command:command",
    ),
    "plot": CommandRow("Draw the curves of a run.", "outdo.extras.page.plot_command:command"),
}
"""The commands by what is typed, in the order of `outdo --help`. The first of two words is a group's."""

GROUPS: Mapping[str, str] = {
    "cluster": "Several processes and machines.",
    "env": "Environments: episodes of several turns.",
}
"""What `outdo --help` says of the groups."""


class LazyCommand(TyperCommand):
    """A command of the table, imported when its arguments are read; hidden if its extra was deleted."""

    def __init__(self, typed: str, row: CommandRow) -> None:
        super().__init__(typed.split()[-1], help=row.help, hidden=missing_extra(row.function, typed) is not None)
        self.typed, self.row = typed, row

    def loaded(self) -> TyperCommand:
        """Return the command with its arguments. Raises `UserError` if its extra, or a package for it, is missing."""
        with importing() if self.row.loads_torch else nullcontext():
            function = load_extra(self.row.function, self.typed)
        program = typer.Typer(add_completion=False)
        settings = {"ignore_unknown_options": self.row.foreign_options}
        program.command(self.name, help=self.help, context_settings=settings)(function)
        command = typer.main.get_command(program)
        assert isinstance(command, TyperCommand)
        return command

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments as the command itself does."""
        return self.loaded().make_context(*arguments, **options)


class AllCommands(TyperGroup):
    """The commands of the table, and their groups. A group is hidden if all its commands are."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        groups: dict[str, TyperGroup] = {}
        for typed, row in COMMANDS.items():
            command, (name, *inside) = LazyCommand(typed, row), typed.split()
            if not inside:
                self.add_command(command)
                continue
            if name not in groups:
                groups[name] = TyperGroup(name=name, help=GROUPS[name], no_args_is_help=True, hidden=True)
                self.add_command(groups[name])
            groups[name].add_command(command)
            groups[name].hidden = groups[name].hidden and command.hidden
