"""Rules about episodes of several turns: does the policy call its tools, and do the calls get it anywhere?"""

from collections.abc import Iterator

from outdo.extras.doctor.series import Finding, RunMetrics


def calls_not_read(run: RunMetrics) -> Iterator[Finding]:
    """Report that most calls cannot be read."""
    if span := run.lasting("tools/unparsed_ratio", above=0.5):
        yield run.fault(
            span,
            f"{span.mean:.0%} of the calls of tools cannot be read, so that the policy gets no results.",
            "It does not know the format of a call: fine-tune it on a few conversations with calls (outdo sft), and "
            "look at what it writes in the record (outdo inspect).",
            past=f"{span.mean:.0%} of the calls of tools could not be read, so that the policy got no results.",
        )


def calls_fail(run: RunMetrics) -> Iterator[Finding]:
    """Report that many calls that can be read have no result."""
    if span := run.lasting("tools/failed_ratio", above=0.3):
        yield run.fault(
            span,
            f"{span.mean:.0%} of the calls of tools end with an error: the tool does not exist, raises, or is late.",
            "tools/unknown, tools/raised and tools/timed_out say which; outdo inspect shows the messages.",
            past=f"{span.mean:.0%} of the calls of tools ended with an error.",
        )


def no_calls(run: RunMetrics) -> Iterator[Finding]:
    """Report that the policy has tools and does not call them."""
    if span := run.lasting("tools/calls", below=0.5):
        before = run.span("tools/calls", last=span.steps[0] - 1)
        stopped = "has stopped calling" if any(before.values) else "never calls"
        yield run.fault(
            span,
            f"the policy {stopped} its tools.",
            "If the questions need them, fine-tune it on a few conversations with calls (outdo sft); an answer without "
            "them should not have a higher reward.",
            past="the policy did not call its tools.",
        )


def turns_at_limit(run: RunMetrics) -> Iterator[Finding]:
    """Report that most episodes end because they have no turn left."""
    if span := run.lasting("completions/turns_ratio", above=0.5):
        limit, setting = f"{run.setting('environment.turns', 8)}, or the environment's own", "environment.turns"
        limit = f"the limit of turns (environment.turns = {limit})"
        if run.setting("environment.environments"):
            limit, setting = "their limit of turns", "turns of the environments"
        yield run.fault(
            span,
            f"{span.mean:.0%} of the episodes end at {limit}.",
            f"Raise {setting}, or give episodes that end by themselves a higher reward.",
            past=f"{span.mean:.0%} of the episodes ended at {limit}.",
        )
