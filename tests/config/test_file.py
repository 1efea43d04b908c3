"""A recipe is read and written without loss, and all its mistakes are reported at once."""

import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.config.fields import Piece, WeightedReward
from outdo.config.file import commented, dump, load
from outdo.config.recipe import Recipe
from outdo.config.settings import leaves, settings
from outdo.run.assemble.sampling import sampling_params
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl"]


def mistakes(path, overrides=()):
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    return [line.replace(f"{path}: ", "") for line in caught.value.problems]


@pytest.fixture
def recipe(tmp_path):
    def written(text, name="recipe.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def test_a_recipe_has_few_settings():
    """Each value counts that a recipe can hold, also in nested tables; the options of pieces belong to the pieces."""
    assert {"data.select.low", "optim.schedule", "reference.sync.mix", "sampling.stop"} < {*leaves()}
    assert len(leaves()) <= 84


def test_overrides_replace_settings_of_the_file(recipe):
    path = recipe('model = "m"\n[data]\npath = "x.jsonl"\n[optim]\nlr = 1e-5\nclip_norm = 3.0\n')
    loaded = load(path, ["optim.lr=2e-6", "sampling.stop=['\\n\\n']", "data.shuffle=false"])
    assert (loaded.optim.lr, loaded.optim.clip_norm, loaded.data.shuffle) == (2e-6, 3, False)
    assert loaded.sampling.stop == ("\\n\\n",)


def test_one_list_holds_the_texts_and_the_token_ids_that_end_an_answer():
    params = sampling_params(load(None, [*NEEDED, 'sampling.stop=["END", 7, "7"]']))
    assert (params.stop, params.stop_token_ids) == (("END", "7"), (7,))


def test_an_empty_override_restores_the_default(recipe):
    path = recipe('model = "m"\nsteps = 7\n[data]\npath = "x.jsonl"\neval_path = "y.jsonl"\n')
    loaded = load(path, ["steps=", "data.eval_path="])
    assert (loaded.steps, loaded.data.eval_path) == (100, None)


def test_an_empty_override_of_a_setting_that_does_not_exist_is_a_mistake():
    unknown = ["stepps=", "optim.lrr=", "nothing.at.all="]
    assert mistakes(None, [*NEEDED, *unknown]) == [
        "command line: stepps: unknown setting; did you mean steps?",
        "command line: optim.lrr: unknown setting; did you mean optim.lr?",
        "command line: nothing.at.all: unknown setting",
    ]
    known = ["optim=", "train.objective.beta=", "data.select.low=", "engine.python=", "rewards="]
    assert load(None, [*NEEDED, "train.objective=grpo", "data.select.file=x", *known]).train.objective.name == "grpo"


@pytest.mark.parametrize("train", ["", '[train]\nobjective = "grpo"', '[train]\nobjective = {name = "grpo"}'])
def test_an_option_of_a_piece_can_be_set_alone(recipe, train):
    loaded = load(recipe(train), [*NEEDED, "train.objective.beta=0"])
    assert (loaded.train.objective.name, loaded.train.objective.options) == ("grpo", {"beta": 0})


def test_yaml_gives_the_same_recipe_as_toml(recipe):
    yaml = recipe("model: m\ndata: {path: x.jsonl}\nrewards:\n- exact\n- {name: format, weight: 0.5}\n", "r.yaml")
    toml = recipe('model="m"\nrewards=["exact", {name="format", weight=0.5}]\n[data]\npath="x.jsonl"')
    assert load(yaml) == load(toml)


def test_the_commented_recipe_holds_exactly_the_defaults(recipe):
    path = recipe(commented())
    assert load(path, NEEDED) == Recipe.model_validate({"model": "m", "data": {"path": "x.jsonl"}})
    assert all(setting.description in commented() for setting in settings().values())
    assert len(mistakes(path)) == 2  # the required settings are empty


def test_a_dumped_recipe_is_read_back_equal(recipe):
    rewards = "rewards=[{name='exact', weight=0.1}, 'format', {name='math', place='ray'}]"
    options = ["train.objective={name='grpo', clip_low=0.3}", rewards]
    written = load(None, [*NEEDED, *options, "threads=2", "reference.sync.every=5"])
    assert load(recipe(dump(written))) == written


def test_a_schedule_is_a_name_or_a_table(recipe):
    for text in ('"linear"', '{name = "linear"}', '{name = "linear", warmup = 0}'):
        schedule = load(recipe(f"[optim]\nschedule = {text}"), NEEDED).optim.schedule
        assert (schedule.name, schedule.options.get("warmup", 0)) == ("linear", 0)
    alone = load(recipe('[optim]\nschedule = "linear"'), [*NEEDED, "optim.schedule.warmup=4"]).optim.schedule
    assert (alone.name, alone.options) == ("linear", {"warmup": 4})


@given(
    st.text(st.characters(exclude_categories=["Cs"])), st.floats(1e-300, 1e300), st.lists(st.text("a\"'\\\n\x7f\0é\t"))
)
def test_any_text_and_number_survives_dump_and_load(tmp_path_factory, text, lr, stop):
    values = {"model": "m", "data": {"path": "x", "system": text}, "optim": {"lr": lr}, "sampling": {"stop": stop}}
    written = Recipe.model_validate(values)
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_text(dump(written), encoding="utf-8", newline="")
    assert load(path) == written


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_all_mistakes_are_reported_at_once(recipe):
    path = recipe(
        """
        modle = "m"
        seed = true
        steps = 3.5
        device = "gpu"
        [data]
        path = "x.jsonl"
        [optim]
        lrr = 3
        lr = "1e-6"
        schedule = {name = "cosin", warmup = -3}
        clip_norm = inf
        [train]
        lr = 3
        minibatches = 64
        objective = {name = "grpo", clip_lo = 0.3}
        """
    )
    found = mistakes(path, ["nonsense", "eval.rows=many"])
    assert found == [
        'command line: "nonsense": expected key=value, such as optim.lr=2e-6',
        "model: required",
        "seed: expected a whole number, found true",
        "steps: expected a whole number, found 3.5",
        "device: expected 'auto', 'cpu', 'cuda' or 'mps', found \"gpu\"",
        "train.lr: unknown setting; did you mean optim.lr?",
        'optim.lr: expected a number, found "1e-6", which is text: take the quotes off; in YAML write 1.0e-6 for 1e-6',
        "optim.clip_norm: expected a finite number, found inf",
        "optim.lrr: unknown setting; did you mean optim.lr?",
        'command line: eval.rows: expected a whole number, found "many"',
        "modle: unknown setting; did you mean model?",
        "train.objective.clip_lo: unknown option; did you mean clip_low? grpo takes clip_low, clip_high, beta, "
        "entropy_bonus, kl_ratio, log_ratio_clamp, bypass, teacher_beta, echo, level, surrogate, divergence ...",
        'optim.schedule: nothing is called "cosin"; did you mean cosine?',
        "train.minibatches = 64: a minibatch consists of whole groups, of which there are only train.prompts = 32",
    ]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.micro_batch_tokens=-3", "train.micro_batch_tokens: expected 1 or more or 'auto', found -3"),
        ("sampling.stop=[2.5]", "sampling.stop.0: expected text or a whole number, found 2.5"),
        ("reference.sync.mix=0.5", "reference.sync.every: required"),
        ("optim.lr=-1e-6", "optim.lr: expected a number above 0.0, found -1e-06"),
    ],
)
def test_a_setting_of_several_kinds_gets_one_sentence(override, sentence):
    assert mistakes(None, [*NEEDED, override]) == [f"command line: {sentence}"]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ('rewards={name="exact"', 'rewards: not valid TOML: Unclosed inline table: {name="exact"'),
        ('rewards=["exact", "format"', 'rewards: not valid TOML: Unclosed array: ["exact", "format"'),
        ('optim.schedule="cosine', 'optim.schedule: not valid TOML: Unterminated string: "cosine'),
        ("train.objective.beta=" + "[" * 5000, "train.objective.beta: not valid TOML: nested too deeply"),
    ],
)
def test_a_value_that_begins_like_toml_and_is_cut_off_is_no_name(override, sentence):
    assert mistakes(None, [*NEEDED, override]) == [f"command line: {sentence}"]


