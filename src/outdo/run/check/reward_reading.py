"""What `outdo check` says of texts that rewards look for, and that no completion of the model has."""

from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from outdo.config.recipe import Recipe
from outdo.models.completion_text import completion_text, left_out
from outdo.rewards.matchers import MATCHERS
from outdo.utils.errors import UserError
from outdo.utils.imports import source_file, split

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""What `format` wants, and what tells matchers where the answer is."""


def lost_texts(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield a sentence for each text that a reward of the recipe looks for, and that no completion has.

    `format` needs its tags; a matcher is wrong only if a tag is a token that is left out; of a user's function the
    special tokens that its file names are looked up.
    """
    frame = left_out(tokenizer)
    for reward in recipe.rewards:
        if reward.name == "format":
            read = {tag: completion_text(tokenizer, tokenizer.encode(tag, add_special_tokens=False)) for tag in TAGS}
            for tag, text in read.items():
                if tag not in text:
                    yield f"rewards.format: no answer can earn it: a completion has {text!r} in place of {tag}"
        elif reward.name in MATCHERS:
            for tag in TAGS:
                if tag in frame:
                    yield f"rewards.{reward.name}: {tag} ends or frames messages here, so that no completion has it"
        elif source := _source(reward.name):
            for token in frame:
                if token in source:
                    yield f"rewards: {reward.name} names {token}, which frames messages, so that no completion has it"


def _source(name: str) -> str:
    """Return the source of a user's function; empty if it is not in a file."""
    try:
        where, _ = split(name)
        return source_file(where).read_text(encoding="utf-8", errors="replace")
    except (UserError, OSError):  # reported where the reward is loaded
        return ""
