"""Show what a reward function prints: safe for a terminal, without secrets, and only so much of it."""

import codecs
import sys
from collections.abc import Sequence

from outdo.utils.secrets import redact
from outdo.utils.text import escape_control

MAX_BYTES = 64 * 1024
"""What is shown of the prints of one call of the reward, which scores the answers of a step."""
_LONGEST_LINE = 8192


class WorkerOutput:
    """Writes the prints of a reward's workers to stderr, line by line.

    `secrets` are texts that are replaced by `***`.
    """

    def __init__(self, name: str, secrets: Sequence[str] = ()) -> None:
        self.name = name
        self.secrets = secrets
        self._seen = 0
        self._line = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def restart(self) -> None:
        """Allow `MAX_BYTES` again."""
        self._seen = 0

    def write(self, data: bytes) -> None:
        """Show the lines that are complete, and at the end (`b""`) the last one, too.

        What goes beyond `MAX_BYTES` is dropped.
        """
        if not data:
            self._flush()
        if self._seen > MAX_BYTES:
            return
        self._line += self._decoder.decode(data[: MAX_BYTES - self._seen])
        self._seen += len(data)
        *lines, self._line = self._line.split("\n")
        if len(self._line) > _LONGEST_LINE:
            lines, self._line = [*lines, self._line], ""
        self._show(lines)
        if self._seen > MAX_BYTES:
            self._flush()
            self._show([f"({self.name} prints more than {MAX_BYTES // 1024} KiB; the rest is not shown)"])

    def _flush(self) -> None:
        """Show a line that is not complete."""
        if self._line:
            line, self._line = self._line, ""
            self._show([line])

    def _show(self, lines: Sequence[str]) -> None:
        if lines:
            shown = ["\t".join(map(escape_control, redact(line, self.secrets).split("\t"))) for line in lines]
            sys.stderr.write("\n".join(shown) + "\n")
            sys.stderr.flush()
