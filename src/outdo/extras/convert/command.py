"""`outdo convert`: the recipe for a configuration of TRL, verl or OpenRLHF."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from outdo.cli.arguments import OtherSettings, not_writable
from outdo.cli.output import print_line
from outdo.config.file import load
from outdo.extras.convert.account import table_of
from outdo.extras.convert.conversion import NOT_COMPLETE, Conversion
from outdo.extras.convert.openrlhf import convert_openrlhf
from outdo.extras.convert.reading import CODE, Configuration, NotRunError, with_code
from outdo.extras.convert.sources import read_openrlhf, read_trl, read_verl
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.verl import convert_verl
from outdo.extras.convert.written import INCOMPLETE, headed, written_recipe
from outdo.utils.errors import UserError

Library = Literal["trl", "verl", "openrlhf"]
FILES = {"trl": (".py", ".yaml", ".yml", ".sh"), "verl": (".yaml", ".yml", ".sh"), "openrlhf": (".sh",)}

NAMES = {"trl": "TRL", "verl": "verl", "openrlhf": "OpenRLHF"}
READERS: Mapping[str, Callable[[Path | None, Sequence[str]], Configuration]] = {
    "trl": read_trl,
    "verl": read_verl,
    "openrlhf": read_openrlhf,
}


def command(
    library: Annotated[Library, typer.Argument(show_default=False)],
    settings: OtherSettings,
    *,
    out: Annotated[Path, typer.Option(help="the recipe to write")] = Path("recipe.toml"),
    rows: Annotated[int | None, typer.Option(min=1, help="training questions, to turn epochs into steps")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="processes that TRL is started with")] = None,
) -> int:
    """Write the recipe, print what has no counterpart or another meaning, and return the exit status.

    It is 1 if the recipe lacks something that outdo needs. Raises `UserError` with all mistakes in the configuration.
    """
    console = Console()
    file, words = _file_and_settings(library, settings)
    code = out.with_name(f"{out.stem}_rewards.py")
    reading = _reading(library, file, words)
    conversion = _convert(library, reading, code, rows=rows, processes=processes)
    if conversion.mistakes:
        raise UserError([f"{file}: {mistake}" if file else mistake for mistake in conversion.mistakes])
    source = "\n\n\n".join(part.strip("\n") for part in (reading.source, *conversion.code) if part)
    title = _title(library, file, reading)
    files = {out: written_recipe(conversion, title)} | ({code: f"{source}\n"} if source else {})
    if problems := list(filter(None, map(_not_new, files))):
        raise UserError(problems)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print_line(console, f"{path}: written")
    for heading, sentences in headed(conversion):
        if heading == INCOMPLETE:  # which comes last
            continue
        print_line(console, "")
        print_line(console, f"{heading}:")
        for sentence in sentences:
            print_line(console, f"  {sentence}")
    print_line(console, "")
    return _complete(out, conversion, console)


def _reading(library: Library, file: Path | None, words: Sequence[str]) -> Configuration:
    try:
        return READERS[library](file, words)
    except NotRunError as error:
        sentence = f"{error.path}: outdo runs a script in a sandbox to read it, and could not: {error}"
        raise UserError(
            [f"{sentence}. Or write the recipe by hand, with the table of docs/from-{library}.md"]
        ) from None


def _title(library: Library, file: Path | None, reading: Configuration) -> str:
    origin = f" from {file.name}" if file else ""
    version = table_of(library)["version"]
    lines = [f"Converted by `outdo convert {library}`{origin}.", reading.how]
    lines.append(f"Where nothing is written, it has the defaults of {NAMES[library]} {version}.")
    return "\n".join(filter(None, lines))


def _not_new(path: Path) -> str | None:
    return not_writable(path) or (f"{path}: exists; choose another --out" if path.exists() else None)


def _complete(out: Path, conversion: Conversion, console: Console) -> int:
    problems = list(conversion.incomplete)
    try:
        load(out)
    except UserError as error:
        problems += [problem for problem in error.problems if NOT_COMPLETE not in problem]
    if problems:
        print_line(console, "The recipe is not complete:")
        for problem in problems:
            print_line(console, f"  {problem}")
        return 1
    print_line(console, f"Next: outdo check {out}")
    return 0


def _file_and_settings(library: Library, words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file, which comes first, and the settings after it."""
    if not words:
        raise UserError([f"expected a file ({', '.join(FILES[library])}) or settings of {library}"])
    first = words[0]
    if first.startswith("-") or "=" in first:
        return None, list(words)
    if Path(first).suffix not in FILES[library]:
        raise UserError([f"{first}: expected a file that ends in {', '.join(FILES[library])}"])
    return Path(first), list(words[1:])


def _convert(
    library: Library, configuration: Configuration, code: Path, *, rows: int | None, processes: int | None
) -> Conversion:
    """Return the conversion, in which the functions of the configuration are those of the file `code`."""
    if library == "verl":
        conversion = convert_verl(configuration, rows=rows)
    elif library == "openrlhf":
        conversion = convert_openrlhf(configuration, rows=rows)
    else:
        conversion = convert_trl(configuration, processes=processes or configuration.processes or 1, rows=rows)
    conversion.settings = with_code(conversion.settings, str(code))
    for sentences in (conversion.remarks, conversion.incomplete):
        sentences[:] = [sentence.replace(CODE, f"{code}:") for sentence in sentences]
    return conversion
