"""Read a file of another library, and the words after it on the command line: YAML, a shell script, settings alone."""

import math
import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outdo.config.file import read_tables, read_value
from outdo.extras.convert.account import table_of
from outdo.extras.convert.interpolation import interpolated
from outdo.extras.convert.reading import (
    MARKED,
    Configuration,
    Settings,
    unmarked,
    without_marks,
)
from outdo.extras.convert.recorded import recorded_script
from outdo.extras.convert.shell import commands_of
from outdo.extras.convert.trl_trainers import CALLED
from outdo.extras.convert.words import flags, hydra_value
from outdo.utils.errors import UserError
from outdo.utils.text import dotted

OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w.@/-]*=.*", re.DOTALL)
TABLES_OF_VERL = re.compile(r"[+~]*(?:actor_rollout_ref|data|algorithm|trainer|critic|reward|reward_model)\.\w[\w.-]*=")
OF_VERL = ("ppo_trainer", "ppo_megatron_trainer", "_self_", "dapo_trainer", "dapo_megatron_trainer")
"""Files of verl itself, whose settings are its defaults."""

ENVIRONMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
WITHOUT_SETTINGS = ("activate", ".bashrc", ".profile", "conda.sh", "set_env.sh", "setvars.sh")
"""The ends of the names of files that prepare a shell, and set nothing of a training."""

MAIN = "verl.trainer.main_ppo"
LAUNCHER = re.compile(r"accelerate|torchrun|deepspeed|torch\.distributed")
"""What starts several processes."""

Command = list[str]


def read_verl(path: Path | None, words: Sequence[str]) -> Configuration:
    """Return the settings of verl: those of YAML, or of the command of a script, with `words` over them."""
    if path is None or path.suffix != ".sh":
        reading = Configuration()
        return _of_verl({} if path is None else _yaml_of_verl(path, reading), words, reading)
    words, environment = _environment(words)
    command, reading = _command(path, environment, _is_of_verl, f"{MAIN} or a main_* of another recipe")
    start = _entry(command)
    named = command[start]
    if not re.search(r"main_(ppo|dapo|entropy)(\.py)?$", named):
        reading.missing.append(f"{named}: what it trains, if that is not what {MAIN} trains with these settings")
    base, rest = _named_config(command[start + 1 :], path, reading)
    return _of_verl(base, [*rest, *words], reading)


def _of_verl(base: Settings, words: Sequence[str], reading: Configuration) -> Configuration:
    written = dict(base)
    for word in words:
        name, _, value = word.partition("=")
        if name.startswith("~"):
            written.pop(name.lstrip("~"), None)
        elif not OVERRIDE.fullmatch(word):
            _loose(word, reading)
        else:
            written[name.lstrip("+").replace("/", ".")] = hydra_value(value)
    defaults = {**table_of("verl").get("usual", {}), **dict(dotted(table_of("verl")["defaults"]))}
    return _finished(reading, interpolated(written, defaults))


def _yaml_of_verl(path: Path, reading: Configuration) -> Settings:
    """Return the settings of a file of Hydra, over those of the files that its `defaults` name and that lie near it."""
    tables = read_tables(path)
    settings: Settings = {}
    for part in tables.pop("defaults", None) or []:
        name = part if isinstance(part, str) else next(iter(part.values()), None) if isinstance(part, Mapping) else None
        file = path.parent / f"{name}.yaml"
        if name in OF_VERL or name is None:
            continue
        if file.is_file() and file != path:
            settings |= _yaml_of_verl(file, reading)
        else:
            reading.missing.append(f"{name}.yaml: the settings in it; {path.name} names it, and it is not here")
    return settings | dict(dotted(tables))


def _named_config(words: Sequence[str], path: Path, reading: Configuration) -> tuple[Settings, list[str]]:
    """Return the settings of the file that `--config-path` and `--config-name` name, and the other words."""
    named, rest = _hydra_flags().parse_known_args(words)
    name = (named.name or "").strip("'\"").removesuffix(".yaml")
    folder = (named.path or named.dir or "").strip("'\"")
    if not name or (name in OF_VERL and not folder):
        return {}, rest
    places = [base / folder / f"{name}.yaml" for base in (Path.cwd(), path.parent, *path.parent.parents[:3])]
    file = next((path for path in places if path.is_file()), None)
    if file is not None:
        return _yaml_of_verl(file, reading), rest
    if name not in OF_VERL:
        reading.missing.append(f"{unmarked(f'{folder}/{name}').lstrip('/')}.yaml: the settings in it; it is not here")
    return {}, rest