@pytest.mark.parametrize("text", ["{prompt}", '"{prompt}', "[{prompt}"])
def test_a_text_setting_may_begin_like_toml(text):
    recipe = load(None, [*NEEDED, f"data.template={text}", f"run={text}"])
    assert (recipe.data.template, recipe.run) == (text, text)


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("a = ", "r.toml", "not valid TOML"),
        (b"\xff", "r.toml", "not UTF-8"),
        ("a = " + "[" * 5000, "r.toml", "nested too deeply"),
        ("#" * 1_000_001, "r.toml", "it holds no settings"),
        ("data = 3", "r.toml", "data: expected a table of settings, found 3"),
        ("a: &x [1]\nb: [*x, *x]", "r.yaml", "line 2: aliases (*) are not accepted"),
        ("model: !!python/object/apply:os.system [id]", "r.yaml", "line 1: tags (!) are not accepted"),
        ("model: m\nmodel: n", "r.yaml", "line 2: model is given twice"),
        (f"seed: {'[' * 25}{']' * 25}", "r.yaml", "line 1: nested too deeply"),
    ],
)
def test_a_file_that_is_not_a_recipe_is_refused_with_the_reason(recipe, text, name, sentence):
    path = recipe(text, name)
    assert any(sentence in line for line in mistakes(path)), mistakes(path)


