"""The prompts of questions that stay on disk."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial

from transformers import PreTrainedTokenizerBase

from outdo.data.prompts import InputsOf, ToolsOf, Track, prompt_of, short_enough
from outdo.data.questions import Question
from outdo.data.sequences import Lazy
from outdo.data.streaming import StreamedQuestions
from outdo.types import Prompt


class StreamedPrompts(Lazy[Prompt]):
    """The prompts of questions on disk: those at `places`, each read and tokenised by `encode` when it is asked for."""

    def __init__(
        self, questions: StreamedQuestions, places: Sequence[int], encode: Callable[[Question], Prompt]
    ) -> None:
        self.questions = questions
        self.places = places
        self.encode = encode

    def __len__(self) -> int:
        return len(self.places)

    def make(self, index: int) -> Prompt:
        """Read and tokenise the question at a place."""
        return self.encode(self.questions[self.places[index]])

    def by_id(self, own_id: str) -> Prompt:
        """Read and tokenise the question with an id. Raises KeyError if there is none."""
        return self.encode(self.questions.by_id(own_id))


def stream_prompts(
    questions: StreamedQuestions,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template: str | None = None,
    system: str | None = None,
    special_tokens: bool = False,
    overlong: str = "drop",
    tools: ToolsOf = lambda row: (),
    inputs: InputsOf = lambda row: {},
    track: Track = lambda questions: questions,
) -> StreamedPrompts:
    """Tokenise each question once, to find those that are too long; see `tokenise`. The others are not kept."""
    how = {"template": template, "system": system, "special_tokens": special_tokens}
    encode = partial(prompt_of, tokenizer=tokenizer, tools=tools, inputs=inputs, **how)
    prompts = short_enough(questions, encode, max_tokens, overlong=overlong, track=track)
    return StreamedPrompts(questions, array("Q", (index for index, _ in prompts)), encode)
