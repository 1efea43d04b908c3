"""Secrets, such as the key of a service: where one is found, what looks like one, and how it is kept out of texts.

A secret is written as a table that names its place, `{env = "NAME"}` or `{file = "path"}`, and never as its value.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.utils.errors import UserError

_SECRET_NAME = re.compile(
    r"(?:^|[._-])(?:token|secret|password|passwd|credentials?|(?:api|access|secret|private)[_-]?key)$", re.IGNORECASE
)
_TOKEN_OF_A_TOKENIZER = re.compile(
    r"(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|special|image)_token$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_\w{20,}|gh[opsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpr]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Keys of OpenAI, Anthropic, Hugging Face, GitHub, GitLab, Slack, AWS, Google; JSON web tokens; private keys."""
_PLAUSIBLE = re.compile(r"^\S{6,}$")
"""A text under the name of a secret that may be one; `token = "####"` is not."""
_URL_WITH_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)

HIDDEN = "***"
"""Stands for a secret in a text."""
_SHORTEST = 6
"""Characters of a secret that is worth hiding: a shorter text would hide ordinary words."""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Where a secret is: the environment variable `env`, or the file `file`."""

    env: str | None = None
    file: str | None = None

    @classmethod
    def of(cls, value: Any) -> "SecretPlace | None":
        """Return the place that an option names as `{env = "NAME"}` or `{file = "path"}`; `None` for other options."""
        if isinstance(value, Mapping) and len(value) == 1:
            ((kind, where),) = value.items()
            if kind in ("env", "file") and isinstance(where, str):
                return cls(**{kind: where})
        return None

    def read(self, option: str) -> str:
        """Return the secret, without white space around it; `option` names it in messages.

        Raises:
            UserError: the variable is not set, the file cannot be read, or one of them is empty.
        """
        try:
            text = os.environ.get(self.env, "") if self.env is not None else Path(str(self.file)).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError([f"{option}: {self.file} cannot be read: {error}"]) from None
        if not text.strip():
            empty = f"the environment variable {self.env} is not set" if self.env else f"{self.file} is empty"
            raise UserError([f"{option}: {empty}"])
        return text.strip()


def read_secrets(options: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the reward `name` with the secrets in place of their places, and these secrets.

    Raises:
        UserError: for each secret that cannot be read.
    """
    read, secrets, mistakes = dict(options), [], []
    for option, value in options.items():
        if (secret := SecretPlace.of(value)) is not None:
            try:
                read[option] = secret.read(f"{name}: {option}")
                secrets.append(read[option])
            except UserError as error:
                mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return read, secrets


def has_secret_name(name: str) -> bool:
    """Return whether the name of an option or of a variable is that of a secret: `api_key`, but not `max_tokens`."""
    return _SECRET_NAME.search(name) is not None and _TOKEN_OF_A_TOKENIZER.search(name) is None


def has_secret_value(text: str) -> bool:
    """Return whether a text contains the key of a well-known service, or a URL with a password."""
    return _SECRET_VALUE.search(text) is not None or _URL_WITH_PASSWORD.search(text) is not None


def find_secrets(values: Any, key: str = "") -> Iterator[str]:
    """Yield the dotted keys of all texts in nested tables and lists that look like secrets."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from find_secrets(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from find_secrets(value, key)
    elif isinstance(values, str) and (has_secret_value(values) or (has_secret_name(key) and _PLAUSIBLE.search(values))):
        yield key


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Return the text with `***` for each of `secrets`, and for everything that looks like a secret."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN) if len(secret) >= _SHORTEST else text
    text = _URL_WITH_PASSWORD.sub(lambda match: f"{match[0].partition('://')[0]}://{HIDDEN}@", text)
    return _SECRET_VALUE.sub(HIDDEN, text)
