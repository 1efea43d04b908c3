"""Check the environment `tools`; the code of its tools is read, and not run."""

from collections.abc import Iterator
from pathlib import Path

from outdo.config.names import TOOLS
from outdo.config.recipe import Piece
from outdo.extras.episodes.check import LIMITS
from outdo.extras.tools.settings import tool_files, tools_mistakes
from outdo.utils.options import ANYTHING, option_mistakes


class ToolsCheck:
    """Checks the environment that is a list of tools."""

    def mistakes(self, piece: Piece) -> Iterator[str]:
        """Yield what is wrong with the options of the environment, and with each tool."""
        yield from option_mistakes("environment", TOOLS, piece.options, checks={"functions": ANYTHING, **LIMITS})
        yield from tools_mistakes(piece.options)

    def files(self, piece: Piece) -> list[Path]:
        """Return the files that the results of the tools depend on, besides Python code that is named."""
        return tool_files(piece.options)


CHECK = ToolsCheck()
