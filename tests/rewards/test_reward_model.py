"""A reward model scores like transformers, learns from comparisons, and resumes with the same bits."""

import json
import math
import random

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from outdo.extras.reward_models.model import RewardModel, fit
from outdo.extras.reward_models.online_model import OnlineRewardModel, reward_model
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards import InProcessReward, RewardInput, Status
from outdo.rewards.comparisons import Comparison, Ranking, comparison_loss, pairs_of, ranking_of
from outdo.rewards.context import RewardContext
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.testing import ARCHITECTURES, CHAT_TEMPLATE, tiny_model
from outdo.types import FinishReason, Group, Prompt, Rollout
from outdo.utils.errors import ModelError, NonFiniteWeightsError, OutdoError, UserError

WITHOUT = {"bailing_hybrid", "bamba", "lfm2", "mamba"}  # transformers has no classifiers of these
CAUSAL = sorted(set(ARCHITECTURES) - WITHOUT)
LEARNING = OptimiserSettings(lr=3e-3)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "policy"
    tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def saved(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "reward"
    RewardModel.from_policy(policy, device="cpu").save(folder)
    return folder


def inputs_for(*completions, prompt="7+8="):
    return [RewardInput(prompt=prompt, completion=each, answer=None) for each in completions]


def values(outputs):
    assert all(each.status is Status.ok for each in outputs)
    return [each.value for each in outputs]


def test_it_reads_all_messages_of_an_episode(policy):
    model = RewardModel.from_policy(policy, device="cpu")
    model.tokenizer.chat_template = CHAT_TEMPLATE
    call = [{"role": "assistant", "content": "add 7 8"}, {"role": "user", "content": "15"}]
    episodes = [
        RewardInput(prompt="7+8=", completion="It is 15.", answer=None, messages=[*turns, LAST])
        for turns in ([], call, [{**call[0], "content": "add 7 9"}, call[1]])
    ]
    asked = [{"role": "user", "content": "7+8="}]
    expected = [model.encode([*asked, *episode.messages[:-1]], "It is 15.") for episode in episodes]
    assert values(model(episodes)) == pytest.approx(model.scores(expected).tolist())
    assert len(set(values(model(episodes)))) == 3
    assert episodes[1].messages[:-1] == call


LAST = {"role": "assistant", "content": "It is 15."}


def even(completion):
    """The hidden rule: the answer's last digit is even."""
    return float(completion[-1] in "02468")


def digits(count, *, seed, length=3):
    source = random.Random(seed)
    return ["".join(source.choice("0123456789") for _ in range(length)) for _ in range(count)]


def preferences(count, *, seed):
    """Pairs by the hidden rule, each of a prompt of its own."""
    texts = digits(4 * count, seed=seed)
    good, bad = [text for text in texts if even(text)], [text for text in texts if not even(text)]
    pairs = zip(digits(count, seed=seed + 1), good, bad, strict=False)
    return [
        Comparison(prompt=f"{digits_}?", completions=(better, worse), values=(1, 0)) for digits_, better, worse in pairs
    ]


# ---------------------------------------------------------------------------------------------------------- the scores


@pytest.mark.parametrize("arch", CAUSAL)
def test_a_score_equals_that_of_transformers_for_the_single_row(arch, tmp_path):
    tiny_model(tmp_path / "policy", arch=arch)
    RewardModel.from_policy(tmp_path / "policy", device="cpu").save(tmp_path / "reward")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "reward")
    completions = ["15", "", "a much longer answer, so that others are padded", "16"]
    found = values(RewardModel.load(tmp_path / "reward", device="cpu")(inputs_for(*completions)))
    with torch.no_grad():
        rows = [[*tokenizer.encode("7+8=" + each), tokenizer.eos_token_id] for each in completions]
        alone = [float(theirs(torch.tensor([row])).logits) for row in rows]
    assert theirs.config.num_labels == 1
    assert found == pytest.approx(alone, abs=1e-5)
    assert len({round(score, 3) for score in found}) == len(found)


