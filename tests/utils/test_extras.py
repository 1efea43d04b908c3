"""An extra that was deleted, or that needs a package, is one sentence that names what asked for it."""

import sys

import pytest

from outdo import extras
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra, missing_extra


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Add two extras to outdo: one that works, and one that imports a package that nobody has."""
    for name, source in (
        ("works", "class Kind: ..."),
        ("needs", "import package_that_nobody_has.part"),
        ("needs_another", "import outdo.extras.deleted.kind"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "kind.py").write_text(source)
    monkeypatch.setattr(extras, "__path__", [*extras.__path__, str(tmp_path)])
    yield tmp_path
    for module in [each for each in sys.modules if each.startswith(("outdo.extras.works", "outdo.extras.needs"))]:
        del sys.modules[module]


@pytest.mark.usefixtures("folder")
def test_the_object_of_an_extra_is_imported():
    assert load_extra("outdo.extras.works.kind:Kind", "engine").__name__ == "Kind"
    assert missing_extra("outdo.extras.works.kind:Kind", "engine") is None


@pytest.mark.parametrize("ask", [load_extra, missing_extra])
def test_a_deleted_extra_is_one_sentence(ask):
    try:
        found = [ask("outdo.extras.deleted.kind:Kind", "engine")]
    except UserError as error:
        found = list(error.problems)
    assert found == ["engine: needs outdo.extras.deleted, which this installation of outdo does not have"]


@pytest.mark.usefixtures("folder")
def test_a_deleted_extra_that_another_one_needs_is_one_sentence():
    with pytest.raises(UserError, match=r"^agent: needs outdo\.extras\.deleted, which this installation"):
        load_extra("outdo.extras.needs_another.kind:Kind", "agent")


@pytest.mark.usefixtures("folder")
def test_a_missing_package_is_one_sentence():
    with pytest.raises(UserError, match="agent: needs the package package_that_nobody_has: install it"):
        load_extra("outdo.extras.needs.kind:Kind", "agent")
