"""Names that mean something elsewhere than on this machine."""

import os
import re

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}(@[\w./-]+)?")
"""A repository of the Hub, and a commit, tag or branch of it."""

REASONING_GYM = "reasoning-gym:"
"""How the name of a task of reasoning-gym begins, as data."""


def is_local(name: str) -> bool:
    """Return whether `name` means a folder on this machine; otherwise it is a hub name, which is written `owner/name`.

    `runs/first` means a folder if a folder `runs` exists, so that a typing error never becomes a request to the hub.
    """
    folder = os.path.expanduser(name)
    return os.path.exists(folder) or HUB_NAME.fullmatch(name) is None or os.path.isdir(name.partition("/")[0])