def test_a_score_does_not_depend_on_the_batch(saved):
    completions = [text * (1 + place % 5) for place, text in enumerate(digits(12, seed=3))]
    together = values(RewardModel.load(saved, device="cpu")(inputs_for(*completions)))
    few = RewardModel.load(saved, device="cpu", micro_batch_tokens=24)
    assert values(few(inputs_for(*completions))) == pytest.approx(together, abs=1e-5)
    assert [values(few(inputs_for(each)))[0] for each in completions] == pytest.approx(together, abs=1e-5)


def test_the_prompt_is_rendered_by_the_chat_template_like_that_of_the_policy(saved):
    model = RewardModel.load(saved, device="cpu")
    plain = model.encode("hello", "you")
    model.tokenizer.chat_template = CHAT_TEMPLATE
    assert plain == (*model.tokenizer.encode("helloyou"), model.tokenizer.eos_token_id)
    assert model.tokenizer.decode(model.encode("hello", "you")) == "<|user|>hello<|end|><|assistant|>you<|end|>"
    assert model.encode([{"role": "user", "content": "hello"}], "you") == model.encode("hello", "you")


@pytest.mark.parametrize("pad", [None, "end"])
def test_the_score_is_read_at_the_end_token_if_the_model_has_no_pad_token(pad, policy, tmp_path):
    network, tokenizer = tiny_model()
    network.config.pad_token_id = tokenizer.eos_token_id if pad else None
    network.save_pretrained(tmp_path)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path)
    model = RewardModel.from_policy(tmp_path, device="cpu")
    short, long = model.encode("1", "2"), model.encode("1", "2, and so on")
    with torch.no_grad():
        hidden = model.model.base_model(torch.tensor([short])).last_hidden_state[0, -1]
        at_the_end = float(model.model.score(hidden))
    assert float(model.scores([short, long])[0]) == pytest.approx(at_the_end, abs=1e-5)
    assert model.tokenizer.pad_token_id == model.model.config.pad_token_id != model.tokenizer.eos_token_id


def test_a_completion_that_is_too_long_fails_and_the_others_are_scored(saved):
    model = RewardModel.load(saved, device="cpu")
    first, long, last = model(inputs_for("15", "9" * 600, "16"))
    assert long.status is Status.failed
    assert "512" in long.reason
    assert [first.value, last.value] == pytest.approx(values(model(inputs_for("15", "16"))), abs=1e-5)
    assert not model.fits(Comparison(prompt="1", completions=("1", "9" * 600), values=(1, 0)))


# ----------------------------------------------------------------------------------------------------------- loading


def test_a_folder_keeps_the_template_that_its_model_was_trained_with(policy, tmp_path):
    first, plain = (
        RewardModel.from_policy(policy, device="cpu", template=text) for text in ("{system}(({prompt}))=", None)
    )
    first.system = "Add: "
    first.save(tmp_path / "first")
    in_a_recipe = reward_model(RewardContext(), path=str(tmp_path / "first"), device="cpu")
    in_a_recipe.save(tmp_path / "second")  # trained further, say
    loaded = RewardModel.load(tmp_path / "second", device="cpu")
    expected = first.encode("7+8", "15")
    assert first.tokenizer.decode(expected) == "Add: ((7+8))=15<|end|>"
    assert in_a_recipe.encode("7+8", "15") == loaded.encode("7+8", "15") == expected
    assert values(in_a_recipe(inputs_for("15", prompt="7+8"))) == values(first(inputs_for("15", prompt="7+8")))
    given = RewardModel.load(tmp_path / "second", device="cpu", template="{prompt}?")
    assert given.encode("7+8", "15") == plain.encode("7+8?", "15")
    given.save(tmp_path / "third")
    assert RewardModel.load(tmp_path / "third", device="cpu").template == "{prompt}?"
    plain.save(tmp_path / "plain")
    assert "outdo" not in (tmp_path / "plain/tokenizer_config.json").read_text(encoding="utf-8")


