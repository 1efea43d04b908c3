"""The adapter of a recipe is checked by the source of PEFT, and by what a run can use."""

import re
import sys

import pytest

from outdo.config import adapters
from outdo.config.adapters import with_names_of_peft
from outdo.config.file import load
from outdo.config.recipe import Piece
from outdo.config.rules import notes
from outdo.models.adapter import adapter_config
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("name = 'lroa'", 'train.adapter: nothing is called "lroa"; did you mean lora?'),
        ("name = 'lora', rnak = 4", "train.adapter.rnak: unknown option; did you mean rank?"),
        ("name = 'lora', peft_type = 'IA3'", "train.adapter.peft_type: unknown option"),
        ("name = 'lora', rank = 4, r = 8", "train.adapter.rank: means the same as r; set only one of them"),
        ("name = 'lora', rank = 'x'", "train.adapter.rank: expected a number such as 8, found 'x'"),
        ("name = 'lora', rslora = 1", "train.adapter.rslora: expected true or false, found 1"),
        ("name = 'lora', lora_dropout = 0.1", "train.adapter.lora_dropout = 0.1: would have no effect, because outdo"),
        ("name = 'lora', init_lora_weights = 'pissa_niter_4'", "changes the base at random"),
    ],
)
def test_a_wrong_adapter_is_refused(options: str, sentence: str):
    with pytest.raises(UserError) as error:
        load(None, [*NEEDED, f"train.adapter={{{options}}}"])
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (['train.adapter="ia3"'], 'train.adapter = "ia3": does not work on a divided model'),
        (
            ["train.adapter={name = 'lora', use_dora = true}"],
            "train.adapter.use_dora: does not work on a divided model",
        ),
        (
            ["train.adapter=lora", "cluster.shard={offload = true}"],
            "cluster.shard.offload = true: an adapter (train.adap",
        ),
        (["train.adapter=lora", "weights=nf4"], 'weights = "nf4": cannot be divided among replicas'),
    ],
)
def test_an_adapter_that_needs_the_whole_base_is_refused_on_a_divided_one(options: list[str], sentence: str):
    divided = ["cluster.replicas=2", "cluster.shard=true"]
    with pytest.raises(UserError, match=re.escape(sentence)):
        load(None, [*NEEDED, *divided, *options])
    load(None, [*NEEDED, "train.adapter={name = 'lora', rank = 4, rslora = true, use_dora = false}", *divided])


@pytest.mark.parametrize("weights", ["int8", "nf4"])
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_an_initialisation_that_changes_the_base_needs_one_that_can_be_changed(weights: str, start: str):
    adapter = f"train.adapter={{name = 'lora', init_lora_weights = '{start}'}}"
    with pytest.raises(UserError, match=f'init_lora_weights = "{start}": changes the base, and weights = "{weights}"'):
        load(None, [*NEEDED, adapter, f"weights={weights}"])
    load(None, [*NEEDED, adapter, "weights=bfloat16"])
    load(None, [*NEEDED, "train.adapter=lora", f"weights={weights}"])


def test_biases_of_an_adapter_are_noted_because_they_may_not_be_merged():
    sentence = "`outdo export --merge` works only if all adapted layers of the model have a bias"
    for adapter, noted in (("{name = 'lora', lora_bias = true}", True), ("lora", False)):
        found = notes(load(None, [*NEEDED, f"train.adapter={adapter}"]))
        assert any(sentence in note for note in found) == noted


def test_a_reference_cannot_be_mixed_of_two_adapters():
    with pytest.raises(UserError, match=r"reference.sync.mix = 0.5: adapters cannot be mixed weight by weight"):
        load(None, [*NEEDED, "train.adapter=lora", "reference.sync={every = 2, mix = 0.5}"])


@pytest.mark.parametrize(
    "options",
    [
        "name = 'lora', rank = 32, alpha = 64, rslora = true",
        "name = 'lora', r = 32, lora_alpha = 64, use_rslora = true, use_dora = true",
        "name = 'lora', lora_dropout = 0.0, init_lora_weights = 'pissa'",
        "name = 'loha', alpha = 4, rank = 2",
    ],
)
def test_the_options_reach_the_configuration_of_peft_by_its_names_or_by_short_ones(options: str):
    recipe = load(None, [*NEEDED, f"train.adapter={{{options}}}"])
    piece = with_names_of_peft(recipe.train.adapter)
    config = adapter_config(piece.name, **piece.options)
    assert {name: getattr(config, name) for name in piece.options} == piece.options


def test_a_short_name_means_the_option_of_peft_unless_the_method_has_one_of_this_name():
    short = {"rank": 4, "alpha": 8, "targets": "all-linear"}
    for name, alpha in (("lora", "lora_alpha"), ("loha", "alpha")):
        found = with_names_of_peft(Piece(name=name, options=short)).options
        assert found == {"r": 4, alpha: 8, "target_modules": "all-linear"}


def test_lora_targets_all_linear_layers_unless_told_otherwise():
    assert adapter_config("lora").target_modules == "all-linear"
    assert adapter_config("lora", target_modules=["q_proj"]).target_modules == {"q_proj"}
    assert adapter_config("lora", target_parameters=["mlp.experts.down_proj"]).target_modules is None


def test_without_peft_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    def missing(where: str) -> None:
        raise UserError([f"{where}: no such Python module"])

    adapters.adapter_methods.cache_clear()
    monkeypatch.setattr(adapters, "source_file", missing)
    monkeypatch.setitem(sys.modules, "peft", None)
    try:
        with pytest.raises(UserError, match=r'train.adapter: needs peft: pip install "outdo\[adapters\]"'):
            load(None, [*NEEDED, "train.adapter=lora"])
        with pytest.raises(UserError, match=r'an adapter needs peft: pip install "outdo\[adapters\]"'):
            adapter_config("lora")
    finally:
        adapters.adapter_methods.cache_clear()
