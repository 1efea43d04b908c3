"""Packages that do not fit are named with what to install, and are never taken for a fault of the model."""

from pathlib import Path

import pytest
from installed import pretend

from outdo.utils import packages
from outdo.utils.errors import ModelError
from outdo.utils.packages import PAIRS, explained, misfits, not_imported, version_of

ADAPTERS = ("adapters",)


def texts(extras: tuple[str, ...] | None, level: str) -> list[str]:
    return [str(each) for each in misfits(extras) if each.level == level]


def test_the_packages_of_this_environment_are_those_that_outdo_was_made_for():
    found = {each.name: each for each in packages.packages()}
    assert found["torch"].version == version_of("torch")
    assert found["peft"].range == "<0.22,>=0.21"
    assert "pytest" not in found


def test_a_version_outside_the_range_of_outdo_is_named_with_what_to_install(tmp_path: Path, monkeypatch):
    pretend(tmp_path, monkeypatch, peft="0.3")
    expected = 'needs peft<0.22,>=0.21, and 0.3 is installed: pip install "peft<0.22,>=0.21"'
    assert [text.partition(" ")[0] for text in texts(ADAPTERS, "warning") if text.endswith(expected)] == [
        "outdo[adapters]"
    ]
    assert not any("peft" in text for text in texts(("ray",), "warning"))


def test_a_need_of_a_package_that_outdo_uses_is_compared_too(tmp_path: Path, monkeypatch):
    pretend(tmp_path, monkeypatch, trackio="0.43,pillow<1", pillow="13.0", peft="0.21.0,no-such-package>=2")
    old = 'trackio 0.43 needs pillow<1, and 13.0 is installed: pip install "pillow<1"'
    assert old in texts(("trackio",), "warning")
    missing = 'peft 0.21.0 needs no-such-package>=2, and it is not installed: pip install "no-such-package>=2"'
    assert missing in texts(ADAPTERS, "warning")
    assert missing in texts(None, "warning")
    assert missing not in texts((), "warning")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.one} {pair.other}")
def test_a_known_pair_is_found_where_it_is_installed_and_only_there(tmp_path: Path, monkeypatch, pair: packages.Pair):
    def of_pair() -> list[str]:
        return [text for text in texts(None, pair.level) if pair.why in text]

    for fits in (False, True):
        folder = tmp_path / str(fits)
        folder.mkdir()
        (one, at_least), (other, below) = pair.one.split(">="), pair.other.split("<")
        pretend(folder, monkeypatch, **{one: at_least, other: below if fits else "0.0.1"})
        assert bool(of_pair()) != fits
        assert bool([each for each in misfits(pair.extras) if pair.why in each.text]) != fits
        assert not [each for each in misfits(()) if pair.why in each.text]


def test_what_a_library_says_of_itself_is_not_said_of_the_model():
    said = explained("the adapter does not fit the model", ImportError("the version of B is too old"), ADAPTERS)
    assert said.startswith("the installed packages do not work together (outdo ")
    assert f"peft {version_of('peft')}" in said
    assert said.endswith("the version of B is too old; `outdo doctor --packages` examines them all")
    assert explained("it does not fit", ValueError("no such\n layer"), ADAPTERS) == "it does not fit: no such layer"


def test_a_known_pair_explains_whatever_a_library_raises(tmp_path: Path, monkeypatch):
    pretend(tmp_path, monkeypatch, peft="0.21.0", torchao="0.15.0")
    said = explained("it does not fit", ValueError("not compatible"), ADAPTERS)
    assert said == (
        'peft 0.21.0 with torchao 0.15.0: peft attaches no LoRA beside it: pip install "torchao>=0.18" '
        "(a library says: not compatible)"
    )
    assert explained("it does not fit", ModelError("is not there"), ADAPTERS) == "it does not fit: is not there"


def test_a_package_that_is_there_and_cannot_be_imported_is_not_called_missing():
    absent = ModuleNotFoundError("No module named 'peft'", name="peft")
    assert not_imported(absent, "peft", "install it") == "install it"
    for error in (ImportError("cannot import name 'x'"), ModuleNotFoundError("No module named 'y'", name="y")):
        assert str(error) in not_imported(error, "peft", "install it")
