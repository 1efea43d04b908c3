"""`outdo sft`: fine-tune a model on given answers."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from outdo.cli.arguments import not_empty
from outdo.data.prompts import Mixture, Prompts
from outdo.data.sft_examples import SftExample, SftTokens, encode_examples, read_examples
from outdo.models.inspect_folder import inspect_folder
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.storage.model_folder import save_model_folder
from outdo.trainer.display import Display
from outdo.trainer.sft import sft
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import escape_control, excerpt


def run_sft(
    model: str,
    data: Sequence[str],
    out: Path,
    display: Display,
    *,
    weights: Sequence[float] = (),
    steps: int,
    batch: int,
    optimiser: OptimiserSettings,
    seed: int,
    device: str,
    prompt: str | None = None,
    answer: str | None = None,
    template: str | None = None,
) -> None:
    """Fine-tune a model on the examples of one or more files, and write it to a new folder.

    Raises `UserError` with every fault of the folders and the data, before the model is loaded.
    """
    sources, notes = _checked_data(model, data, out, weights, prompt, answer)
    for note in notes:
        display.say(escape_control(note))
    policy = Policy.load(model, device=device, optimiser=replace(optimiser, total=steps))
    encoded = [_encode(policy, examples, template, display) for examples in sources]
    display.say("the first example, as the model reads it; » and « enclose what is learned:")
    display.say(show_example(policy.tokenizer, encoded[0][0]))
    if not any(token in policy.end_ids for token in _learned(encoded[0][0])):
        display.say("note: no end-of-sequence token is learned in it, so the model does not learn to end its answers")
    if weights:
        examples: Prompts[SftTokens] = Mixture(encoded, weights, per_step=batch, seed=seed)
    else:
        examples = Prompts([example for source in encoded for example in source], per_step=batch, seed=seed)
    for step in display.track(sft(policy, examples, steps=steps), total=steps):
        if not display.live and (step.index % max(1, steps // 20) == 0 or step.index == steps):
            display.say(f"step {step.index}/{steps}  log-likelihood of a token {step.likelihood:.3f}")
    save_model_folder(out, policy.save)
    display.say(f"the fine-tuned model is in {out}")


def show_example(tokenizer: PreTrainedTokenizerBase, example: SftTokens) -> str:
    """Return an example as text, with » and « around what is learned; characters that do not print are escaped."""
    parts: list[str] = []
    for learned, tokens in groupby(zip(example.token_ids, example.learned, strict=True), key=lambda each: each[1]):
        text = excerpt(str(tokenizer.decode([token for token, _ in tokens])))
        parts.append(f"»{text}«" if learned else text)
    return "".join(parts)


def _checked_data(
    model: str, data: Sequence[str], out: Path, weights: Sequence[float], prompt: str | None, answer: str | None
) -> tuple[list[list[SftExample]], list[str]]:
    """Return the examples of each file, and notes on how they are read. Raises `UserError` with every fault."""
    mistakes: list[str] = []
    sources: list[list[SftExample]] = []
    notes: list[str] = []
    if problem := not_empty(out):
        mistakes.append(problem)
    if weights and len(weights) != len(data):
        mistakes.append(f"--weight: expected one for each --data, {len(data)}, or none; found {len(weights)}")
    try:
        inspect_folder(model)
    except ModelError as error:
        mistakes += str(error).splitlines()
    for path in data:
        try:
            examples, own_notes = read_examples(path, prompt=prompt, answer=answer)
            sources.append(examples)
            notes += own_notes
        except UserError as error:
            mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return sources, notes


def _encode(policy: Policy, examples: Sequence[SftExample], template: str | None, display: Display) -> list[SftTokens]:
    """Encode the examples of a file; print how many are too long for the model."""
    encoded = encode_examples(
        examples, policy.tokenizer, max_tokens=policy.context, template=template, end_ids=policy.end_ids
    )
    if left := len(examples) - len(encoded):
        longer = f"longer than the model's context of {policy.context} tokens"
        display.say(f"left out: {left:,} of {len(examples):,} examples, {longer}")
    return encoded


def _learned(example: SftTokens) -> list[int]:
    return [token for token, learned in zip(example.token_ids, example.learned, strict=True) if learned]
