"""An environment whose code was deleted from outdo is one sentence, and costs no other environment anything."""

import pytest

from outdo.config.environments import environment_mistakes, kind_of
from outdo.config.names import AGENT, ENVIRONMENTS, EPISODE, TOOLS, ExtraKind
from outdo.config.recipe import Piece
from outdo.run.assemble.environment import tools_of
from outdo.utils.errors import UserError
from outdo.utils.extras import extra_of

CODE = "class Game: ...\nasync def run(row): ...\n"
CALC = "examples.small_models.calculator:calc"


@pytest.fixture
def pieces(tmp_path, monkeypatch) -> dict[str, Piece]:
    """An environment of each kind."""
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return {
        TOOLS: Piece(name=TOOLS, options={"functions": CALC}),
        AGENT: Piece(name="code.py:run"),
        EPISODE: Piece(name="code.py:Game"),
    }


def test_each_kind_has_a_check_and_what_opens_it_in_the_same_folder(pieces):
    assert {kind: kind_of(piece) for kind, piece in pieces.items()} == {kind: kind for kind in ENVIRONMENTS}
    assert all(extra_of(each.check) == extra_of(each.open) for each in ENVIRONMENTS.values())


@pytest.mark.parametrize("deleted", [TOOLS, AGENT, EPISODE])
def test_a_deleted_kind_is_one_sentence(pieces, monkeypatch, deleted):
    monkeypatch.setitem(ENVIRONMENTS, deleted, ExtraKind(*["outdo.extras.deleted.check:CHECK"] * 2))
    said = "needs outdo.extras.deleted, which this installation of outdo does not have"
    found = {kind: list(environment_mistakes(piece)) for kind, piece in pieces.items()}
    assert found == {kind: [f"environment: {said}"] * (kind == deleted) for kind in pieces}
    by_row = Piece(name="by_row", options={"environments": dict(pieces)})
    assert list(environment_mistakes(by_row)) == [f"environment.environments.{deleted}: {said}"]
    with pytest.raises(UserError, match=said):
        tools_of(pieces[deleted])
