"""What outdo writes at the beginning of a chat template: defaults of its options, and a date.

Both are saved with the tokenizer, so everybody who renders a prompt for the model writes what the training wrote.

Templates such as Llama 3.2's write today's date with `strftime_now`, a function that transformers gives them. So the
prompts of one run would differ from day to day, and those of two evaluations. A template with a date of its own begins
with a macro of this name, which hides the function and formats the kept date.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

DATE = "strftime_now"
"""The option of a chat template that sets the date, in ISO 8601: it has the name of the function."""

BEGIN_DATE = "{#- outdo: the date of this chat template: "
END_DATE = "{#- outdo: end of the date #}\n"
BEGIN = "{#- outdo: defaults of this chat template #}\n"
END = "{#- outdo: end of the defaults #}\n"
"""What is before and after each part. transformers removes the line break after each comment."""

_DATE = re.compile(re.escape(BEGIN_DATE) + r"([\d:T-]+) #\}\n")
_DIRECTIVES = "aAwdbBmyYHIpMSfzZjUWcxXGuVCDeFhnrRtT"
"""The letters after % that strftime knows in C99, and %f of Python."""


def with_date(template: str, date: str) -> str:
    """Return a chat template that writes `date`, in ISO 8601, in place of today's; it replaces an earlier one."""
    moment = datetime.fromisoformat(date)
    known = [f"%{flag}{letter}" for flag in ("", "-") for letter in _DIRECTIVES]
    values = {directive: moment.strftime(directive) for directive in known}
    replaced = json.dumps({"%%": "\0", **values, "\0": "%"}, ensure_ascii=False)  # \0: a % that begins no directive
    macro = (
        f"{{%- macro {DATE}(format) %}}{{% set date = namespace(text=format) %}}"
        f"{{% for directive, value in {replaced}.items() %}}"
        "{% set date.text = date.text | replace(directive, value) %}{% endfor %}{{ date.text }}{% endmacro %}\n"
    )
    return f"{BEGIN_DATE}{date} #}}\n{macro}{END_DATE}{_without_date(template)}"


def date_of(template: str) -> str | None:
    """Return the date that a chat template keeps; None if it keeps none."""
    match = _DATE.match(template)
    return match[1] if match else None


def with_defaults(template: str, options: Mapping[str, Any]) -> str:
    """Return a chat template with defaults of its options; they replace earlier ones, and an earlier date stays."""
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in options.items()}
    lines = (
        f"{{%- if not {name} is defined %}}{{%- set {name} = {value} %}}{{%- endif %}}\n"
        for name, value in values.items()
    )
    changed = "".join([BEGIN, *lines, END, without_header(template)])
    date = date_of(template)
    return changed if date is None else with_date(changed, date)


def without_header(template: str) -> str:
    """Return a chat template without the date and the defaults that were set for it."""
    template = _without_date(template)
    return template.partition(END)[2] if template.startswith(BEGIN) else template


def _without_date(template: str) -> str:
    return template.partition(END_DATE)[2] if _DATE.match(template) else template


def now() -> str:
    """Return the local time to the second, in ISO 8601."""
    return datetime.now().isoformat(timespec="seconds")