def _hydra_flags() -> ArgumentParser:
    """Return the parser of `--config-name`, `--config-path` and `--config-dir`, in their long and short forms."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for part in ("name", "path", "dir"):
        parser.add_argument(f"-c{part[0]}", f"--config-{part}", dest=part, nargs="?", default="")
    return parser


def _is_of_verl(command: Sequence[str]) -> int:
    """Return how likely a command starts a training of verl: the number of its settings, 0 for no such command."""
    count = sum(bool(TABLES_OF_VERL.match(word)) for word in command)
    starts = any(re.search(r"(^|[./])main_(?!eval|gen)\w+(\.py)?$", word) for word in command)
    return count + starts if count or starts else 0


def _entry(command: Sequence[str]) -> int:
    """Return the place of the word that names what is started: a module, or a file."""
    named = [i for i, word in enumerate(command) if re.search(r"(^|[./])(main_\w+|\w+_main|train_\w+)(\.py)?$", word)]
    first = next((i for i, word in enumerate(command) if OVERRIDE.fullmatch(word) and "." in word), len(command))
    return max((i for i in named if i < first), default=max(0, first - 1))


def read_openrlhf(path: Path | None, words: Sequence[str]) -> Configuration:
    """Return the flags of OpenRLHF: those of the command of a script, with `words` over them."""
    reading, command = Configuration(), []
    if path is not None:
        words, environment = _environment(words)
        command, reading = _command(path, environment, _is_of_openrlhf, "openrlhf.cli.train_ppo_ray")
        command = command[1 + next(i for i, word in enumerate(command) if "train_ppo" in word) :]
    written, loose = flags([*command, *words])
    for word in loose:
        _loose(word, reading)
    return _finished(reading, written)


def _is_of_openrlhf(command: Sequence[str]) -> int:
    return len(command) if any("train_ppo" in word and not re.search(r"\s", word) for word in command) else 0


def read_trl(path: Path | None, words: Sequence[str]) -> Configuration:
    """Return the settings of TRL: those of YAML, of a Python script, or of the command of a shell script."""
    if path is None or path.suffix in (".yaml", ".yml"):
        return _finished(Configuration(), ({} if path is None else read_tables(path)) | _key_values(words))
    if path.suffix == ".py":
        words, environment = _environment(words)
        first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
        return _over(recorded_script(path, words[first:], environment), _key_values(words[:first]))
    words, environment = _environment(words)
    command, reading = _command(
        path, environment, _is_of_trl, "a training of TRL: a .py, `trl grpo` or `trl distillation`"
    )
    start = next(i for i, word in enumerate(command) if _is_program(word))
    launch, loose = flags(command[:start])
    rest = command[start + 1 :]
    file = _python_file(command[start], path, reading)
    written, loose = flags(rest)
    for word in loose:
        _loose(word, reading)
    if named := written.pop("config", None):
        written = _yaml_of_trl(str(named), path, reading) | written
    if file is not None:
        of_script = recorded_script(file, rest, environment)
        written = {}  # the script itself has read them
        reading = replace(of_script, how=f"{reading.how} {of_script.how}", missing=reading.missing + of_script.missing)
    reading.processes = _processes(launch, path)
    if reading.processes is None and LAUNCHER.search(" ".join(command[:start])):
        reading.remarks.append("the number of processes is not known: the batch is that of --processes, by default 1")
    return _over(reading, written | _key_values(words))


def _python_file(word: str, path: Path, reading: Configuration) -> Path | None:
    """Return the script that a command names; None for a command such as `trl grpo`, and for one that is not here."""
    if word in CALLED:
        reading.trainer = CALLED[word]
        return None
    file = next(filter(Path.is_file, [base / word for base in (Path.cwd(), path.parent)]), None)
    if file is None:
        reading.missing.append(f"{unmarked(word)}: what this script gives to its trainer; it is not here")
    return file


def _is_program(word: str) -> bool:
    return word in CALLED or word.endswith(".py")


def _is_of_trl(command: Sequence[str]) -> int:
    if "vllm-serve" in command or not any(map(_is_program, command)):
        return 0
    return sum(word.startswith("--") for word in command) + 1


def _yaml_of_trl(name: str, path: Path, reading: Configuration) -> Settings:
    file = next((base / name for base in (Path.cwd(), path.parent) if (base / name).is_file()), None)
    if file is None:
        reading.missing.append(f"{unmarked(name)}: the settings in it; it is not here")
        return {}
    return read_tables(file)


def _processes(launch: Mapping[str, Any], path: Path) -> int | None:
    """Return how many processes accelerate, torchrun or deepspeed is told to start on all nodes together."""
    total, file = _value(launch, "num_processes"), _value(launch, "config_file")
    if total is None and isinstance(file, str) and (path.parent / file).is_file():
        total = read_tables(path.parent / file).get("num_processes")
    counts = (total, 1)
    if total is None:
        counts = _value(launch, "nproc_per_node", "num_gpus"), _value(launch, "nnodes", "num_nodes") or 1
    return math.prod(counts) if all(isinstance(count, int) and count > 0 for count in counts) else None


def _value(launch: Mapping[str, Any], *names: str) -> Any:
    """Return what the first of these flags says; after its value may stand another word, such as `-m`."""
    value = next((launch[name] for name in names if name in launch), None)
    return value[0] if isinstance(value, list) and value else value


# ----------------------------------------------------------------------------------------------------- of all libraries


def _environment(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words, and those of them that set a variable of the script, such as MODEL_PATH=..."""
    variables = {match[1]: match[2] for word in words if (match := ENVIRONMENT.fullmatch(word))}
    return [word for word in words if not ENVIRONMENT.fullmatch(word)], variables


