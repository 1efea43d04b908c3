"""What `outdo check` warns of in questions and prompts: repetitions, leaks, and chat templates that do not fit."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from outdo.config.recipe import Recipe
from outdo.data.files import shorten
from outdo.data.splits import Questions, normalise, overlap
from outdo.data.streaming import hash_of, repeated
from outdo.models.inspect_folder import ModelFacts
from outdo.models.template_header import DATE, without_header
from outdo.models.template_source import draws, options_without_effect, reads_clock, sources_of
from outdo.rewards.overlong import overlong
from outdo.run.check.estimate import Sample
from outdo.utils.reward_names import KEPT_PROMPT, REWARD_MODEL
from outdo.utils.text import counted


def question_warnings(questions: Questions) -> Iterator[str]:
    """Yield a sentence if questions occur several times, and if held-out questions are also trained on."""
    train = questions.train
    hashes = numpy.fromiter(
        (hash_of(normalise(question.text)) for question in train), dtype=numpy.uint64, count=len(train)
    )
    again, first = repeated(hashes)
    if len(again):
        example = f"question {train[int(again[0])].id} is question {train[int(first[0])].id}"
        yield f"data.path: {len(again):,} of {counted(len(train), 'question')} repeat another one: {example}"
    if common := overlap(questions.train, questions.held_out):
        yield f"{common:,} of {counted(len(questions.held_out), 'held-out question')} are also trained on"


def longest_prompt(recipe: Recipe, facts: ModelFacts | None) -> int:
    """Return the tokens of the longest prompt that a run trains on: the answer needs room in the model's context."""
    context = facts.max_positions if facts else None
    asked = recipe.data.max_prompt_tokens
    return asked if context is None else min(asked, context - 1)


def overlong_prompts(sample: Sample, overlong: str, kind: str) -> tuple[list[str], list[str]]:
    """Return errors if prompts of a sample are refused or none is left, and a warning if some are left out.

    The longest prompt comes first. `kind` of questions: training or held-out.
    """
    worst = sorted(sample.too_long, key=lambda name: -sample.too_long[name])
    if not worst:
        return [], []
    looked_at = len(sample.tokens) + len(sample.beside)
    of_all = "" if looked_at == sample.of else f", of {sample.of:,} {kind} questions,"
    seen = f"{counted(looked_at, f'{kind} prompt')} looked at{of_all}"
    count = f"{len(worst):,} of {seen} are too long (data.max_prompt_tokens)"
    allowed = f"more than the {sample.longest:,} allowed"
    lines = [f"question {name}: its prompt has {sample.too_long[name]:,} tokens, {allowed}" for name in worst]
    if overlong == "refuse" or (sample.is_whole and not sample.kept):
        return shorten([f"{lines[0]}; {count}", *lines[1:]], "questions"), []
    return [], [f"{lines[0]}, and is left out; {count}"]


def context_warnings(recipe: Recipe, facts: ModelFacts | None, sample: Sample) -> Iterator[str]:
    """Yield a sentence if the model's context has no room for a prompt and `sampling.max_tokens`."""
    context, completion = facts.max_positions if facts else None, recipe.sampling.max_tokens
    if context is None or _longest_trained(recipe, sample) + completion <= context:
        return
    if sample.trained:
        yield (
            f"sampling.max_tokens = {completion}, after the longest prompt that was looked at, of "
            f"{counted(_longest_trained(recipe, sample), 'token')}, is more than the model's context of {context}: an "
            "answer ends at the end of the context"
        )
    else:
        yield (
            f"data.max_prompt_tokens + sampling.max_tokens = {recipe.data.max_prompt_tokens + completion} is more than "
            f"the model's context of {context}: prompts of more than {context - 1} tokens are left out, and an answer "
            "ends at the end of the context"
        )


def overlong_reward_warnings(recipe: Recipe, facts: ModelFacts | None, sample: Sample) -> Iterator[str]:
    """Yield a sentence for each reward `overlong` whose limit no answer reaches, because it is cut before."""
    prompt, context = _longest_trained(recipe, sample), facts.max_positions if facts else None
    rooms = {f"sampling.max_tokens = {recipe.sampling.max_tokens}": recipe.sampling.max_tokens}
    if context is not None:
        rooms[f"the model's context of {context}, after a prompt of {counted(prompt, 'token')}"] = context - prompt
    cut_by, room = min(rooms.items(), key=lambda limit: limit[1])
    for options in (recipe.options_of(reward) for reward in recipe.rewards if reward.name == "overlong"):
        limit, cache = options["max_tokens"], options.get("cache")
        if isinstance(limit, int) and isinstance(cache, int) and 0 < cache <= limit and room < limit:
            value = overlong("", range(max(0, room)), max_tokens=limit, cache=cache)
            yield (
                f"rewards.overlong.max_tokens = {limit}: no answer is as long; one that is cut at {cut_by}, gets "
                f"{value:g} and not -1"
            )