def test_a_new_head_depends_only_on_its_seed(policy):
    first, again, other = (RewardModel.from_policy(policy, device="cpu", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.model.score.weight, again.model.score.weight)
    assert not torch.equal(first.model.score.weight, other.model.score.weight)
    body = tiny_model()[0].base_model.state_dict()
    assert all(torch.equal(weight, first.model.base_model.state_dict()[name]) for name, weight in body.items())


def test_the_embedding_of_every_token_that_is_read_has_a_gradient_also_after_loading(policy, tmp_path):
    """Even that of the token which is used for padding: a saved and loaded model would otherwise be trained in part."""
    new = RewardModel.from_policy(policy, device="cpu")
    new.save(tmp_path / "saved")
    tokens = [*range(260), new.tokenizer.eos_token_id]
    gradients = []
    for model in (new, RewardModel.load(tmp_path / "saved", device="cpu")):
        model.forward([tokens, tokens[:9]]).sum().backward()  # the second row is padded
        gradients.append(model.model.get_input_embeddings().weight.grad)
    assert all(gradients[0][tokens].abs().sum(1) > 0)
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    "make", [RewardModel.load, RewardModel.from_policy, lambda path: reward_model(RewardContext(), path=str(path))]
)
def test_the_error_for_a_missing_folder_offers_the_nearest_name(make, saved):
    with pytest.raises(ModelError, match=r"no folder 'rewrad'.*did you mean reward"):
        make(saved.parent / "rewrad")


def test_a_language_model_is_refused_as_a_reward_model(policy):
    with pytest.raises(ModelError, match="Qwen3ForCausalLM is no reward model; `outdo reward-model` makes a"):
        RewardModel.load(policy)


# ---------------------------------------------------------------------------------------------------------- the losses


def test_the_pair_loss_is_the_mean_over_all_pairs():
    scores = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    apart = (scores[0] - scores[1], scores[0] - scores[2], scores[2] - scores[1])  # 0 > 2 > 1 by value
    wanted = sum(math.log(1 + math.exp(-float(each))) for each in apart) / 3
    assert float(comparison_loss(scores, [3, 1, 2])) == pytest.approx(wanted, rel=1e-12)
    assert pairs_of([3, 1, 2]) == [(0, 1), (0, 2), (2, 1)]


def test_the_regression_loss_is_the_mean_squared_error():
    assert float(comparison_loss(torch.tensor([0.5, -1.0]), [1.0, 1.0], "regression")) == (0.25 + 4.0) / 2


def test_a_pair_with_equal_scores_is_not_right():
    assert ranking_of([1.0, 1.0, 0.0], [2, 1, 0]) == Ranking(pairs=3, right=2)


def test_every_prompt_has_the_same_weight_however_many_pairs_it_has(policy):
    """The loss of a step is the mean over its comparisons, however they are cut into micro-batches."""
    both = [
        Comparison(prompt="1", completions=tuple("13579"), values=(0, 1, 2, 3, 4)),
        Comparison(prompt="2", completions=("0", "a longer answer"), values=(1, 0)),
    ]
    steps = []
    for micro_batch_tokens in (16, 16384):
        model = RewardModel.from_policy(policy, device="cpu", micro_batch_tokens=micro_batch_tokens)
        alone = [
            float(
                comparison_loss(
                    model.scores([model.encode(each.prompt, text) for text in each.completions]), each.values
                )
            )
            for each in both
        ]
        ranking, metrics = model.update(both)
        assert metrics["loss"] == pytest.approx(sum(alone) / 2, rel=1e-5)
        assert ranking.pairs == 11
        steps.append(metrics["grad_norm"])
    assert steps[0] == pytest.approx(steps[1], rel=1e-4)


# ------------------------------------------------------------------------------------------------------- out of memory


def scarce(model, most, monkeypatch):
    """Let the model's device run out of memory at more than `most` tokens; the sizes that were tried."""
    tried, whole = [], model.forward

    def forward(rows):
        tried.append(len(rows) * max(map(len, rows)))
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(rows)

    monkeypatch.setattr(model, "forward", forward)
    return tried


