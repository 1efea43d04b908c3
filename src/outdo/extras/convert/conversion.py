"""The settings of another library while they become a recipe, and what the rules of all libraries share.

The rules of a library read its settings from `Given` and put those of outdo into a `Conversion`. `account.py` runs
them, and sees to it that no setting is lost.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from outdo.config.messages import format_value, to_toml
from outdo.config.names import TRACKERS
from outdo.extras.convert.reading import CODE
from outdo.extras.convert.words import plain_value

TEXT_OR_LIST = ("report_to", "train_files", "val_files", "target_modules")
"""Last parts of settings that are a text or a list of them."""


NOT_COMPLETE = "not complete: "
"""What the text begins with that a recipe has where nobody knows the value: `outdo check` refuses it."""

RESULTS_COUNT = "in an episode with tools their results count there as well; overlong counts what the policy sampled"
"""What a penalty for long answers means elsewhere."""


class Given:
    """The settings of another library: those that are written down, over the library's defaults.

    It remembers which ones were read. A setting without a value and without a default is None.
    """

    def __init__(self, written: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.defaults = defaults
        self.written = {name: _number(value, defaults.get(name)) for name, value in written.items()}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.written.get(name, self.defaults.get(name))

    def changed(self, name: str) -> bool:
        """Return whether a setting is written down with another value than the default. This does not read it."""
        return name in self.written and self.written[name] != self.defaults.get(name)


@dataclass(kw_only=True)
class Conversion:
    """The settings of a recipe, by their dotted keys, and what the user has to know about them."""

    library: str
    """Its name, as in `other_libraries.toml`."""
    given: Given
    settings: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """What changes the training, with what to do."""
    asides: dict[str, list[str]] = field(default_factory=dict)
    """Names of settings that change no training, by what they concern, which is a heading."""
    incomplete: list[str] = field(default_factory=list)
    """What nobody could read, and what the recipe needs and does not have."""
    mistakes: list[str] = field(default_factory=list)
    account: dict[str, str] = field(default_factory=dict)
    """Where each setting that is written down has ended: "recipe", "default", "remark" or "incomplete"."""
    code: list[str] = field(default_factory=list)
    """Functions that the recipe names in the file next to it."""
    reported: set[str] = field(default_factory=set)
    """The settings that a remark is about."""
    updates: int = 1
    """Optimiser steps in one step of outdo; the other library counts its steps in these."""

    def remark(self, name: str, sentence: str) -> None:
        """Report a setting of the other library."""
        self.reported.add(name)
        self.remarks.append(f"{self.shown(name)}: {sentence}")

    def shown(self, name: str) -> str:
        """Return a setting of the other library with its value, as a sentence names it."""
        value = self.given[name]
        text = to_toml(value) if isinstance(value, list) else format_value(value)
        return f"{name} = {'none' if value is None else text}"

    def check_types(self, numbers: Collection[str]) -> bool:
        """Report values of another kind than the default, and return whether there are none.

        `numbers` are the names of the numbers that may be none. Where none has no meaning, the default counts.
        """
        written, defaults = self.given.written, self.given.defaults
        for name, value in list(written.items()):
            default = defaults.get(name)
            wanted = 0.0 if name in numbers and not isinstance(default, int) else default
            if value is None and default is not None and name not in numbers:
                self.remark(name, f"the recipe has what {self.library} has by default, {format_value(default)}")
                del written[name]
            elif isinstance(value, list) and name.rpartition(".")[2] in TEXT_OR_LIST:
                continue
            elif wanted is not None and value is not None and not _of_kind(value, wanted):
                expected = {bool: "true or false", str: "text", list: "a list"}.get(type(wanted), "a number")
                self.mistakes.append(f"{name}: expected {expected}, found {format_value(value)}")
        return not self.mistakes

    def pair(self, name: str, otherwise: tuple[float, float]) -> tuple[float, float]:
        """Return a setting that is two numbers; `otherwise` if it is not set, and after reporting another value."""
        value = self.given[name]
        if value is None:
            return otherwise
        if isinstance(value, list) and [_of_kind(number, 0.0) for number in value] == [True, True]:
            return value[0], value[1]
        self.mistakes.append(f"{name}: expected two numbers, found {format_value(value)}")
        return otherwise

    def steps_of(self, count: float) -> int:
        """Return how many steps of outdo have `count` optimiser steps; at least 1."""
        return max(1, -(-int(count) // self.updates))


Rule = Callable[[Conversion], None]

OWN_ENGINE = (
    "outdo's own engine samples with the weights that are trained; for vLLM in an environment of its own add "
    'engine = {name = "vllm", python = "PATH"}'
)
"""What is said of the settings of vLLM."""


def _number(value: Any, default: Any) -> Any:
    """Return a number that is written as text, such as 1e-6 in YAML, as a number, and 8.0 as 8 where it is counted."""
    value = plain_value(value) if isinstance(value, str) and not isinstance(default, str) else value
    is_count = isinstance(default, int) and not isinstance(default, bool)
    return int(value) if is_count and isinstance(value, float) and value.is_integer() else value


def _of_kind(value: Any, wanted: Any) -> bool:
    """Return whether a value is of the kind of `wanted`; numbers are finite."""
    if isinstance(wanted, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(wanted, bool)
    if isinstance(wanted, int):
        return isinstance(value, int)
    if isinstance(wanted, float):
        return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, type(wanted))


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, nothing as an empty list, and another value as a list of it."""
    return value if isinstance(value, list) else [] if value is None else [value]


