"""Nothing of a conversation vanishes: what a chat template leaves out is refused, or named."""

import pytest
from template_cases import CONVERSATIONS, TEMPLATES, tokenizer_with

from outdo.extras.sft.conversations import encode_conversation
from outdo.models.conversation_notes import conversation_notes, loses_thinking, text_of_its_own
from outdo.models.prompt_encoding import encode_prompt, render
from outdo.models.written_messages import LeftOut, left_out
from outdo.utils.errors import ModelError

SYSTEM, CALLS, ANSWER = "the system message", "calls in message 2 (role assistant)", "message 2 (role assistant)"
REFUSED: dict[tuple[str, str], str] = {
    **{(name, kind): SYSTEM for name in ("no system", "users alone") for kind in CONVERSATIONS if "system" in kind},
    **{(name, "calls"): CALLS for name in TEMPLATES if "{{ call" not in TEMPLATES[name]},
    **{("users alone", kind): ANSWER for kind in ("history", "thinking", "thinking beside", "late system")},
    ("users alone", "developer"): "message 1 (role developer)",
    **{
        (name, "prefill"): "refused it" for name in ("users alone", "loud")
    },  # by transformers, which cannot continue what is not there
}
THINKING = "leaves out the thinking of earlier turns"
DOUBTFUL: dict[tuple[str, str], str] = {
    ("drops thinking", "thinking"): THINKING,
    **{(name, "thinking beside"): THINKING for name in TEMPLATES if "reasoning_content" not in TEMPLATES[name]},
    ("system in front", "late system"): "writes a message of the role system before messages that precede it",
    ("system in the user's turn", "late system"): 'writes the role "system" as it writes any word',
    **{(name, "developer"): 'writes the role "developer" as it writes any word' for name in TEMPLATES},
}


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_each_template_with_each_conversation(template: str, kind: str) -> None:
    tokenizer, messages = tokenizer_with(template), CONVERSATIONS[kind]
    if reason := REFUSED.get((template, kind)):
        with pytest.raises(ModelError) as refused:
            encode_prompt(tokenizer, messages)
        assert reason in str(refused.value)
        return
    encode_prompt(tokenizer, messages)
    doubtful = conversation_notes(tokenizer, messages)
    expected = DOUBTFUL.get((template, kind))
    assert len(doubtful) == (expected is not None)
    assert expected is None or doubtful[0].startswith(expected)


@pytest.mark.parametrize("template", ["whole", "own system", "drops thinking"])
def test_the_beginning_of_an_answer_is_continued_as_trl_does(template: str) -> None:
    tokenizer, messages = tokenizer_with(template), CONVERSATIONS["prefill"]
    expected = tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    text = tokenizer.decode(encode_prompt(tokenizer, messages))
    assert text == expected
    assert text.endswith("<|assistant|>Let me see. <think>\n")


def test_a_system_message_of_the_recipe_is_refused_as_one_of_a_row() -> None:
    with pytest.raises(ModelError, match="a question: the model's chat template leaves out the system message"):
        encode_prompt(tokenizer_with("no system"), "Hi", system="Be brief.", where="a question")


def test_a_reward_model_may_read_less_than_the_policy() -> None:
    assert encode_prompt(tokenizer_with("no system"), CONVERSATIONS["system"], whole=False)


@pytest.mark.parametrize(("kind", "reason"), [("system", SYSTEM), ("calls", CALLS)])
def test_a_conversation_that_is_learned_is_whole(kind: str, reason: str) -> None:
    learned = [*CONVERSATIONS[kind], {"role": "assistant", "content": "Three."}]
    with pytest.raises(ModelError) as refused:
        encode_conversation(tokenizer_with("no system"), learned)
    assert reason in str(refused.value)
    assert encode_conversation(tokenizer_with("whole"), learned)


def test_thinking_that_is_learned_and_not_written_is_counted() -> None:
    answer = {"role": "assistant", "content": "Three.", "reasoning_content": "I add them."}
    learned = [*CONVERSATIONS["question"], answer]
    assert loses_thinking(tokenizer_with("no system"), learned)
    assert not loses_thinking(tokenizer_with("whole"), learned)


def test_a_text_of_the_template_before_the_first_message_is_found() -> None:
    assert text_of_its_own(tokenizer_with("own system")) == "<|system|>You are helpful."
    assert {text_of_its_own(tokenizer_with(name)) for name in TEMPLATES if name != "own system"} == {""}


def test_a_bos_that_ends_like_a_turn_is_not_a_text_of_the_template() -> None:
    tokenizer = tokenizer_with("whole")
    tokenizer.bos_token = "<|begin|>"
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    assert text_of_its_own(tokenizer) == ""


def test_the_second_of_two_equal_messages_is_found_missing() -> None:
    tokenizer = tokenizer_with("whole")
    tokenizer.chat_template = "{% for m in messages[:1] %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    messages = [CONVERSATIONS["question"][0]] * 2

    def write(changed):
        return render(tokenizer, changed, (), "")

    assert LeftOut(1, "user", "text") in left_out(messages, write(messages), write)