def test_a_missing_recipe_offers_the_nearest_file(recipe, tmp_path):
    recipe("", "recipe.toml")
    assert mistakes(tmp_path / "recip.toml") == ["no such file; did you mean recipe.toml?"]
    assert mistakes(tmp_path) == ["expected a file, found a folder"]


@pytest.mark.parametrize("run", ["../elsewhere", "runs/../../x", "x/~", "~", "..", "", "a\nb", "a\0b"])
def test_a_run_name_cannot_leave_its_folder(run):
    with pytest.raises(ValueError, match="run"):
        Recipe.model_validate({"model": "m", "data": {"path": "x"}, "run": run})


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    recipe = load(None, ["model=~/m", "data.path=~/train.jsonl", "data.eval_path=~/test.jsonl", "run=~/runs/x"])
    files = [recipe.data.path[0].path, *(each.path for each in recipe.data.eval_path or ())]
    assert [recipe.model, *files, recipe.run] == [
        "/home/me/m",
        "/home/me/train.jsonl",
        "/home/me/test.jsonl",
        "/home/me/runs/x",
    ]


@pytest.mark.parametrize("piece", [Piece, WeightedReward])
def test_every_path_in_options_of_pieces_may_begin_with_the_home_folder(piece, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = {"name": "~/a.py:f", "python": "~/vllm/bin/python", "key": {"file": "~/key"}, "files": ["~/a", "b~/c", "~"]}
    found = piece.model_validate(given)
    assert found.name == "/home/me/a.py:f"
    assert found.options == {
        "python": "/home/me/vllm/bin/python",
        "key": {"file": "/home/me/key"},
        "files": ["/home/me/a", "b~/c", "~"],
    }


@given(st.dictionaries(st.sampled_from([*settings(), "data", "train", "x.y"]), st.text() | st.integers() | st.none()))
def test_every_override_gives_a_recipe_or_mistakes(values):
    with suppress(UserError):
        assert isinstance(load(None, [f"{key}={value}" for key, value in values.items()]), Recipe)


def test_reading_a_recipe_loads_neither_torch_nor_transformers():
    heavy = "{'torch', 'transformers', 'datasets'} & sys.modules.keys()"
    modules = (
        "outdo.config.recipe, outdo.config.file, outdo.config.rules, outdo.data.questions, outdo.run.check.preflight"
    )
    program = f"import sys, {modules}; outdo.config.file.load(None, {NEEDED}); sys.exit(len({heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
