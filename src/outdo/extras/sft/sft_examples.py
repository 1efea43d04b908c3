"""Read examples to fine-tune on, and encode them: their tokens, and which of these are learned."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.data.files import Fault, Rows, read_rows, shorten
from outdo.data.formats import Text, as_messages, tools_of
from outdo.extras.sft.conversations import encode_conversation
from outdo.extras.sft.sft_formats import SftFormat, detect_format
from outdo.models.prompt_encoding import encode_continuation, encode_prompt, encode_text
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SftExample:
    """What is given, and what is learned: text, or messages of which the assistant's are learned."""

    where: str  # names the row in errors
    prompt: Text  # "" or () if everything is in `completion`
    completion: Text
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SftTokens:
    """The tokens of an example. At least one of them is learned, and it is not the first."""

    token_ids: tuple[int, ...]
    learned: tuple[bool, ...]


def read_examples(
    path: str, *, prompt: str | None = None, answer: str | None = None
) -> tuple[list[SftExample], list[str]]:
    """Read the examples of a file or data set; return them, and notes for the user on how they are read.

    `prompt` and `answer` name columns that are not found by their names. Raises `UserError` with every faulty row.
    """
    return examples_in(read_rows(path), prompt=prompt, answer=answer)


def examples_in(
    rows: Rows, *, prompt: str | None = None, answer: str | None = None
) -> tuple[list[SftExample], list[str]]:
    """Do the same as `read_examples` with rows that have been read."""
    path = rows.source
    if not rows.values:
        raise UserError(shorten([f"{path}, row {fault.row}: {fault.reason}" for fault in rows.faults], source=path))
    form = detect_format(rows, prompt=prompt, answer=answer)
    faults = list(rows.faults)
    examples: list[SftExample] = []
    left_out = 0
    for number, row in rows.values.items():
        try:
            if not form.is_example(row):
                left_out += 1
                continue
            asked, learned = form.read(row)
            _refuse_weights(learned)
            examples.append(
                SftExample(where=f"{path}, row {number}", prompt=asked, completion=learned, tools=tools_of(row))
            )
        except ValueError as error:
            faults.append(Fault(number, str(error)))
    if faults:
        lines = [f"{path}, row {fault.row}: {fault.reason}" for fault in sorted(faults, key=lambda fault: fault.row)]
        raise UserError(shorten(lines, source=path))
    return examples, list(_notes(path, form, examples, left_out))


def _refuse_weights(learned: Text) -> None:
    """Raise `ValueError` if an answer is not to be learned, which OpenAI's format writes as `"weight": 0`."""
    if not isinstance(learned, str) and any(message.get("weight") == 0 for message in learned):
        raise ValueError('has a message with "weight": 0, and every answer of the assistant is learned: remove the row')


def _notes(path: str, form: SftFormat, examples: Sequence[SftExample], left_out: int) -> Iterator[str]:
    chat = any(not isinstance(part, str) for example in examples for part in (example.prompt, example.completion))
    kind = "conversational" if chat else "standard"
    yield f"{path}: {counted(len(examples), 'example')}; format: {form.name} ({kind}); learned: {form.learned}"
    if left_out:
        yield f"{path}: left out: {counted(left_out, 'answer')} labelled false"
    if with_tools := sum(bool(example.tools) for example in examples):
        yield f"{path}: {counted(with_tools, 'example')} with tools, which the chat template writes into the prompt"


# ------------------------------------------------------------------------------------------------------------ encoding


def encode_examples(
    examples: Sequence[SftExample],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template: str | None = None,
    end_ids: Collection[int] = (),
    special_tokens: bool = False,
    track: Callable[[Sequence[SftExample]], Iterable[SftExample]] = lambda examples: examples,
) -> list[SftTokens]:
    """Encode each example once; those of more than `max_tokens` tokens are left out, because a cut answer has no end.

    - Messages go through the chat template, and the assistant's are learned (`encode_conversation`).
    - A prompt and a completion of plain text are one question and one answer for a model with a chat template. Without
      one, or with `template`, the completion follows the prompt, and an end-of-sequence token follows the completion.
    - Of plain text without a prompt, every token but the first is learned, with an end-of-sequence token after it.
    - Special tokens in the texts are ordinary text, unless `special_tokens` is true.

    `track` shows how many of the examples are encoded. Raises `UserError` with every example that cannot be encoded, or
    if all of them are too long.
    """
    encoded: list[SftTokens] = []
    refused: list[str] = []
    for example in track(examples):
        try:
            ids, learned = _encode(example, tokenizer, template, end_ids, special_tokens)
        except ModelError as error:
            refused.append(str(error))
            continue
        if max_tokens is None or len(ids) <= max_tokens:
            encoded.append(SftTokens(token_ids=tuple(ids), learned=tuple(learned)))
    if not encoded and not refused:
        refused = [f"no example of {len(examples):,} fits into the model's context of {max_tokens} tokens"]
    if refused:
        raise UserError(shorten(refused, "examples"))
    return encoded


def messages_of(example: SftExample) -> list[Mapping[str, Any]]:
    """Return an example as a conversation; text is a question or an answer."""
    return [*as_messages(example.prompt, "user"), *as_messages(example.completion, "assistant")]


def _encode(
    example: SftExample,
    tokenizer: PreTrainedTokenizerBase,
    template: str | None,
    end_ids: Collection[int],
    special_tokens: bool,
) -> tuple[list[int], list[bool]]:
    prompt, completion, eos = example.prompt, example.completion, tokenizer.eos_token_id
    end: list[Any] = [] if eos is None else [eos]
    how: dict[str, Any] = {"special_tokens": special_tokens}
    if isinstance(completion, str) and not prompt:
        ids = encode_text(tokenizer, completion, **how)
        ids += end if ids[-len(end) :] != end else []
        if len(ids) < 2:
            raise ModelError(f"{example.where} has one token, which follows nothing and cannot be learned")
        return ids, [position > 0 for position in range(len(ids))]
    if isinstance(completion, str) and (template is not None or not tokenizer.chat_template):
        before = encode_prompt(tokenizer, prompt, template=template, tools=example.tools, where=example.where, **how)
        answer = [*encode_continuation(tokenizer, completion, **how), *end]
        return [*before, *answer], [False] * len(before) + [True] * len(answer)
    if template is not None:
        raise ModelError(f"{example.where} has messages, and a prompt template takes text; leave the template out")
    return encode_conversation(
        tokenizer,
        messages_of(example),
        first=len(as_messages(prompt, "user")),
        tools=example.tools,
        end_ids=end_ids,
        where=example.where,
        **how,
    )