def test_scores_are_computed_in_the_micro_batches_that_fit_into_memory(saved, monkeypatch):
    inputs = inputs_for(*(text * (1 + place % 5) for place, text in enumerate(digits(12, seed=3))))
    expected = values(RewardModel.load(saved, device="cpu")(inputs))
    model = RewardModel.load(saved, device="cpu", micro_batch_tokens=400)
    tried = scarce(model, 60, monkeypatch)
    assert values(model(inputs)) == pytest.approx(expected, abs=1e-5)
    assert model.batch_sizes.micro_batch_tokens == 50
    tried.clear()
    model(inputs)
    assert max(tried) <= 60


def test_a_step_is_repeated_from_its_beginning_when_memory_runs_out_in_it(saved, monkeypatch):
    pair = Comparison(prompt="2", completions=("3" * 43, "4"), values=(1, 0))
    several = [Comparison(prompt="1", completions=("5" * 18, *"6789"), values=(4, 3, 2, 1, 0)), pair, pair]
    whole, model = (
        RewardModel.load(saved, device="cpu", optimiser=LEARNING, micro_batch_tokens=tokens) for tokens in (10_000, 200)
    )
    tried = scarce(model, 120, monkeypatch)
    (ranking, expected), (found, metrics) = (each.update(several) for each in (whole, model))
    assert tried == [5 * 20, 4 * 45, 5 * 20, 2 * 45, 2 * 45]  # the second one did not fit
    assert found == ranking
    assert metrics == pytest.approx(expected, rel=1e-4)  # with the norm of the gradient
    again = RewardModel.load(saved, device="cpu", optimiser=LEARNING, micro_batch_tokens=200)
    again.load_state(model.state())
    assert again.batch_sizes.micro_batch_tokens == model.batch_sizes.micro_batch_tokens == 100  # in a resumed run too
    again.load_state({name: value for name, value in whole.state().items() if name != "micro_batch_tokens"})


def test_an_answer_that_does_not_fit_alone_is_an_error(saved, monkeypatch):
    model = RewardModel.load(saved, device="cpu")
    scarce(model, 0, monkeypatch)
    with pytest.raises(OutdoError, match="not even one row fits into memory: shorter answers, or fewer"):
        model(inputs_for("15"))


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("loss", ["pairs", pytest.param("regression", marks=pytest.mark.release)])
def test_training_learns_the_hidden_rule(loss, policy):
    model = RewardModel.from_policy(policy, device="cpu", optimiser=LEARNING)
    held_out = preferences(100, seed=1000)
    before = model.ranking(held_out).share
    steps = list(fit(model, preferences(200, seed=0), steps=80, batch=16, loss=loss))
    assert [step.index for step in steps] == list(range(1, 81))
    assert before < 0.7
    assert model.ranking(held_out).share > 0.85
    assert steps[-1].metrics["loss"] < steps[0].metrics["loss"]


# ------------------------------------------------------------------------------------------------------------- refresh


def group(number, completions, reward=0.0, status="ok"):
    prompt = Prompt(id=str(number), text=f"{number}?", token_ids=(1,), answer=str(number))
    return Group(
        prompt=prompt,
        rollouts=tuple(
            Rollout(
                token_ids=(1,),
                loss_mask=(True,),
                logprobs=(0.0,),
                text=text,
                reward=reward,
                status=status,
                finish_reason=FinishReason.stop,
                policy_version=0,
            )
            for text in completions
        ),
    )


def step_of(number):
    """Four groups, each with right and wrong answers."""
    return [group(4 * number + each, [*digits(3, seed=number), "10", "11"]) for each in range(4)]


def online_model(saved, **settings):
    model = RewardModel.load(saved, device="cpu", optimiser=LEARNING)
    return OnlineRewardModel(model, InProcessReward(even), **{"every": 2, "steps": 2, "batch": 4} | settings)


