"""`outdo convert`: the recipe for a configuration of TRL, verl or OpenRLHF."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from outdo.cli.arguments import OtherSettings, not_writable
from outdo.cli.output import print_line
from outdo.config.file import load, read_tables
from outdo.extras.convert.conversion import Conversion, written_recipe
from outdo.extras.convert.openrlhf import convert_openrlhf
from outdo.extras.convert.reading import key_values, openrlhf_settings, verl_settings
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.trl_script import Script, read_script, with_code
from outdo.extras.convert.verl import convert_verl
from outdo.utils.errors import UserError

Library = Literal["trl", "verl", "openrlhf"]
FILES = {"trl": (".py", ".yaml", ".yml"), "verl": (".yaml", ".yml", ".sh"), "openrlhf": (".sh",)}


def command(
    library: Annotated[Library, typer.Argument(show_default=False)],
    settings: OtherSettings,
    *,
    out: Annotated[Path, typer.Option(help="the recipe to write")] = Path("recipe.toml"),
    rows: Annotated[int | None, typer.Option(min=1, help="training questions, to turn epochs into steps")] = None,
    processes: Annotated[int, typer.Option(min=1, help="processes that TRL is started with")] = 1,
) -> int:
    """Write the recipe, print what has no counterpart or another meaning, and return the exit status.

    It is 1 if the recipe lacks something that outdo needs. Raises `UserError` with all mistakes in the configuration.
    """
    console = Console()
    file, words = _file_and_settings(library, settings)
    code = out.with_name(f"{out.stem}_rewards.py")
    title = f"Converted by `outdo convert {library}`" + (f" from {file.name}" if file else "") + "."
    conversion, source = _convert(library, file, words, code, rows=rows, processes=processes)
    if conversion.mistakes:
        raise UserError([f"{file}: {each}" if file else each for each in conversion.mistakes])
    files = {out: written_recipe(conversion, title)} | ({code: source} if source else {})
    if problems := list(filter(None, map(_not_new, files))):
        raise UserError(problems)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print_line(console, f"{path}: written")
    if conversion.remarks:
        print_line(console, "")
        print_line(console, "Without a counterpart, or with another meaning:")
    for remark in conversion.remarks:
        print_line(console, f"  {remark}")
    print_line(console, "")
    return _complete(out, console)


def _not_new(path: Path) -> str | None:
    return not_writable(path) or (f"{path}: exists; choose another --out" if path.exists() else None)


def _complete(out: Path, console: Console) -> int:
    try:
        load(out)
    except UserError as error:
        print_line(console, "The recipe is not complete:")
        for problem in error.problems:
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
    library: Library, file: Path | None, words: list[str], code: Path, *, rows: int | None, processes: int
) -> tuple[Conversion, str]:
    """Return the conversion and, for a script, the code of the functions that the recipe names in the file `code`."""
    if library == "verl":
        written, remarks = verl_settings(file, words)
        return convert_verl(written, remarks=tuple(remarks), rows=rows), ""
    if library == "openrlhf":
        written, remarks = openrlhf_settings(file, words)
        return convert_openrlhf(written, remarks=tuple(remarks), rows=rows), ""
    if file is not None and file.suffix == ".py":
        script = read_script(file)
    else:
        script = Script(written={} if file is None else read_tables(file))
    written = {name: with_code(value, str(code)) for name, value in (script.written | key_values(words)).items()}
    return convert_trl(written, remarks=script.remarks, processes=processes, rows=rows), script.source
