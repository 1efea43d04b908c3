"""Show groups and steps as HTML in a notebook: `outdo.show(step, tokenizer)`.

The HTML needs no other file and has no script. Text of a model, a data set or a reward stays text, and marks replace
characters that hide, move or reorder others. The colours are transparent, so that they work on light and on dark
backgrounds; underlines show the same without colours.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from outdo.extras.record.tokens import net_pushes
from outdo.models.token_text import TokenTexts
from outdo.types import Group, Rollout, Step
from outdo.utils.errors import UserError
from outdo.utils.text import counted, mark_invisible, shortened

LONGEST = 10_000
"""The maximum number of characters shown of a text."""

LEVELS = 4
"""Colour levels in each direction; they grow with the square root of the leverage, so that a small one is visible."""

STYLE = """<style>
.outdo-view { font: 13px/1.5 system-ui, sans-serif; max-width: 70em }
.outdo-view pre { font: 12px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  background: none; color: inherit; unicode-bidi: isolate }
.outdo-view dl { margin: 0 0 .5em; display: grid; grid-template-columns: max-content 1fr; gap: 0 1em }
.outdo-view dt, .outdo-view small { opacity: .7 }
.outdo-view dd { margin: 0 }
.outdo-view li { display: grid; grid-template-columns: 9em 1fr; gap: 1em; padding: .35em 0;
  border-top: 1px solid rgba(128, 128, 128, .35) }
