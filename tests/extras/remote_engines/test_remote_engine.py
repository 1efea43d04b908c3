"""An engine with a copy of the weights: they are delivered when they change, and a lost engine begins again."""

import pytest
from copied_engines import CopyingEngine, separate
from engine_cases import fresh, requests

from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.utils.errors import EngineLostError

SAMPLING = SamplingParams(max_tokens=12)


def test_weights_are_delivered_once_for_each_version():
    policy = fresh()
    engine = CopyingEngine(policy)
    opened = separate(engine)
    opened.update_weights(policy)
    opened.update_weights(policy)
    assert engine.calls.count("update") == 1
    policy.optimiser.steps = 1
    opened.update_weights(policy)
    assert engine.calls.count("update") == 2
    assert opened.version == 1


def test_a_lost_engine_is_restarted_and_proved_again_and_the_same_requests_get_the_same_answers(capsys):
    policy = fresh()
    engine = CopyingEngine(policy, losses=2)
    opened = separate(engine)
    opened.update_weights(policy)
    checked = []
    opened.proof.check = lambda *how: checked.append(how)
    batch = requests(siblings=2)
    assert opened.generate(batch, SAMPLING) == BuiltinEngine(policy).generate(batch, SAMPLING)
    assert engine.calls.count("restart") == opened.restarts == 2
    assert engine.calls.count("update") == 3
    assert len(checked) == 2
    assert "the engine is restarted: it has ended" in capsys.readouterr().err


def test_an_engine_that_is_lost_again_and_again_is_an_error():
    policy = fresh()
    opened = separate(CopyingEngine(policy, losses=9))
    opened.update_weights(policy)
    with pytest.raises(EngineLostError, match="it has ended"):
        opened.generate(requests(), SAMPLING)
    assert opened.restarts == 2
