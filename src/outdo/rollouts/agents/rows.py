"""The rows of a group of agents' episodes: a prompt that all of them have in common, and what follows in each."""

from collections.abc import Sequence
from dataclasses import replace

from outdo.rollouts.agents.session import Node, Session
from outdo.rollouts.environments.conversation import Conversation


def lay_out(sessions: Sequence[Session], conversations: Sequence[Conversation]) -> None:
    """Give the conversations of a group their tokens.

    The agents of a group may write different prompts. The prompt of the group is as much as is equal in all of them;
    the rest belongs to the rows, and is not trained.
    """
    ends = [session.trained() for session in sessions]
    beginnings = [end.path[0].token_ids for end in ends if end is not None]
    alike = [tokens for tokens in beginnings if tokens[:1] == beginnings[0][:1]]
    shared = _shared(alike)
    for session, conversation, end in zip(sessions, conversations, ends, strict=True):
        conversation.counts = session.counts
        if alike:
            conversation.prompt = replace(conversation.prompt, token_ids=alike[0][:shared])
        if end is None:
            continue
        if end.path[0].token_ids not in alike:
            conversation.fail(ValueError("its conversation begins with another token than those of its group"))
            continue
        _fill(conversation, end, shared)
        if conversation.failure is None:
            conversation.finish_reason = session.ended_by or end.completion.finish_reason


def _shared(rows: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens with which all rows begin."""
    for place, tokens in enumerate(zip(*rows, strict=False)):
        if len(set(tokens)) > 1:
            return place
    return min(map(len, rows), default=0)


def _fill(conversation: Conversation, end: Node, shared: int) -> None:
    """Add the tokens of the row that ends with `end`, without the first `shared`."""
    row = (*end.token_ids, *end.completion.token_ids)
    sampled, logprobs = [False] * len(row), [0.0] * len(row)
    for node in end.path:
        first, last = len(node.token_ids), len(node.token_ids) + len(node.completion.token_ids)
        sampled[first:last] = [True] * (last - first)
        logprobs[first:last] = node.completion.logprobs
    conversation.token_ids = list(row[shared:])
    conversation.sampled, conversation.logprobs = sampled[shared:], logprobs[shared:]
    conversation.turns = len(end.path)
    conversation.last_turn, conversation.text = end.completion, end.text
    conversation.messages = list(end.messages[len(end.path[0].messages) - 1 :])