def test_a_killed_and_resumed_run_has_the_same_bits(saved):
    unbroken, resumed = online_model(saved), online_model(saved)
    for number in (1, 2, 3):
        unbroken.after_step(number, step_of(number))
    tree, tensors = pack(unbroken.state())
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed.load_state(unpack(json.loads(json.dumps(tree)), copies))
    metrics = [each.after_step(4, step_of(4)) for each in (unbroken, resumed)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["reward_model/replayed"] > 0
    ours, theirs = (pack(each.state()) for each in (unbroken, resumed))
    assert ours[0] == theirs[0]
    assert all(torch.equal(ours[1][name], theirs[1][name]) for name in ours[1])


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(saved, tmp_path):
    whole = RewardModel.load(saved, device="cpu").state()
    model = RewardModel.load(saved, device="cpu")
    with torch.no_grad():
        model.model.get_parameter("score.weight")[0, 3] = math.nan
    told = r"the reward model reward_model: score.weight holds 1 of 32 numbers that are not finite; lower its lr"
    with pytest.raises(NonFiniteWeightsError, match=told):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(NonFiniteWeightsError, match=told):
        model.state()
    broken = {**whole, "weights": {**whole["weights"], "score.weight": torch.full((1, 32), math.inf)}}
    with pytest.raises(NonFiniteWeightsError, match=r"score.weight holds 32 of 32 numbers"):
        RewardModel.load(saved, device="cpu").load_state(broken)


def test_a_refresh_runs_every_so_many_steps_and_changes_the_scores(saved):
    reward = online_model(saved)
    before = values(reward(inputs_for("10", "11")))
    assert "reward_model/loss" not in reward.after_step(1, step_of(1))
    assert values(reward(inputs_for("10", "11"))) == before
    assert reward.after_step(2, step_of(2))["reward_model/fresh"] == 8
    assert values(reward(inputs_for("10", "11"))) != before


@pytest.mark.parametrize(("replay", "wanted"), [(0.0, 0), (0.1, 1), (0.5, 8), (0.9, 12)])
def test_replay_is_a_share_of_all_comparisons_of_a_refresh(replay, wanted, saved):
    reward = online_model(saved, replay=replay, steps=1)
    for number in range(3):
        reward.observe(step_of(number))
    reward.refresh()
    for number in (3, 4):
        reward.observe(step_of(number))
    metrics = reward.refresh()
    assert (metrics["reward_model/fresh"], metrics["reward_model/replayed"]) == (8, wanted)  # 12 are older


def test_labels_and_rewards_are_separate(saved):
    reward = online_model(saved)
    metrics = reward.observe([group(1, ["10", "11"]), group(2, ["20", "30"], reward=1.0)])
    assert metrics["reward_model/label"] == 0.75
    assert metrics["reward_model/accuracy"] == 0.0  # one pair, and both were given the same
    assert [each.prompt for each in reward.kept] == ["1?"]  # the other has no pair


# --------------------------------------------------------------------------------------------------------- in a recipe


def test_a_reward_model_in_a_recipe_is_trained_only_with_labels(saved):
    plain = reward_model(RewardContext(), path=str(saved), device="cpu")
    assert isinstance(plain, RewardModel)
    live = reward_model(RewardContext(), path=str(saved), labels="exact", every=10, lr=1e-4, device="cpu")
    assert isinstance(live, OnlineRewardModel)
    assert live.model.optimiser.settings.lr == 1e-4
    assert (live.name, live.labels.name) == ("reward_model", "exact")
    live.close()


def test_all_wrong_options_are_reported_at_once(tmp_path):
    with pytest.raises(UserError) as caught:
        reward_model(RewardContext(), path=str(tmp_path / "none"), labels="exact", replay=1.0, steps=0, loss="rank")
    assert [each.split(" must")[0] for each in caught.value.problems] == [
        "reward_model: labels and every",
        "reward_model: replay",
        "reward_model: steps",
        "reward_model: loss",
    ]
