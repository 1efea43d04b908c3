"""Check the environment `tools`; the code of its tools is read, and not run."""

from collections.abc import Iterator

from outdo.config.environments import EnvironmentCheck
from outdo.config.names import TOOLS
from outdo.config.recipe import Piece
from outdo.extras.episodes.check import LIMITS
from outdo.extras.tools.settings import tool_files, tools_mistakes
from outdo.utils.options import ANYTHING, option_mistakes


def environment_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the options of the environment, and with each tool."""
    yield from option_mistakes("environment", TOOLS, piece.options, checks={"functions": ANYTHING, **LIMITS})
    yield from tools_mistakes(piece.options)


CHECK = EnvironmentCheck(environment_mistakes, lambda piece: tool_files(piece.options))
