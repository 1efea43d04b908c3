"""On a terminal a long command shows how much is done; elsewhere, and after it, there is nothing."""

from io import StringIO
from threading import Event

from engine_cases import shared
from rich.console import Console

from outdo.cli.progress import answers_of, progress
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Request
from outdo.utils.rng import Stream


def test_a_terminal_shows_what_is_done_of_how_much():
    screen, counted = StringIO(), Event()

    def count() -> tuple[int, int]:
        counted.set()
        return 3, 8

    with progress("answering", count, console=Console(file=screen, force_terminal=True, width=100)):
        assert counted.wait(600)
        counted.clear()
        assert counted.wait(600)  # what was counted first has been shown to the bar
    assert "answering" in screen.getvalue()
    assert "3/8" in screen.getvalue()


def test_elsewhere_nothing_is_written_and_nothing_is_counted():
    file = StringIO()

    def count() -> tuple[int, int]:
        raise AssertionError("nobody looks")

    with progress("answering", count, console=Console(file=file)):
        pass
    assert file.getvalue() == ""


def test_the_builtin_engine_counts_its_finished_answers():
    engine = BuiltinEngine(shared())
    count = answers_of(engine)
    assert count is not None
    assert count() == (0, 0)
    requests = [Request(token_ids=(1, 2), stream=Stream("generate", 0, str(n), 0), max_tokens=4) for n in range(3)]
    engine.generate(requests, SamplingParams(max_tokens=4))
    assert count() == (3, 3)
