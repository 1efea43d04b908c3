"""The standard formats of data to fine-tune on: which one a file has, and what each of its rows holds.

The formats and their names are those of TRL's documentation, "Dataset formats and types", besides Alpaca and ShareGPT.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from outdo.data.files import Rows
from outdo.data.formats import (
    CONVERSATION_COLUMNS,
    Message,
    Row,
    Text,
    alpaca_prompt,
    as_messages,
    is_conversation,
    label_of,
    text_of,
)
from outdo.data.questions import ANSWER_COLUMNS, PROMPT_COLUMNS
from outdo.utils.errors import UserError, did_you_mean

COMPLETION_COLUMNS = ("completion", *ANSWER_COLUMNS)

Read = Callable[[Row], tuple[Text, Text]]
"""Returns the prompt and the completion of a row; raises `ValueError` with the reason if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftFormat:
    """A format of data to fine-tune on."""

    name: str
    learned: str  # what of a row is learned, for the user
    read: Read
    is_example: Callable[[Row], bool] = lambda row: True  # False: the row is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The columns of a file that its format depends on; None where there is none."""

    rows: Rows
    question: str | None
    completion: str | None
    conversation: str | None

    def has(self, *columns: str) -> bool:
        """Return whether the file has all of these columns."""
        return all(column in self.rows.columns for column in columns)

    def holds_conversations(self, column: str) -> bool:
        """Return whether any row has a list of messages in this column."""
        return any(is_conversation(row.get(column)) for row in self.rows.values.values())


def detect_format(rows: Rows, *, prompt: str | None = None, answer: str | None = None) -> SftFormat:
    """Return the format of a file by the names of its columns, or that of the named columns.

    Raises `UserError` if a named column does not exist, or if nothing in the file can be learned.
    """
    names = rows.columns
    listed = f"(columns: {', '.join(names[:20])})"
    mistakes = [
        f'{rows.source}: no column "{name}" (given by --{role}){did_you_mean(name, names)} {listed}'
        for role, name in (("prompt", prompt), ("answer", answer))
        if name is not None and name not in names
    ]
    if mistakes:
        raise UserError(mistakes)
    question = prompt or _first(PROMPT_COLUMNS, names)
    completion = answer or _first(COMPLETION_COLUMNS, [name for name in names if name != question])
    conversation = _first(CONVERSATION_COLUMNS, names)
    columns = Found(rows=rows, question=question, completion=completion, conversation=conversation)
    known = (_named_columns,) if prompt or answer else FORMATS
    form = next(filter(None, (detect(columns) for detect in known)), None)
    if form is None:
        missing = "answers to learn; name it: --answer NAME" if question else "prompts; name it: --prompt NAME"
        raise UserError([f"{rows.source}: no column looks like the {missing} {listed}"])
    return form


def _preference(columns: Found) -> SftFormat | None:
    if not columns.has("chosen", "rejected"):
        return None
    learned = "the chosen answers"
    if columns.question is not None and columns.question != columns.conversation:
        return SftFormat(name="preference", learned=learned, read=_pair(columns.question, "chosen"))
    read = _last_turn_of_chosen if columns.holds_conversations("chosen") else _after_common_text
    return SftFormat(name="preference, implicit prompt", learned=learned, read=read)


def _unpaired_preference(columns: Found) -> SftFormat | None:
    labelled = any(label_of(row) is not None for row in columns.rows.values.values())
    if columns.question is None or not columns.has("completion") or not labelled:
        return None
    read = _pair(columns.question, "completion")
    return SftFormat(name="unpaired preference", learned="answers labelled true", read=read, is_example=_is_good)


def _alpaca(columns: Found) -> SftFormat | None:
    is_alpaca = columns.has("instruction", "output")
    return SftFormat(name="Alpaca", learned="output", read=_read_alpaca) if is_alpaca else None


def _conversation(columns: Found) -> SftFormat | None:
    column = columns.conversation
    if column is None or (columns.question != column and columns.completion is not None):
        return None
    first = next(row[column] for row in columns.rows.values.values() if column in row)
    name = "ShareGPT" if is_conversation(first) and "from" in first[0] else "language modeling"
    return SftFormat(name=name, learned=f"the assistant's turns in {column}", read=_whole(column))


def _prompt_completion(columns: Found) -> SftFormat | None:
    question, completion = columns.question, columns.completion
    if question is None or completion is None:
        return None
    return SftFormat(name="prompt-completion", learned=completion, read=_pair(question, completion))


def _language_modeling(columns: Found) -> SftFormat | None:
    if columns.question is not None or not columns.has("text"):
        return None
    return SftFormat(name="language modeling", learned="text", read=_plain_text)


FORMATS = (_preference, _unpaired_preference, _alpaca, _conversation, _prompt_completion, _language_modeling)
"""In the order in which they are tried."""


def _named_columns(columns: Found) -> SftFormat | None:
    """Return the format of columns that the user has named."""
    column = columns.completion
    if column is not None and columns.question in (None, columns.conversation) and columns.holds_conversations(column):
        return SftFormat(name="language modeling", learned=f"the assistant's turns in {column}", read=_whole(column))
    return _prompt_completion(columns)


# ---------------------------------------------------------------------------------------------------- reading of a row


def _is_good(row: Row) -> bool:
    label = label_of(row)
    if label is None:
        raise ValueError(f'column "label" is {row.get("label")!r}, expected true or false, as in other rows')
    return label


