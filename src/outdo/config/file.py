"""The recipe as a file: reading it, with every mistake told at once, and writing it.

TOML, or YAML where PyYAML is installed, and `key=value` overrides from the command line. Relative paths in a recipe
are relative to the folder the command runs in, as on the command line itself.
"""

import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outdo.config.messages import describe_errors, format_value, to_toml
from outdo.config.names import DEFAULT_ADVANTAGE
from outdo.config.recipe import Data, Recipe, leaves, sections, settings
from outdo.config.rules import conflicts
from outdo.utils.errors import UserError, did_you_mean

LARGEST_FILE = 1_000_000
"""Bytes. No recipe is longer; something else was named by mistake."""

DEEPEST_YAML = 20
"""Brackets within brackets. A recipe needs three."""

PIECES = {
    "train.objective": "grpo",
    "train.advantage": "group_standardised",
    "train.kl_in_reward": "k1",
    "train.critic": "model",
    "train.stop": "first_of",
    "optim.algorithm": "adamw",
    "optim.schedule": "constant",
}
"""Settings with options of their own, as in `train.objective.beta=0`, and the piece meant where none is named."""

ASKED_ON_COMMAND_LINE = "command line"
DOTTED_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


class RecipeError(UserError):
    """What is wrong with a recipe; `recipe` is the rest of it, where that is one, without the settings `broken`."""

    def __init__(self, mistakes: Sequence[str], recipe: Recipe | None, broken: Sequence[str]) -> None:
        super().__init__(mistakes)
        self.recipe = recipe
        self.broken = tuple(broken)


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` (none: only the defaults) with `overrides` such as `"optim.lr=2e-6"` on top.

    The value of an override is read as TOML, and taken as plain text where it is none or where the setting is text;
    an empty one puts the setting back to its default. Raises `RecipeError` with everything that is wrong.
    """
    raw, mistakes = _readable(path)
    unread = bool(mistakes)
    pieces_first = sorted(overrides, key=lambda text: text.partition("=")[0].count("."))  # then their options
    asked = {key for key in (_override(raw, text, mistakes) for text in pieces_first) if key}
    raw.setdefault("data", {})  # so that what is missing in it is named: data.path, not data
    recipe, wrong = _validated(raw)

    broken = [key for key, _ in wrong]
    wrong = [each for each in wrong if not unread or each[0] in asked]  # what the file says of the others is unknown
    refused = [] if unread or recipe is None else _refused(recipe, broken)
    mistakes += [f"{_source(key, asked, path)}: {sentence}" for key, sentence in [*wrong, *refused]]
    if mistakes or recipe is None:
        raise RecipeError(mistakes, recipe, [*broken, *(key for key, _ in refused)])
    return recipe


def _refused(recipe: Recipe, broken: Sequence[str]) -> list[tuple[str, str]]:
    """What in a recipe cannot work together: `(key, sentence)`."""
    refused, _ = conflicts(recipe, broken=broken)
    return [(re.split(r"[ :]", sentence)[0], sentence) for sentence in refused]


# ------------------------------------------------------------------------------------------------------------ reading


def _readable(path: str | Path | None) -> tuple[dict[str, Any], list[str]]:
    """The tables of a file, none if it cannot be read, and why not."""
    try:
        return ({} if path is None else _parsed(Path(path))), []
    except UserError as error:
        return {}, list(error.problems)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise UserError([f"{path}: larger than {LARGEST_FILE:,} bytes, so this is no recipe"])
        text = content.decode("utf-8-sig")
        return _parsed_yaml(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except UserError as error:
        raise UserError([f"{path}: {mistake.removeprefix(f'{path}: ')}" for mistake in error.problems]) from None
    except FileNotFoundError:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.*ml")])
        raise UserError([f"{path}: no such file{near}"]) from None
    except IsADirectoryError:
        raise UserError([f"{path}: is a folder; give the recipe file in it"]) from None
    except UnicodeDecodeError as error:
        raise UserError([f"{path}: not UTF-8 text (byte {error.start})"]) from None
    except RecursionError:
        raise UserError([f"{path}: nested too deeply"]) from None
    except OSError as error:
        raise UserError([f"{path}: {error.strerror}"]) from None
    except ValueError as error:
        raise UserError([f"{path}: not valid TOML: {error}"]) from None


def _parsed_yaml(text: str) -> dict[str, Any]:
    """YAML of plain values only: anchors, aliases (they can blow up) and tags (they can run code) are refused."""
    try:
        import yaml
    except ImportError:
        raise UserError(
            ['recipes in YAML need PyYAML: pip install "outdo[yaml]", or write the recipe as TOML']
        ) from None
    try:
        if refused := list(dict.fromkeys(_refused_yaml(yaml, text))):
            raise UserError(refused)
        _refuse_repeated_keys(yaml.compose(text, yaml.SafeLoader))
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError([f"not valid YAML: {' '.join(str(error).split())}"]) from None
    except ValueError as error:  # a date such as 2024-13-99
        raise UserError([f"not valid YAML: {error}"]) from None
    if not isinstance(value, dict | None):
        raise UserError([f"expected a table of settings, found {format_value(value)}"])
    return value or {}


def _refused_yaml(yaml: Any, text: str) -> Iterator[str]:
    """What is in the text that a table of plain values does not need."""
    refused = {
        yaml.AnchorToken: "anchors (&) are not accepted; write the value out",
        yaml.AliasToken: "aliases (*) are not accepted; write the value out",
        yaml.TagToken: "tags (!) are not accepted; write a plain value",
    }
    depth = {yaml.FlowSequenceStartToken: 1, yaml.FlowMappingStartToken: 1}
    depth |= {yaml.FlowSequenceEndToken: -1, yaml.FlowMappingEndToken: -1}
    deep = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        deep += depth.get(type(token), 0)
        if deep > DEEPEST_YAML:  # PyYAML takes time that grows with the square of the depth
            yield f"line {token.start_mark.line + 1}: nested too deeply"
            return
        if type(token) in refused:
            yield f"line {token.start_mark.line + 1}: {refused[type(token)]}"


def _refuse_repeated_keys(node: Any) -> None:
    """PyYAML takes the last of two equal keys without a word."""
    if getattr(node, "id", None) != "mapping":
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            raise UserError([f"line {key.start_mark.line + 1}: {key.value} is given twice"])
        seen.add(key.value)
        _refuse_repeated_keys(value)


def _override(raw: dict[str, Any], text: str, mistakes: list[str]) -> str | None:
    """Put one `key=value` into `raw`; returns the key, or notes a mistake."""
    key, equals, written = text.partition("=")
    key = key.strip()
    if not equals or not DOTTED_KEY.fullmatch(key):
        mistakes.append(f'{ASKED_ON_COMMAND_LINE}: "{text}": expected key=value, such as optim.lr=2e-6')
        return None
    *tables, last = key.split(".")
    table: dict[str, Any] = raw
    place = ""
    for name in tables:
        place = f"{place}.{name}".lstrip(".")
        inner = table.get(name, _meant(raw, place))
        if place in PIECES and isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            mistakes.append(
                f"{ASKED_ON_COMMAND_LINE}: {key}: {place} is {format_value(inner)}, and has no settings in it"
            )
            return None
        table[name] = inner
        table = inner
    if written.strip():
        table[last] = _override_value(written, leaves().get(key))
    else:
        table.pop(last, None)
    return key


def _meant(raw: Mapping[str, Any], place: str) -> Any:
    """The piece whose option is set where none is named; a table of settings anywhere else."""
    if place != "train.advantage":
        return PIECES.get(place, {})
    objective = raw["train"].get("objective", PIECES["train.objective"])
    name = objective.get("name") if isinstance(objective, dict) else objective
    return DEFAULT_ADVANTAGE.get(str(name), PIECES[place])


def _override_value(written: str, setting: FieldInfo | None) -> Any:
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):
        return written
    value = parsed["value"]
    is_text = setting is not None and _takes_text(setting.annotation)
    one_value = len(parsed) == 1 and not isinstance(value, datetime.date | datetime.time)
    return value if one_value and (isinstance(value, str) or not is_text) else written


def _takes_text(annotation: Any) -> bool:
    """Whether it is `str` or `str | None`, constrained or not."""
    kinds = get_args(annotation) or (annotation,)
    return all(getattr(kind, "__origin__", kind) in (str, type(None)) for kind in kinds)


# ----------------------------------------------------------------------------------------------------------- mistakes


def _validated(raw: dict[str, Any]) -> tuple[Recipe | None, list[tuple[str, str]]]:
    """The recipe without what is wrong in `raw`, and what is wrong: `(key, sentence)`."""
    try:
        return Recipe.model_validate(raw), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    pruned = _without(raw, [detail["loc"] for detail in details])
    for path in (("model",), ("data", "path")):
        _fill(pruned, path)
    try:
        recipe = Recipe.model_validate(pruned)
    except ValidationError:  # what is left may still not stand together; the mistakes found are enough
        recipe = None
    return recipe, describe_errors(details, raw)


def _without(raw: Mapping[str, Any], places: Sequence[tuple[int | str, ...]]) -> dict[str, Any]:
    """A copy of the tables without the settings that are wrong; a setting that is wrong inside goes as a whole."""
    wrong_here = {place[0] for place in places if len(place) == 1 or place[0] not in sections()}
    inner = {name: [place[1:] for place in places if place[0] == name and len(place) > 1] for name in raw}
    return {
        name: {key: v for key, v in value.items() if key not in {place[0] for place in inner[name]}}
        if isinstance(value, dict)
        else value
        for name, value in raw.items()
        if name not in wrong_here
    }


def _fill(raw: dict[str, Any], path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        raw = raw.setdefault(name, {})
    raw.setdefault(path[-1], "?")


def _source(key: str, asked: set[str], path: str | Path | None) -> str:
    on_command_line = path is None or any(key == each or key.startswith(f"{each}.") for each in asked)
    return ASKED_ON_COMMAND_LINE if on_command_line else str(path)


# ------------------------------------------------------------------------------------------------------------ writing


def dump(recipe: Recipe) -> str:
    """The recipe as TOML with every setting that has a value; `load` reads an equal one back."""
    return _written(recipe.model_dump(mode="json"), comments=False)


def commented() -> str:
    """A recipe with every default and one line about each setting; unset and required ones are commented out."""
    required = {"model": PydanticUndefined, "data": {"path": PydanticUndefined}}
    defaults = Recipe(model="?", data=Data(path="?")).model_dump(mode="json")
    return _written(defaults | required | {"data": defaults["data"] | required["data"]}, comments=True)


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe."""
    return Recipe.model_json_schema()


def _written(values: Mapping[str, Any], *, comments: bool) -> str:
    lines, table = [], ""
    for key, setting in settings().items():
        inside, _, name = key.rpartition(".")
        if inside != table:
            table = inside
            note = f"  # {Recipe.model_fields[table].description}" if comments else ""
            lines += ["", f"[{table}]{note}"]
        value = (values[inside] if inside else values)[name]
        lines += _line(name, value, setting.description if comments else None)
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, comment: str | None) -> Iterator[str]:
    if value is not None and value is not PydanticUndefined:
        line = f"{name} = {to_toml(value)}"
    elif comment is None:
        return
    else:
        line = f"# {name} = " + ('""' if value is PydanticUndefined else "")
        comment = f"required: {comment}" if value is PydanticUndefined else comment
    yield f"{line.rstrip():<34} # {comment}" if comment else line
