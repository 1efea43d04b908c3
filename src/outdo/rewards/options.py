"""What a reward takes: arguments that belong to the completion, and options that are the same for all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal, get_args

from outdo.utils.errors import nearest
from outdo.utils.imports import Signature
from outdo.utils.options import MIB, NATURAL, POSITIVE, TABLE, TEXT, Check, is_text, is_url, option_mistakes
from outdo.utils.secrets import SecretPlace


class SignatureKind(StrEnum):
    """The signature of a reward function, with the parameter that identifies it."""

    trl = "completions"
    verl = "solution_str"
    verl_batch = "solution_strs"
    plain = "completion"
    cs336 = "response"

    @property
    def takes_batches(self) -> bool:
        """Whether one call gets all completions."""
        return self in (SignatureKind.trl, SignatureKind.verl_batch)


ARGUMENTS = {
    SignatureKind.trl: frozenset({"prompts", "completions", "completion_ids", "prefills", "answer"}),
    SignatureKind.verl: frozenset({"data_source", "solution_str", "ground_truth", "extra_info"}),
    SignatureKind.verl_batch: frozenset({"data_sources", "solution_strs", "ground_truths", "extra_infos"}),
    SignatureKind.plain: frozenset(
        {"prompt", "rendered_prompt", "prefill", "completion", "completion_ids", "sampled_ids", "messages", "answer"}
    ),
    SignatureKind.cs336: frozenset(
        {"prompt", "prefill", "response", "ground_truth", "completion_ids", "sampled_ids", "answer"}
    ),
}
"""Parameters that a function can always have, whatever columns the data has."""

Compare = Literal["none", "pairs", "group"]
"""How a judge compares the answers to a question."""


def _can_ask(limits: Any) -> bool:
    return isinstance(limits, Mapping) and not any(limits.get(name) == 0 for name in ("at_once", "timeout"))


CHECKS: Mapping[str, Mapping[str, Check]] = {
    "code": {
        "seconds": NATURAL,
        "memory": MIB,
        "tolerance": (lambda value: isinstance(value, int | float) and 0 <= value < 1, "a number from 0 to below 1"),
        "sandbox": TEXT,
    },
    "judge": {
        "url": (is_url, "an address such as https://api.openai.com/v1"),
        "model": (is_text, "the name of a model"),
        "rubric": (is_text, "the criteria, as text"),
        "compare": (lambda value: value in get_args(Compare), f"one of {', '.join(get_args(Compare))}"),
        "scale": POSITIVE,
        "request": TABLE,
        "limits": (_can_ask, "a table with at_once and timeout above 0"),
        "price": TABLE,
    },
}
"""The options of built-in rewards whose defaults do not tell which values they accept."""

TABLES = {"judge": {"limits": "outdo.extras.judge.limits:JudgeLimits", "price": "outdo.extras.judge.reward:Price"}}
"""The options of built-in rewards that are tables, and the code whose parameters are the options in them."""


def kind_of(signature: Signature) -> SignatureKind | None:
    """Return the kind of signature that the names of the parameters identify; None if it is none."""
    return next((kind for kind in SignatureKind if kind.value in signature.parameters), None)


def reward_mistakes(
    name: str, options: Mapping[str, Any], signature: Signature, *, builtin: bool = False
) -> Iterator[str]:
    """Yield what is wrong with the options of a reward. What is read from the place of a secret is text.

    A parameter without a default that is no option may be a column of the data, if the function is the user's.
    """
    kind = kind_of(signature)
    given = dict.fromkeys(ARGUMENTS[kind] if kind else (), "it belongs to the completion")
    takes = signature.without(given) if kind else signature
    secrets = {option: "" for option, value in options.items() if SecretPlace.of(value)}
    checks = CHECKS.get(name, {}) if builtin else {}
    yield from option_mistakes(
        f"rewards.{name}" if name.isidentifier() else f'rewards."{name}"',
        name,
        {**options, **secrets},
        takes if builtin else replace(takes, required=()),
        own=not builtin,
        checks={option: check for option, check in checks.items() if option not in secrets},
        tables=TABLES.get(name, {}) if builtin else {},
        given=given,
        hint=_beside_options,
    )


def _beside_options(key: str) -> str | None:
    option = key.rpartition(".")[2]
    similar = nearest(option, ("weight", "place"))
    return None if similar in (None, option) else f"did you mean {similar}?"
