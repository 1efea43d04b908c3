"""`outdo env try`: play one episode of an environment, and show its tokens."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import typer

from outdo.cli.arguments import Settings
from outdo.cli.dry_run import in_one_process
from outdo.cli.recipe import probe_machine, recipe_of
from outdo.config.environments import row_environments
from outdo.models.token_text import TokenTexts
from outdo.run.assemble.assemble import assemble_run
from outdo.run.check.preflight import check
from outdo.run.display import Display
from outdo.types import Rollout, Sampled
from outdo.utils.errors import UserError
from outdo.utils.text import counted, excerpt, mark_invisible

BETWEEN = "│"
"""Stands between two tokens."""


def command(
    settings: Settings = None,
    *,
    question: Annotated[int, typer.Option(min=1, help="which question, in the order of training")] = 1,
) -> int:
    """Let the model of a recipe play one episode of its environment; print each turn with its tokens.

    `question` is its number in the order of training, from 1. Nothing is trained or written.

    Raises: UserError with every mistake of the recipe, also that it has no environment.
    """
    display, recipe = Display(), recipe_of(settings)
    if recipe.environment is None:
        raise UserError(["env try: the recipe has no `environment`; see `outdo train --dry-run` for single answers"])
    with display.working("checking the recipe"):
        report = check(recipe, probe=probe_machine)
    if report.errors:
        raise UserError(report.errors)
    for line in [*report.notes, *(f"warning: {warning}" for warning in report.warnings)]:
        display.say(line)
    one_episode = recipe.train.model_copy(update={"group_size": 1})
    recipe = in_one_process(recipe.model_copy(update={"train": one_episode}))
    run = assemble_run(recipe, facts=report.facts, questions=report.questions, display=display)
    try:
        policy, prompts = run.models.policy, run.data.prompts.take(question)[-1:]
        with display.working("playing one episode"):
            (group,) = Sampled.of(run.sampling.sampler(policy, prompts, step=1)).groups
    finally:
        run.close()
    prompt, text = group.prompt, TokenTexts(policy.tokenizer)
    if rows := row_environments(recipe.environment):
        display.say(f"environment: {rows.name_in(prompt.columns) or 'none, one answer'}")
    display.say(f"question {prompt.id}, {counted(len(prompt.token_ids), 'token')}:")
    display.say(excerpt("".join(text.pieces(prompt.token_ids))))
    (episode,) = group.rollouts
    for line in lines_of(episode, text.pieces(episode.token_ids, after=prompt.token_ids)):
        display.say(line)
    return 0


def lines_of(episode: Rollout, pieces: Sequence[str]) -> Iterator[str]:
    """Yield the tokens of an episode, a line for each part that one side wrote, and how it ended."""
    turn = start = 0
    for sampled, group in groupby(episode.loss_mask):
        end = start + len([*group])
        turn += sampled
        who = f"turn {turn}, policy: {counted(end - start, 'token')}, trained" if sampled else _read(end - start)
        rewards = episode.token_rewards[start:end] if episode.token_rewards else ()
        yield who + (f", reward {sum(rewards):g}" if any(rewards) else "")
        yield BETWEEN.join(mark_invisible(piece).replace("\n", "") for piece in pieces[start:end])
        start = end
    reward = f"reward {episode.reward:g}" if episode.scored else episode.status
    right = {True: ", right", False: ", wrong", None: ""}[episode.right]
    counts = "".join(f", {name} {count}" for name, count in episode.counts.items() if count)
    yield f"the episode: {reward}{right}, ended by {episode.finish_reason}{counts}"


def _read(tokens: int) -> str:
    return f"environment: {counted(tokens, 'token')}, read and not trained"
