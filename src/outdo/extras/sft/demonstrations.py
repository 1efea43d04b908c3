"""The demonstrations of a run: answers of its rows, encoded as `outdo sft` encodes them."""

from outdo.config.recipe import Recipe
from outdo.data.formats import tools_of as tools_of_row
from outdo.extras.sft.conversations import encode_conversation
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_continuation, with_system
from outdo.rollouts.demonstrations import AnswerOf
from outdo.types import Prompt
from outdo.utils.errors import ModelError
from outdo.utils.text import text_or_json


def demonstrations_of(recipe: Recipe, policy: Policy) -> AnswerOf:
    """Return what encodes the demonstration of a question. It raises `ModelError` where the chat template refuses it.

    It is what `outdo sft` teaches: a text that follows the prompt with the end of an answer after it, or, with a chat
    template, what follows the prompt in the conversation that ends with the answer.
    """
    data, tokenizer = recipe.data, policy.tokenizer
    assert data.demonstrations is not None
    column, special = data.demonstrations.column, data.special_tokens

    def answer_of(prompt: Prompt) -> tuple[int, ...] | None:
        value = prompt.columns.get(column)
        if value in (None, ""):
            return None
        text = text_or_json(value)
        if data.prompt_template is not None or not tokenizer.chat_template:
            end = [token for token in [tokenizer.eos_token_id] if isinstance(token, int)]
            return (*encode_continuation(tokenizer, text, special_tokens=special), *end)
        where = f"the demonstration of question {prompt.id}"
        messages = [*with_system(prompt.text, data.system), {"role": "assistant", "content": text}]
        ids, _ = encode_conversation(
            tokenizer,
            messages,
            first=len(messages) - 1,
            tools=tools_of_row(prompt.columns),
            end_ids=policy.end_ids,
            special_tokens=special,
            where=where,
        )
        start = len(prompt.token_ids)
        if tuple(ids[:start]) != prompt.token_ids:
            raise ModelError(f"{where}: with the answer, the chat template writes another prompt")
        return tuple(ids[start:])

    return answer_of
