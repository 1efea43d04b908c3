"""What `outdo check` warns of in rewards that read more than an answer and its row."""

import os
from collections.abc import Iterator
from pathlib import Path

from outdo.config.recipe import Recipe
from outdo.config.resume import reward_variables
from outdo.models.template_source import reads_clock
from outdo.rewards.limits import worker_environment
from outdo.run.check.prompt_warnings import chat_template_in
from outdo.utils.reward_names import REWARD_MODEL


def missing_variables(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence if rewards read environment variables that are set here and not passed on to their processes."""
    further = recipe.reward_limits.environment
    passed_on = worker_environment(os.environ, further)
    missing = sorted(name for name in reward_variables(recipe) if name in os.environ and name not in passed_on)
    if missing:
        named = ", ".join(f'"{name}"' for name in (*further, *missing))
        yield (
            f"rewards: {', '.join(missing)}: read by reward functions and set here, but their processes do not get it; "
            f"reward_limits.environment = [{named}] passes it on"
        )


def dated_reward_models(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each reward model whose values depend on the day, because its chat template writes it."""
    for reward in recipe.rewards:
        path = str(reward.options.get("path", ""))
        if reward.name == REWARD_MODEL and Path(path).is_dir() and reads_clock(chat_template_in(Path(path))):
            yield (
                f"rewards.{REWARD_MODEL}: the chat template of {path} writes today's date, on which its values depend; "
                "write a date into its template in place of strftime_now(...)"
            )
