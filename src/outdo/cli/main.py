"""The command line: its version and help, and how a command ends. `outdo.cli.commands` has the commands."""

import errno
import sys
from typing import Annotated, Any

import typer

import outdo
from outdo.cli.commands import AllCommands
from outdo.utils.errors import OutdoError
from outdo.utils.not_deterministic import not_deterministic
from outdo.utils.out_of_memory import OUT_OF_MEMORY, is_out_of_memory
from outdo.utils.text import for_terminal
from outdo.utils.waiting_threads import wait_asleep


def _leave(status: int | None, **_: Any) -> None:
    """End with the exit status that a command returns."""
    raise typer.Exit(status or 0)


app = typer.Typer(
    cls=AllCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    result_callback=_leave,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outdo {outdo.__version__}")
        raise typer.Exit


@app.callback()
def common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Improve a language model by reinforcement learning, with GRPO and its family."""


def main() -> None:
    """Run a command. An error that the user can fix is printed without a traceback, and sets the exit status."""
    if sys.platform == "win32":
        sys.exit("outdo: Windows is not supported; use Linux, macOS, or Linux on Windows (WSL)")
    wait_asleep()
    try:
        app(prog_name="outdo")  # also for `python -m outdo`
    except OutdoError as error:
        print(f"outdo: {for_terminal(str(error))}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename:
            raise
        print(f"outdo: the output of this command cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(OutdoError.exit_status)
    except (MemoryError, RuntimeError) as error:
        reason = OUT_OF_MEMORY if is_out_of_memory(error) else not_deterministic(error)
        if reason is None:
            raise
        print(f"outdo: {for_terminal(reason)}", file=sys.stderr)
        sys.exit(OutdoError.exit_status)


if __name__ == "__main__":
    main()