def _pair(question: str, completion: str) -> Read:
    def read(row: Row) -> tuple[Text, Text]:
        prompt, learned = _text(row, question), _text(row, completion)
        if question == "instruction":
            prompt = alpaca_prompt(row) or prompt
        if _system(row) is not None:
            prompt = _with_system(row, as_messages(prompt, "user"))
        if isinstance(learned, str):
            return _same_kind(prompt, learned)
        return _same_kind(*_split_at_prompt(as_messages(prompt, "user"), learned, completion))

    return read


def _whole(column: str) -> Read:
    def read(row: Row) -> tuple[Text, Text]:
        messages = _text(row, column)
        if isinstance(messages, str) or not any(message["role"] == "assistant" for message in messages[1:]):
            raise ValueError(f'column "{column}" has no answer by the assistant')
        return (), _with_system(row, messages)

    return read


def _read_alpaca(row: Row) -> tuple[Text, Text]:
    """Read Alpaca's columns, and those of LLaMA-Factory's variant: `system`, and `history`, pairs of earlier turns."""
    prompt = alpaca_prompt(row) or _text(row, "instruction")
    history = row.get("history") or []
    if not all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in history):
        raise ValueError('column "history" is not a list of pairs [question, answer]')
    if not history and _system(row) is None:
        return prompt, _text(row, "output")
    turns = [(("user", str(asked)), ("assistant", str(answered))) for asked, answered in history]
    messages = [{"role": role, "content": text} for turn in turns for role, text in turn]
    conversation = _with_system(row, (*messages, {"role": "user", "content": prompt}))
    return _same_kind(conversation, _text(row, "output"))


def _plain_text(row: Row) -> tuple[Text, Text]:
    return "", _text(row, "text")


def _last_turn_of_chosen(row: Row) -> tuple[Text, Text]:
    _, messages = _whole("chosen")(row)
    if messages[-1]["role"] != "assistant":  # type: ignore[index]
        raise ValueError('column "chosen" does not end with an answer by the assistant')
    return messages[:-1], messages[-1:]


def _after_common_text(row: Row) -> tuple[Text, Text]:
    prompt, chosen, _ = split_common(str(_text(row, "chosen")), str(_text(row, "rejected")))
    return prompt, chosen


def split_common(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Split two texts into their common beginning, which is the prompt, and the rest of each.

    The border is the last white space before they differ: a word is never cut. Raises `ValueError` if nothing is left
    on one side.
    """
    same = next((at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    same = min(len(chosen), len(rejected)) if same is None else same
    border = max((at + 1 for at in range(same) if chosen[at].isspace()), default=0)
    prompt, rests = chosen[:border].rstrip(" "), (chosen[border:], rejected[border:])
    spaces = chosen[len(prompt) : border]
    if not prompt.strip() or not all(rest.strip() for rest in rests):
        raise ValueError('the columns "chosen" and "rejected" have no common beginning, followed by two answers')
    return prompt, spaces + rests[0], spaces + rests[1]


def _text(row: Row, column: str) -> Text:
    """Return a column as text or messages; a number is text too. Raises `ValueError` with the reason if it is empty."""
    value = row.get(column)
    if value is None:
        raise ValueError(f'column "{column}" is null' if column in row else f'no column "{column}"')
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    try:
        text = text_of(value)
    except ValueError as error:
        raise ValueError(f'column "{column}" {error}') from None
    if isinstance(text, str) and not text.strip():
        raise ValueError(f'column "{column}" is empty')
    return text


def _same_kind(prompt: Text, completion: Text) -> tuple[Text, Text]:
    """Return both as text, or both as messages: text is one message."""
    if isinstance(prompt, str) and isinstance(completion, str):
        return prompt, completion
    messages, learned = as_messages(prompt, "user"), as_messages(completion, "assistant")
    if not any(message["role"] == "assistant" for message in learned):
        raise ValueError("the completion has no message by the assistant")
    return messages, learned


def _split_at_prompt(
    prompt: Sequence[Message], completion: Sequence[Message], column: str
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the prompt, and a completion without the messages of the prompt, which preference data repeats in it.

    A system message that only one of both has belongs to the prompt. Raises `ValueError` if the completion begins with
    another question.
    """
    read, learned = tuple(prompt), tuple(completion)
    (first, asked), (second, answered) = map(_after_system, (read, learned))
    same_system = not first or not second or _are_alike(first, second)
    if same_system and _are_alike(answered[: len(asked)], asked):
        return (*(first or second), *asked), answered[len(asked) :]
    if learned[0]["role"] == "system" or learned[0]["role"] == read[-1]["role"] == "user":
        raise ValueError(f'column "{column}" begins with other messages than the prompt')
    return read, learned


def _after_system(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the system message, if there is one, and the other messages."""
    start = int(messages[0]["role"] == "system")
    return messages[:start], messages[start:]


def _are_alike(first: Sequence[Message], second: Sequence[Message]) -> bool:
    """Return whether messages are the same but for white space around their texts."""
    contents = [[{**message, "content": message["content"].strip()} for message in part] for part in (first, second)]
    return contents[0] == contents[1]


def _system(row: Row) -> str | None:
    system = row.get("system")
    return system if isinstance(system, str) and system.strip() else None


def _with_system(row: Row, messages: Iterable[Message]) -> tuple[Message, ...]:
    system, messages = _system(row), tuple(messages)
    if system is None or messages[0]["role"] == "system":
        return messages
    return ({"role": "system", "content": system}, *messages)


def _first(names: Sequence[str], known: Collection[str]) -> str | None:
    return next((name for name in names if name in known), None)
