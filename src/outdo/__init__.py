"""outdo improves a language model against its own past self: GRPO and its whole family.

Names are loaded when they are first used, so that `import outdo` needs neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outdo.types import Batch as Batch
    from outdo.types import Completion as Completion
    from outdo.types import Group as Group
    from outdo.types import Prompt as Prompt
    from outdo.types import Rollout as Rollout
    from outdo.types import Step as Step

__version__ = "0.1.0"

HOME = {  # public name: the room it lives in
    "Batch": "outdo.types",
    "Completion": "outdo.types",
    "Group": "outdo.types",
    "Prompt": "outdo.types",
    "Rollout": "outdo.types",
    "Step": "outdo.types",
    "train": "outdo.loop",
}

__all__ = [*HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'outdo' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOME})
