"""What has to be installed for a place in a Ray cluster."""

from collections.abc import Iterator
from importlib.util import find_spec


def ray_mistakes(key: str) -> Iterator[str]:
    """Yield a sentence unless Ray is installed; `key` is what the recipe places."""
    if find_spec("ray") is None:
        yield f'{key}.place: Ray is not installed: pip install "outdo[ray]"'
