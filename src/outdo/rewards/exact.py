"""The reward `exact`: whether the final answer equals the reference, character by character."""

from typing import Any

from outdo.rewards.final_answer import after_cue, final_answer, reference_text


def exact(completion: str, answer: Any, prefill: str = "") -> bool:
    """Return True if the final answer equals the reference character by character, ignoring white space around both.

    The final answer is where `outdo.rewards.final_answer` finds it. At the end of a text it is what follows "the answer
    is" for the last time, else what follows the last `#` (`7+5=12#12`), or all of the text. The reference may be a
    worked solution that ends in `#### answer`.

    Raises:
        ValueError: there is no reference.
    """
    reference = reference_text(answer)
    return reference in final_texts(prefill + completion)


def final_text(completion: str) -> str | None:
    """Return the text that is the final answer of a completion; `None` if it has none."""
    return next(iter(final_texts(completion)), None)


def final_texts(completion: str) -> list[str]:
    """Return the texts that may be the final answer, the shortest first. Only the last of several statements counts."""
    final = final_answer(completion)
    if final is None:
        return []
    if final.stated:
        return [final.text]
    return [next(after_cue(final.text), final.text.rpartition("#")[2].strip()), final.text]
