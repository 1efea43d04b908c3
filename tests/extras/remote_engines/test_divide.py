"""Requests are divided among processes: prompts stay together, and all processes end at about the same time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outdo.extras.remote_engines.divide import Places, divide, in_order
from outdo.types import Request
from outdo.utils.rng import Stream


def request(prompt: int, max_tokens: int = 10) -> Request:
    return Request(token_ids=(prompt,), stream=Stream("train", 1, str(prompt), 0), max_tokens=max_tokens)


GROUPS = [request(prompt) for prompt in range(4) for _ in range(3)]


def test_the_answers_of_a_prompt_are_sampled_by_one_process():
    assert divide(GROUPS, 2) == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


def test_a_single_prompt_is_divided_among_all_processes():
    assert divide([request(0)] * 5, 2) == [[0, 1, 2], [3, 4]]


def test_the_longest_answers_are_dealt_first():
    requests = [request(0, 1), request(1, 2), request(2, 4), request(3, 7)]
    assert divide(requests, 2) == [[3], [2, 1, 0]]


def test_the_next_turn_of_an_episode_goes_where_the_turns_before_it_were_sampled():
    first = [replace(each, episode=each.stream._replace(sample=place)) for place, each in enumerate(GROUPS)]
    places = Places(3)
    parts = places.divide(first)
    for chosen in ([0, 3, 6, 9], [9, 10], [1], list(range(12))):
        later = [replace(first[place], token_ids=(place, 7)) for place in chosen]
        expected = [[index for index, place in enumerate(chosen) if place in part] for part in parts]
        while expected and not expected[-1]:
            expected.pop()
        assert places.divide(later) == expected
    ended = places.end([each.episode for each in first[:4]])
    assert ended == [[first[place].episode for place in range(4) if place in part] for part in parts]
    assert places.end([first[0].episode]) == [[], [], []]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50))), st.integers(1, 6))
def test_every_request_is_answered_once_and_in_its_place(drawn, processes):
    requests = [request(*each) for each in drawn]
    parts = divide(requests, processes)
    assert all(parts)
    assert len(parts) <= processes
    assert in_order(parts, [[requests[index] for index in part] for part in parts]) == requests
