"""Read a recipe from a file, reporting all mistakes at once, and write it.

The file is TOML, or YAML if PyYAML is installed; `key=value` overrides come from the command line. Relative paths in a
recipe are relative to the folder in which the command runs.
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

from outdo.config.data import Data
from outdo.config.fields import Piece, Source
from outdo.config.messages import describe_errors, format_value, to_toml
from outdo.config.methods import facts_of_objective
from outdo.config.prompt_template import PromptTemplate
from outdo.config.recipe import Recipe
from outdo.config.rules import refusals
from outdo.config.settings import leaves, sections, settings
from outdo.config.unknown_settings import explain_unknown_setting
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.text import one_line

LARGEST_FILE = 1_000_000
"""Bytes. A larger file is not a recipe."""

DEEPEST_YAML = 20
"""Nested brackets. A recipe needs three."""

DEFAULT_PIECES = {
    "train.objective": "grpo",
    "train.advantage": "group_standardised",
    "train.kl_in_reward": "k1",
    "train.critic": "model",
    "train.stop": "first_of",
    "eval.best": "greedy",
    "environment": "tools",
    "engine": "builtin",
    "optim.algorithm": "adamw",
    "optim.schedule": "constant",
}
"""Settings that have options, as in `train.objective.beta=0`, and the piece that a recipe without a name gets."""

RETIRED = ("workers",)
"""Settings of earlier versions, which the recipes of their runs have."""

COMMAND_LINE = "command line"
DOTTED_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


class RecipeError(UserError):
    """A recipe has mistakes. `recipe` is the recipe without the settings `broken`, or None if that is not valid."""

    def __init__(self, mistakes: Sequence[str], recipe: Recipe | None, broken: Sequence[str]) -> None:
        super().__init__(mistakes)
        self.recipe = recipe
        self.broken = tuple(broken)


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe in `path` (None: only the defaults) with `overrides` such as `"optim.lr=2e-6"`.

    The value of an override is TOML; a value that does not begin like TOML, or that belongs to a text setting, is plain
    text. An empty value restores the default. Raises `RecipeError` with all mistakes.
    """
    raw, mistakes = _read(path)
    file_is_unreadable = bool(mistakes)
    pieces_first = sorted(overrides, key=lambda text: text.partition("=")[0].count("."))  # then their options
    overridden = {key for key in (_apply_override(raw, text, mistakes) for text in pieces_first) if key}
    raw.setdefault("data", {})  # so that a missing data.path is reported, and not a missing table
    recipe, invalid = _validate(raw)

    broken = [key for key, _ in invalid]
    if file_is_unreadable:  # other settings may be in the file
        invalid = [(key, sentence) for key, sentence in invalid if key in overridden]
    conflicting = [] if file_is_unreadable or recipe is None else _conflicting(recipe, broken)
    mistakes += [f"{_source(key, overridden, path)}: {sentence}" for key, sentence in [*invalid, *conflicting]]
    if mistakes or recipe is None:
        raise RecipeError(mistakes, recipe, [*broken, *(key for key, _ in conflicting)])
    return recipe


