"""The rows of a group of agents' episodes: a prompt that all of them have in common, and what follows in each."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outdo.extras.agents.session import Node, Session
from outdo.extras.episodes.conversation import Conversation
from outdo.types.rows import UNKNOWN_EXPERT


def lay_out(sessions: Sequence[Session], conversations: Sequence[Conversation]) -> None:
    """Give the episodes of a group their tokens, and the reason for their end: that of their longest conversation.

    The agents of a group may write different prompts. The prompt of the group is as much as is equal in all of them;
    the rest belongs to the rows, and is not trained.
    """
    ends = [session.ends() for session in sessions]
    beginnings = [of_session[0].path[0].token_ids for of_session in ends if of_session]
    alike = [tokens for tokens in beginnings if tokens[:1] == beginnings[0][:1]]
    shared = min((_shared(alike[0], tokens) for tokens in alike), default=0)
    for session, conversation, of_session in zip(sessions, conversations, ends, strict=True):
        conversation.counts = session.counts
        if alike:
            conversation.prompt = replace(conversation.prompt, token_ids=alike[0][:shared])
        if not of_session:
            continue
        if of_session[0].path[0].token_ids not in alike:
            conversation.fail(ValueError("its conversation begins with another token than those of its group"))
            continue
        _fill(conversation, of_session, shared)
        if conversation.failure is None:
            conversation.finish_reason = session.ended_by or of_session[0].finish_reason


def _shared(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(tokens), len(others)))


def _fill(episode: Conversation, ends: Sequence[Node], shared: int) -> None:
    """Add the tokens of the conversations that end with `ends`, without the first `shared` of the first."""
    row: list[int] = []
    sampled: list[bool] = []
    logprobs: list[float] = []
    laid_out: list[tuple[tuple[int, ...], list[int]]] = []  # of each conversation: its tokens, and their columns
    routes: list[Tensor | None] = []
    trained: set[int] = set()  # the answers that are in the row: each of them is trained once
    for end in ends:
        tokens = (*end.token_ids, *end.completion.token_ids)
        new = [node for node in end.path if id(node) not in trained]
        start_of_new, before = _fork(tokens, len(new[0].token_ids), laid_out)
        start = len(row) - start_of_new  # the column of a token less its place in the conversation
        if laid_out:
            episode.forks.append((len(row), before[-1] if before else -1))
        laid_out.append((tokens, [*before, *range(start + start_of_new, start + len(tokens))]))
        row += tokens[start_of_new:]
        sampled += [False] * (len(tokens) - start_of_new)
        logprobs += [0.0] * (len(tokens) - start_of_new)
        for node in new:
            first, last = start + len(node.token_ids), start + len(node.token_ids) + len(node.completion.token_ids)
            sampled[first:last] = [True] * (last - first)
            logprobs[first:last] = node.completion.logprobs
            trained.add(id(node))
        routes.append(_routes(end, start_of_new))
    main = ends[0]
    episode.token_ids, episode.sampled, episode.logprobs = row[shared:], sampled[shared:], logprobs[shared:]
    episode.turns, episode.text, episode.prefill = len(trained), main.text, main.prefill
    episode.last_turn = replace(main.completion, routes=_joined(routes))
    episode.messages = list(main.messages[len(main.path[0].messages) - 1 :])


def _fork(
    tokens: Sequence[int], own: int, laid_out: Sequence[tuple[tuple[int, ...], list[int]]]
) -> tuple[int, list[int]]:
    """Return how many of the tokens are in the row already, as those of an earlier conversation, and their columns.

    The last of the `own` tokens before the first new answer never is: it separates the turns of two conversations.
    """
    shared, columns = 0, list[int]()
    for earlier, places in laid_out:
        if (common := min(_shared(tokens, earlier), own - 1)) > shared:
            shared, columns = common, places[:common]
    return shared, columns


def _routes(end: Node, kept: int) -> Tensor | None:
    """Return the routes of a conversation from the token `kept` on; those of its last token are not known."""
    routes = end.completion.routes
    if routes is None:
        return None
    return torch.cat([routes[kept:], routes.new_full((1, *routes.shape[1:]), UNKNOWN_EXPERT)])


def _joined(routes: Sequence[Tensor | None]) -> Tensor | None:
    known = [route for route in routes if route is not None]
    return torch.cat(known) if len(known) == len(routes) else None