def _command(
    path: Path, environment: Mapping[str, str], likelihood: Callable[[Sequence[str]], int], wanted: str
) -> tuple[Command, Configuration]:
    """Return the most likely command of a script, and a reading that says how it was found.

    Raises:
        NotRunError: the script cannot be run here.
        UserError: it starts no such command.
    """
    reading = Configuration(how="Bash ran the script in a sandbox, where programs only record their words.")
    commands, missing = commands_of(path, environment)
    sourced = [unmarked(file) for file in missing if not file.endswith(WITHOUT_SETTINGS)]
    reading.remarks += [f"{file}: the script sources it, and it is not here" for file in sourced]
    command = max(commands, key=likelihood, default=[])
    if not likelihood(command):
        raise UserError([f"{path}: no command was found that starts {wanted}"])
    others = [other for other in commands if likelihood(other) and other != command]
    if others:
        reading.remarks.append(f"the script starts {len(others) + 1} trainings; the recipe is that with most settings")
    return command, reading


def _key_values(words: Sequence[str]) -> Settings:
    """Return `key=value` settings; a value is TOML, and otherwise text. Raises `UserError` for another word."""
    pairs = [word.partition("=") for word in words]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise UserError([f"{word}: expected key=value" for word in wrong])
    return {key.lstrip("-"): read_value(value) for key, _, value in pairs}


def _loose(word: str, reading: Configuration) -> None:
    """Account for a word of the command that is no setting."""
    if re.fullmatch(r"⟦\$\d⟧|\s*", word):  # an argument of the script, which nobody gave
        return
    if MARKED.search(word):
        reading.missing.append(f"{unmarked(word)}: words of the command")
    else:
        reading.remarks.append(f"{word}: a word of the command that is no setting")


def _finished(reading: Configuration, written: Mapping[str, Any]) -> Configuration:
    known, unread = without_marks(written)
    return replace(reading, written={**reading.written, **known}, unread={**reading.unread, **unread})


def _over(reading: Configuration, written: Mapping[str, Any]) -> Configuration:
    """Return a reading with further settings, which replace those that were read."""
    unread = {name: what for name, what in reading.unread.items() if name not in written}
    known = {name: value for name, value in reading.written.items() if name not in written}
    return _finished(replace(reading, written=known, unread=unread), written)