def put_trackers(conversion: Conversion, name: str) -> None:
    """Set the trackers that outdo has, and report the others."""
    wanted = as_list(conversion.given[name])
    if track := [name for name in wanted if name in TRACKERS]:
        conversion.settings["track"] = track
    if others := [str(name) for name in wanted if name not in (*TRACKERS, "none", "console")]:
        conversion.remark(name, f"outdo has no tracker {', '.join(others)}; a function of yours can be one")


def put_evaluation(conversion: Conversion, name: str, every: int) -> bool:
    """Set after how many steps to evaluate, if held-out questions are named; otherwise report that they are missing."""
    if "data.eval_path" in conversion.settings:
        conversion.settings["eval.every"] = every
        return True
    conversion.remark(name, f"no held-out questions are named; add data.eval_path, and eval.every = {every}")
    return False


def put_epochs(conversion: Conversion, name: str, *, rows: int | None, whole: Callable[[float], int] = int) -> None:
    """Set the steps of so many epochs over `rows` questions; report them if the number of questions is not known."""
    epochs, prompts = conversion.given[name], conversion.settings.get("train.prompts", 1)
    if rows is not None:
        conversion.settings["steps"] = max(1, whole(epochs * (rows // prompts)))
        return
    sentence = f"steps = {epochs:g} · (number of questions) / {prompts}; --rows N writes it, else steps is 100"
    conversion.remark(name, sentence)


def piece(name: str, **options: Any) -> Any:
    """Return a piece as a recipe has it; options that are None are left out."""
    given = {key: value for key, value in options.items() if value is not None}
    return {"name": name, **given} if given else name


def put_no_reward(conversion: Conversion, reason: str) -> None:
    """Set a reward of 0 where there is none; `reason` is why, as a clause."""
    if "rewards" in conversion.settings:
        return
    conversion.code.append(NO_REWARD)
    conversion.settings["rewards"] = f"{CODE}no_reward"
    conversion.remarks.append(
        f"rewards: {reason}, and no_reward is always 0; name one that compares answers, such as exact, to see how many "
        "are right"
    )


NO_REWARD = '''def no_reward(completion, answer):
    """Return 0 for every answer: only the teachers push the policy."""
    return 0.0
'''


def put_scaled_loss(conversion: Conversion, name: str, scale: float) -> None:
    """Make the optimiser do with the recipe's loss what the library's does with `scale` times this loss.

    `name` is the setting that is the reason.
    """
    settings = conversion.settings
    if scale == 1:
        return
    algorithm = settings["optim.algorithm"]
    options: dict[str, Any] = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm)
    settings["optim.clip_norm"] /= scale
    if options["name"] == "sgd":
        settings["optim.lr"] *= scale
    elif options["name"].startswith("adamw"):
        settings["optim.algorithm"] = {**options, "eps": options.get("eps", 1e-8) / scale}
    conversion.remark(name, f"the loss is {scale:g} of outdo's; the optimiser's settings allow for it")