.outdo-view ol { list-style: none; margin: 0; padding: 0 }
.outdo-view span[class] { border-radius: 2px; text-decoration-thickness: 2px; text-underline-offset: 3px }
.outdo-view [class^=up] { text-decoration-line: underline }
.outdo-view [class^=down] { text-decoration: underline dotted }
.outdo-view .up1 { background: rgba(36, 132, 200, .14) } .outdo-view .down1 { background: rgba(226, 116, 24, .14) }
.outdo-view .up2 { background: rgba(36, 132, 200, .26) } .outdo-view .down2 { background: rgba(226, 116, 24, .26) }
.outdo-view .up3 { background: rgba(36, 132, 200, .38) } .outdo-view .down3 { background: rgba(226, 116, 24, .38) }
.outdo-view .up4 { background: rgba(36, 132, 200, .52) } .outdo-view .down4 { background: rgba(226, 116, 24, .52) }
</style>"""


class Html(str):
    """A string of HTML that a notebook renders."""

    def _repr_html_(self) -> str:
        return str(self)


def show(shown: Step | Group, tokenizer: PreTrainedTokenizerBase | None = None, *, group: int = 0) -> Html:
    """Show a group in a notebook: its prompt and its rollouts, the highest reward first.

    For a step, `group` is the index of the group, from 0. With the policy's `tokenizer`, each token is coloured by its
    leverage: the push of all passes, summed over the answers with the same beginning (`net_pushes`), times 1 - π_old.
    The push alone is nearly the same for all tokens of an answer; the leverage says which of them it could move. Raises
    `UserError` if the step has no such group.
    """
    if isinstance(shown, Group):
        completions = [_row(rollout, _text(rollout.text)) for rollout in _sorted(shown)]
        return Html(_view(shown, counted(len(completions), "answer"), completions))
    return Html(_step_html(shown, tokenizer, group))


def _step_html(step: Step, tokenizer: PreTrainedTokenizerBase | None, group: int) -> str:
    if not 0 <= group < len(step.groups):
        raise UserError(
            [f"step {step.index} has {counted(len(step.groups), 'group')}, counted from 0: there is no group {group}"]
        )
    shown = step.groups[group]
    pushed = _pushed(step, group)
    most = max((abs(token.leverage) for row in pushed for token in row), default=0.0)
    token_texts = None if tokenizer is None else TokenTexts(tokenizer)
    before = shown.prompt.token_ids
    texts = [
        _text(rollout.text) if token_texts is None else _tokens(token_texts, rollout, before, row, most)
        for rollout, row in zip(shown.rollouts, pushed, strict=True)
    ]
    by_rollout = {id(rollout): text for rollout, text in zip(shown.rollouts, texts, strict=True)}
    completions = [_row(rollout, by_rollout[id(rollout)]) for rollout in _sorted(shown)]
    legend = ""
    if tokenizer is not None and most > 0:
        legend = (
            f'; leverage: net push × (1 - probability), at most {most:.3g}: <span class="up3">pushed up</span>, '
            '<span class="down3">pushed down</span>'
        )
    return _view(shown, f"Step {step.index}, group {group} of {len(step.groups)}{legend}", completions)


def _sorted(group: Group) -> list[Rollout]:
    """Sort rollouts by reward, highest first, those without a reward last."""
    return sorted(group.rollouts, key=lambda rollout: -rollout.reward if rollout.scored else math.inf)


class _Pushed(NamedTuple):
    """How a token was pushed."""

    net: float  # the sum of the pushes on its probability
    logprob: float  # before the step

    @property
    def leverage(self) -> float:
        return self.net * -math.expm1(self.logprob)


def _pushed(step: Step, group: int) -> list[list[_Pushed]]:
    """Return how each token of each completion of a group was pushed."""
    batch = step.batch
    rows = (batch.group == group).nonzero().squeeze(1)
    passes = [update.tokens for update in step.updates if update.tokens]
    nothing = torch.zeros(batch.loss_mask.shape)
    net, old = nothing, nothing
    if passes:
        net, _ = net_pushes(batch, torch.stack([tokens["push"] for tokens in passes]).sum(0))
        old = passes[0]["logprobs"] if batch.old_logprobs is None else batch.old_logprobs
    rollouts: list[list[_Pushed]] = []
    for row, rollout in zip(rows.tolist(), step.groups[group].rollouts, strict=True):
        first = int(batch.prompt_lengths[row])
        numbers = torch.stack([net[row], old[row]], 1)[first : first + len(rollout.token_ids)]  # [t, 2]
        rollouts.append([_Pushed(*numbers_of_token) for numbers_of_token in numbers.tolist()])
    return rollouts


def _tokens(
    token_texts: TokenTexts, rollout: Rollout, after: Sequence[int], pushed: Sequence[_Pushed], most: float
) -> str:
    spans: list[str] = []
    for piece, token in zip(token_texts.pieces(rollout.token_ids, after=after), pushed, strict=True):
        level = round(LEVELS * math.sqrt(abs(token.leverage) / most)) if most else 0
        kind = f' class="{"up" if token.net > 0 else "down"}{level}"' if level else ""
        title = f"net push {token.net:+.3g}, probability {math.exp(token.logprob):.3g}"
        spans.append(f'<span{kind} title="{title}">{escape(mark_invisible(shortened(piece, LONGEST)))}</span>')
    return "".join(spans)


def _view(group: Group, what: str, completions: Sequence[str]) -> str:
    prompt = group.prompt
    fields = {"prompt": _text(_prompt(prompt.text)), "id": _text(prompt.id)}
    if prompt.answer is not None:
        fields["answer"] = _text(str(prompt.answer))
    if group.baseline is not None:
        fields["baseline"] = f"{group.baseline:.4g}"
    items = "".join(f"<dt>{name}</dt><dd><pre>{text}</pre></dd>" for name, text in fields.items())
    rows = "".join(completions)
    return f'{STYLE}<div class="outdo-view"><p>{what}</p><dl>{items}</dl><ol>{rows}</ol></div>'


def _row(rollout: Rollout, text: str) -> str:
    reward = f"{rollout.reward:.4g}" if rollout.scored else "no reward"
    verdict = {True: "right", False: "wrong", None: ""}[rollout.right]
    word = verdict if rollout.scored else _text(str(rollout.status))
    end = str(rollout.finish_reason)
    cut = "" if end == "stop" else f"<br><small>{_text(end)}</small>"
    size = f"<br><small>{counted(len(rollout.token_ids), 'token')}</small>"
    return f"<li><div>{reward} <small>{word}</small>{size}{cut}</div><pre>{text}</pre></li>"


def _prompt(text: Any) -> str:
    """Return a prompt's text; for chat messages, one line per message."""
    if isinstance(text, str):
        return text
    return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in text)


def _text(text: str) -> str:
    return escape(mark_invisible(shortened(text, LONGEST), spaces=False))
