import functools
import re


def with_messages(function):
    """Give a reward function messages, as TRL does for this script: the rows that outdo reads are texts."""

    @functools.wraps(function)
    def score(*args, **given):
        for name, role in (("prompts", "user"), ("completions", "assistant")):
            if name in given:
                given[name] = [[{"role": role, "content": x}] if isinstance(x, str) else x for x in given[name]]
        return function(*args, **given)

    return score


def last_number(text):
    numbers = re.findall(r"-?[\d,]*\.?\d+", text)
    return numbers[-1].replace(",", "") if numbers else ""


@with_messages
def correct(completions, answer, **kwargs):
    return [float(last_number(c[0]["content"]) == last_number(a)) for c, a in zip(completions, answer, strict=True)]
