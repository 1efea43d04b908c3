"""Open the environment `tools`: episodes in which the policy calls functions, and nobody answers its other turns."""

from outdo.config.recipe import Piece
from outdo.extras.episodes.environment import EpisodeKind, Episodes, limits_of, timeout_of
from outdo.extras.episodes.episode import Player
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.tools.loading import load_tools, tool_notes
from outdo.extras.tools.settings import tools_in


def load_episodes(piece: Piece) -> Episodes:
    """Return episodes with the tools of a recipe. Raises `UserError` with everything that is wrong with them."""
    timeout = timeout_of(piece)
    tools = ToolBox(load_tools(tools_in(piece.options), timeout))
    return Episodes(make=lambda: Player(None, tools, timeout=timeout), tools=tools.schemas, **limits_of(piece))


TOOLS = EpisodeKind(load_episodes, lambda piece: tool_notes(tools_in(piece.options)))