def load_saved(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of the run in a folder, with `overrides`, as `load` does.

    Runs of earlier versions have `workers`, the number of processes that shared the weights: one process trains now.
    """
    return load(folder / "recipe.toml", [*(f"{key}=" for key in RETIRED), *overrides])


def _conflicting(recipe: Recipe, broken: Sequence[str]) -> list[tuple[str, str]]:
    """Return what in a recipe cannot work together, as `(key, sentence)`."""
    return [(re.split(r"[ :]", sentence)[0], sentence) for sentence in refusals(recipe, broken=broken)]


# ------------------------------------------------------------------------------------------------------------ reading


def _read(path: str | Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the tables of a file and its mistakes; there are no tables if the file cannot be read."""
    try:
        return ({} if path is None else read_tables(Path(path))), []
    except UserError as error:
        return {}, list(error.problems)


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML or YAML file. Raises `UserError`."""
    text = read_text(path)
    try:
        return _parse_yaml(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except UserError as error:
        raise UserError([f"{path}: {mistake}" for mistake in error.problems]) from None
    except RecursionError:
        raise UserError([f"{path}: nested too deeply"]) from None
    except ValueError as error:
        raise UserError([f"{path}: not valid TOML: {error}"]) from None


def read_text(path: Path) -> str:
    """Return the text of a file of settings. Raises `UserError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise UserError([f"{path}: larger than {LARGEST_FILE:,} bytes, so it holds no settings"])
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        near = did_you_mean(path.name, [neighbour.name for neighbour in path.parent.glob("*.*")])
        raise UserError([f"{path}: no such file{near}"]) from None
    except IsADirectoryError:
        raise UserError([f"{path}: expected a file, found a folder"]) from None
    except UnicodeDecodeError as error:
        raise UserError([f"{path}: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise UserError([f"{path}: {error.strerror}"]) from None


def _parse_yaml(text: str) -> dict[str, Any]:
    """Parse YAML with plain values only.

    Anchors and aliases, which can grow without bound, and tags, which can run code, are refused.
    """
    try:
        import yaml
    except ImportError:
        raise UserError(
            ['recipes in YAML need PyYAML: pip install "outdo[yaml]", or write the recipe as TOML']
        ) from None
    try:
        if unaccepted := list(dict.fromkeys(_unaccepted_yaml(yaml, text))):
            raise UserError(unaccepted)
        _refuse_repeated_keys(yaml.compose(text, yaml.SafeLoader))
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError([f"not valid YAML: {' '.join(str(error).split())}"]) from None
    except ValueError as error:  # a date such as 2024-13-99
        raise UserError([f"not valid YAML: {error}"]) from None
    if not isinstance(value, dict | None):
        raise UserError([f"expected a table of settings, found {format_value(value)}"])
    return value or {}


def _unaccepted_yaml(yaml: Any, text: str) -> Iterator[str]:
    """Yield what is in the text that a table of plain values does not need."""
    unaccepted = {
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
        if type(token) in unaccepted:
            yield f"line {token.start_mark.line + 1}: {unaccepted[type(token)]}"


def _refuse_repeated_keys(node: Any) -> None:
    """Refuse a key that is given twice; PyYAML would silently take the last one."""
    if getattr(node, "id", None) != "mapping":
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            raise UserError([f"line {key.start_mark.line + 1}: {key.value} is given twice"])
        seen.add(key.value)
        _refuse_repeated_keys(value)


def _apply_override(raw: dict[str, Any], text: str, mistakes: list[str]) -> str | None:
    """Put one `key=value` into `raw` and return the key; append to `mistakes` and return None if that fails."""
    key, _, written = text.partition("=")
    key = key.strip()
    if fault := _fault_of_override(text):
        mistakes.append(f"{COMMAND_LINE}: {fault}")
        return None
    *tables, last = key.split(".")
    table: dict[str, Any] = raw
    place = ""
    for name in tables:
        place = f"{place}.{name}".lstrip(".")
        inner = table.get(name, _default_table(raw, place))
        if place in DEFAULT_PIECES and isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            mistakes.append(f"{COMMAND_LINE}: {key}: {place} is {format_value(inner)}, which has no settings in it")
            return None
        table[name] = inner
        table = inner
    setting = leaves().get(key)
    if (fault := fault_of_toml(written)) and not (setting and _may_be_text(setting.annotation)):
        mistakes.append(f"{COMMAND_LINE}: {key}: {fault}")
        return None
    if written.strip():
        table[last] = read_value(written, setting)
    else:
        table.pop(last, None)
    return key


def _fault_of_override(text: str) -> str | None:
    """Return why a text is no `key=value`, or removes a setting that does not exist; None if it is one."""
    key, equals, written = text.partition("=")
    if not equals or not DOTTED_KEY.fullmatch(key.strip()):
        return f'"{text}": expected key=value, such as optim.lr=2e-6'
    if not written.strip() and not _is_known(key.strip()):
        return f"{key.strip()}: {explain_unknown_setting(key.strip())}"
    return None


def _is_known(key: str) -> bool:
    """Return whether there is such a setting, or one that has this option. What is removed, nothing else checks."""
    table, _, rest = key.partition(".")
    name = f"{table}.{rest.partition('.')[0]}" if table in sections() and rest else table
    return name in settings() or name in sections() or name in RETIRED


def _default_table(raw: Mapping[str, Any], place: str) -> Any:
    """Return what the recipe has at `place` by default: a piece, by its name, or an empty table of settings."""
    if place != "train.advantage":
        return DEFAULT_PIECES.get(place, {})
    objective = raw["train"].get("objective", DEFAULT_PIECES["train.objective"])
    name = objective.get("name") if isinstance(objective, dict) else objective
    return facts_of_objective(str(name)).published_with


def read_value(written: str, setting: FieldInfo | None = None) -> Any:
    """Return a value written as in TOML, as it is given on the command line; other text is a string."""
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):
        return written
    value = parsed["value"]
    is_text = setting is not None and _takes_text(setting.annotation)
    one_value = len(parsed) == 1 and not isinstance(value, datetime.date | datetime.time)
    return value if one_value and (isinstance(value, str) or not is_text) else written


def fault_of_toml(written: str) -> str | None:
    """Return why a value that begins as a table, a list or quoted text is not valid TOML; None for other text."""
    if not written.lstrip().startswith(("{", "[", '"')):
        return None
    try:
        tomllib.loads(f"value = {written}")
    except ValueError as error:
        return f"not valid TOML: {str(error).partition(' (at ')[0]}: {one_line(written)}"
    except RecursionError:
        return "not valid TOML: nested too deeply"
    return None


def read_piece(option: str, written: str, example: str) -> Piece:
    """Return the piece that an option of the command line names as a recipe does: by a name, or by a table in TOML."""
    try:
        if fault := fault_of_toml(written):
            raise ValueError(fault)
        return Piece.model_validate(read_value(written))
    except ValueError:
        raise UserError([f"{option}: expected a name, or a table such as {example}, found {written!r}"]) from None


def _may_be_text(annotation: Any) -> bool:
    """Return whether a setting is text, or may be: a template is text that begins with {prompt}, or a table."""
    return _takes_text(annotation) or PromptTemplate in get_args(annotation)


def _takes_text(annotation: Any) -> bool:
    """Return whether a setting is `str` or `str | None`, with or without constraints."""
    kinds = get_args(annotation) or (annotation,)
    return all(getattr(kind, "__origin__", kind) in (str, type(None)) for kind in kinds)


# ----------------------------------------------------------------------------------------------------------- mistakes


def _validate(raw: dict[str, Any]) -> tuple[Recipe | None, list[tuple[str, str]]]:
    """Return the recipe without the invalid settings of `raw`, and what is wrong with them as `(key, sentence)`."""
    try:
        return Recipe.model_validate(raw), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    pruned = _without_settings(raw, [detail["loc"] for detail in details])
    for path in (("model",), ("data", "path")):
        _fill_required(pruned, path)
    try:
        recipe = Recipe.model_validate(pruned)
    except ValidationError:  # the remaining settings may still be invalid together; the mistakes found are enough
        recipe = None
    return recipe, describe_errors(details, raw)


def _without_settings(raw: Mapping[str, Any], places: Sequence[tuple[int | str, ...]]) -> dict[str, Any]:
    """Return a copy of the tables without invalid settings; of a setting with an invalid field nothing remains."""
    removed = {key[0] for key in places if len(key) == 1 or key[0] not in sections()}
    inner = {name: [key[1:] for key in places if key[0] == name and len(key) > 1] for name in raw}
    return {
        name: {key: v for key, v in value.items() if key not in {key[0] for key in inner[name]}}
        if isinstance(value, dict)
        else value
        for name, value in raw.items()
        if name not in removed
    }


def _fill_required(raw: dict[str, Any], path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        raw = raw.setdefault(name, {})
    raw.setdefault(path[-1], "?")


def _source(key: str, overridden: set[str], path: str | Path | None) -> str:
    on_command_line = path is None or any(key == override or key.startswith(f"{override}.") for override in overridden)
    return COMMAND_LINE if on_command_line else str(path)


# ------------------------------------------------------------------------------------------------------------ writing


def dump(recipe: Recipe) -> str:
    """Return the recipe as TOML with every setting that has a value; `load` reads an equal recipe back."""
    return _to_toml(recipe.model_dump(mode="json"), comments=False)


def commented() -> str:
    """Return a recipe with all defaults and a one-line comment on each setting; unset and required settings are
    commented out."""
    required = {"model": PydanticUndefined, "data": {"path": PydanticUndefined}}
    defaults = Recipe(model="?", data=Data(path=(Source(path="?"),))).model_dump(mode="json")
    return _to_toml(defaults | required | {"data": defaults["data"] | required["data"]}, comments=True)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe."""
    return Recipe.model_json_schema()


def _to_toml(values: Mapping[str, Any], *, comments: bool) -> str:
    lines, table = [], ""
    for key, setting in settings().items():
        section, _, name = key.rpartition(".")
        if section != table:
            table = section
            note = f"  # {Recipe.model_fields[table].description}" if comments else ""
            lines += ["", f"[{table}]{note}"]
        value = (values[section] if section else values)[name]
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