def _longest_trained(recipe: Recipe, sample: Sample) -> int:
    """Return the tokens of the longest prompt that was looked at and is trained on, or of the longest allowed."""
    return max(sample.trained, default=recipe.data.max_prompt_tokens)


def template_warnings(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence if the model's chat template is not used, if it does not know an option of the recipe, or if the
    model seems not to be trained with it.

    An answer ends with an end-of-sequence token. If the chat template never writes it, the model has probably not been
    trained on this template, and does not end its turns.
    """
    sources, end = [*map(without_header, chat_template_in(facts.folder))], _end_token(facts.folder)
    if not sources:
        return
    for name, why in options_without_effect(sources, recipe.data.chat_options):
        yield f"data.template.{name}: the model's chat template {why}"
    if recipe.data.prompt_template is not None:
        yield "data.template: replaces the model's own chat template; leave it out for a model that was trained to chat"
        return
    if draws(sources):
        yield "model: its chat template draws at random, so that prompts and runs cannot be repeated"
    stops = recipe.sampling.stop or _several_ends(facts.folder)
    written = "".join(sources)
    if end is not None and end not in written and "eos_token" not in written and not stops:
        yield (
            f"model: its chat template never writes its end-of-sequence token {end}, as in base models that were not "
            "trained to chat: set data.template, or sampling.stop if the template ends turns in another way"
        )


def template_does(by_question: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a sentence for each thing that the chat template does with prompts, `found` by the id of the question."""
    for does in dict.fromkeys(sentence for of_prompt in by_question.values() for sentence in of_prompt):
        affected = [name for name, of_prompt in by_question.items() if does in of_prompt]
        if len(affected) == len(by_question):
            yield f"the chat template {does}"
        else:
            of = f"{len(affected):,} of {counted(len(by_question), 'prompt')} looked at"
            yield f"the chat template {does}: in {of}, as in that of question {affected[0]}"


def date_notes(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence if the model's chat template writes the date, of which a run keeps the first."""
    template = chat_template_in(facts.folder)
    if recipe.data.prompt_template is None and DATE not in recipe.data.chat_options and reads_clock(template):
        yield (
            "model: its chat template writes the date; the run keeps that of its start, also for evaluation and export "
            f'(data.template.{DATE} = "2026-11-28" sets one)'
        )


def chat_option_faults(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence if the recipe has options for a chat template, and the model has none."""
    if recipe.data.chat_options and facts.folder is not None and not chat_template_in(facts.folder):
        yield "data.template: the model has no chat template, so that it has no options; for text write a string"


def episode_faults(recipe: Recipe, path: str, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence if a reward model cannot read the episodes of an environment: it reads them as messages."""
    folder = facts.adapter or facts.folder  # an adapter has its own tokenizer
    if recipe.environment is None or folder is None:
        return
    key, reads = f"rewards.{REWARD_MODEL}.path: {path}", "and reads an episode of several turns as messages"
    if "template" in _table(folder / "tokenizer_config.json").get(KEPT_PROMPT, {}):
        yield f"{key} was trained with a text template, {reads}: train one with a chat template"
    elif not chat_template_in(folder):
        yield f"{key} has no chat template, {reads}: give its tokenizer that of its training"


def chat_template_in(folder: Path | None) -> list[str]:
    """Return the texts of the chat template in a model folder: none, one, or several that have names."""
    if folder is None:
        return []
    file = folder / "chat_template.jinja"
    if file.is_file():
        return [file.read_text(encoding="utf-8", errors="replace")]
    return sources_of(_table(folder / "tokenizer_config.json").get("chat_template"))


def _end_token(folder: Path | None) -> str | None:
    token = _table(folder / "tokenizer_config.json").get("eos_token") if folder else None
    return token.get("content") if isinstance(token, dict) else token


def _several_ends(folder: Path | None) -> bool:
    """Return whether the model ends answers with one of several tokens, of which the tokenizer names only one."""
    ends = _table(folder / "generation_config.json").get("eos_token_id") if folder else None
    return isinstance(ends, list) and len(ends) > 1


def _table(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it is missing or no table, which is reported where it matters."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
