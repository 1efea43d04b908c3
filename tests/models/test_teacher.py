"""Teachers: what they say of each token, and the gradient of the divergence from them."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from engine_cases import apart, fresh, ragged_groups
from policy_cases import prepared, updated
from torch import Tensor
from toys import rollout

import outdo
from outdo.algorithms.advantages import distillation
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.presets import gkd
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.objectives.weights import token_mean
from outdo.algorithms.requirements import requirements_of
from outdo.algorithms.vocabulary_divergences import VocabularyDivergence, forward_kl, jensen_shannon, reverse_kl
from outdo.extras.record.tokens import FREE, token_record
from outdo.models import logprobs as logprobs_module
from outdo.models import teacher as teacher_module
from outdo.models.adapter import adapter_config, attach
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.scorer import BatchSizes
from outdo.models.teacher import Teacher, read_by, top_of, weights_of_rows, with_hints
from outdo.models.teacher_sums import TeacherDivergence, TeacherPull
from outdo.testing import byte_bpe_tokenizer, tiny_model
from outdo.types import Batch, Group, Prompt, Sampled, Step
from outdo.types.lessons import Lesson
from outdo.utils.errors import ModelError, UserError

DIVERGENCES = {
    "reverse": reverse_kl(),
    "forward": forward_kl(),
    "jensen_shannon": jensen_shannon(beta=0.3),
    "top": forward_kl(top=20, teacher_temperature=0.7),
}


def forked_groups() -> list[Group]:
    """Two episodes with two conversations each, and one with a single one."""
    episodes = (rollout(5, 1.0, forks=((4, 2),)), rollout(6, 0.0, forks=((5, 1),)), rollout(3, 0.5))
    return [Group(prompt=Prompt(id="0", text="", token_ids=(5, 6, 7)), rollouts=episodes)]


def teacher_of(
    arch: str = "qwen3", *, seed: int = 5, hidden: int = 32, name: str = "teacher", **options: Any
) -> Teacher:
    """A model of its own, in float64."""
    model, tokenizer = tiny_model(arch=arch, seed=seed, hidden=hidden)
    policy = Policy(model.double(), tokenizer)
    return Teacher(policy.forward, BatchSizes(micro_batch_tokens=60), name=name, **options)


def all_logits(model: Any, batch: Batch, row: int) -> Tensor:
    """The logits that predict the trained tokens of a row, of the row alone. [n, V]"""
    length = int(batch.attention_mask[row].sum())
    logits = model(input_ids=batch.token_ids[row : row + 1, :length]).logits[0, :-1]
    return logits[batch.loss_mask[row, 1:length]]


def expected(
    policy: Policy, teachers: list[Teacher], batch: Batch, divergence: VocabularyDivergence
) -> tuple[float, Tensor]:
    """The mean of D_T over the trained tokens, and its gradient, by autograd through all logits of both models."""
    weights = weights_of_rows(teachers, batch)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        for teacher in teachers:
            with torch.no_grad():
                taught = all_logits(teacher.forward.model, batch, row)
            values = divergence(
                all_logits(policy.model, batch, row), taught, batch.temperature[row].expand(len(taught))
            )
            total = total + weights[teacher.name][row] * values.sum()
    loss = total / batch.totals.tokens
    gradients = torch.autograd.grad(loss, list(policy.model.parameters()))
    return float(loss.detach()), torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("name", list(DIVERGENCES))
@pytest.mark.parametrize(
    ("arch", "layout", "budget"),
    [("qwen3", "shared", 40), ("qwen3", "shared", 10_000), ("qwen3", "padded", 100), ("gemma2", "shared", 40)],
)
def test_the_divergence_trains_as_by_autograd_through_all_logits(
    name: str, arch: str, layout: Literal["shared", "padded"], budget: int
):
    """A teacher of another width, and one of another family whose logits are capped; each row has both."""

    def policy() -> Policy:
        model, tokenizer = tiny_model(arch=arch)
        sizes = BatchSizes(micro_batch_tokens=budget, chunk=7)
        return Policy(model.double(), tokenizer, attention=layout, batch_sizes=sizes)

    teachers = [teacher_of(hidden=48, name="wide"), teacher_of("gemma2", name="capped", weight=3.0)]
    trained, divergence = policy(), DIVERGENCES[name]
    objective = replace(gkd(), teacher_divergence=divergence)
    batch = read_by(teachers, prepared(policy=policy()), states=True)
    heads = {teacher.name: teacher.head() for teacher in teachers}
    update, gradient = updated(trained, batch, objective, heads=heads)
    loss, right = expected(policy(), teachers, batch, divergence)
    assert apart(gradient, right) < 1e-10
    assert update.metrics["loss"] == pytest.approx(loss, rel=1e-10)
    assert update.metrics["loss/teacher"] == pytest.approx(loss, rel=1e-10)
    of_tokens = update.tokens["teacher_divergence"]
    assert float(of_tokens.sum()) / batch.totals.tokens == pytest.approx(loss, rel=1e-10)
    assert not of_tokens[~batch.loss_mask].any()


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("modules", [[], ["lm_head"]], ids=["layers", "layers and head"])
def test_an_adapter_learns_from_its_own_base_as_a_teacher_and_from_another_one(modules: list[str]):
    """The base teaches without the adapter; with `lm_head` the student's output layer is the adapter's own."""
    torch.manual_seed(0)
    model, tokenizer = tiny_model()
    attach(model, adapter_config("lora", r=4, target_modules="all-linear", modules_to_save=modules or None))
    trained = Policy(model.double(), tokenizer, batch_sizes=BatchSizes(micro_batch_tokens=40, chunk=7))
    base = Teacher.of(frozen(trained), name="base")
    with torch.no_grad():
        for weight in trained.optimiser.weights.values():  # an adapter that has been trained
            weight += 0.05 * torch.randn_like(weight)
    teachers, divergence = [base, teacher_of(hidden=48, name="wide")], jensen_shannon(beta=0.3)
    weights = list(trained.optimiser.weights.values())
    batch = read_by(teachers, prepared(policy=trained), states=True)
    heads = {teacher.name: teacher.head() for teacher in teachers}
    scores = trained.scores(batch, {"divergence": TeacherDivergence(divergence, heads)})
    loss = scores.sums["divergence"].sum() / batch.totals.tokens
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        logits = all_logits(trained.model, batch, row)
        for teacher in teachers:
            with torch.no_grad():
                taught = all_logits(teacher.forward.model, batch, row)
            values = divergence(logits, taught, batch.temperature[row].expand(len(taught)))
            total = total + 0.5 * values.sum()
    right = torch.autograd.grad(total / batch.totals.tokens, weights, allow_unused=True)
    assert loss.item() == pytest.approx(total.item() / batch.totals.tokens, rel=1e-10)
    assert [gradient is None for gradient in gradients] == [gradient is None for gradient in right]
    pairs = [(one, other) for one, other in zip(gradients, right, strict=True) if one is not None]
    assert apart(*(torch.cat([part.flatten() for part in parts]) for parts in zip(*pairs, strict=True))) < 1e-10


@pytest.mark.usefixtures("keep_float64")
def test_it_is_a_term_beside_the_others():
    def policy() -> Policy:
        model, tokenizer = tiny_model()
        return Policy(model.double(), tokenizer)

    teacher = teacher_of()
    batch = read_by([teacher], prepared(policy=policy()), states=True)
    heads = {"teacher": teacher.head()}
    others = ComposedObjective(surrogate=clip(low=0.1, high=0.1), beta=0.1, entropy_bonus=0.01, weight=token_mean)
    gradients = [
        updated(policy(), batch, objective, heads=heads)[1]
        for objective in (others, gkd(), replace(others, teacher_beta=0.3))
    ]
    assert apart(gradients[2], gradients[0] + 0.3 * gradients[1]) < 1e-10


@pytest.mark.usefixtures("keep_float64")
def test_conversations_of_an_episode_are_read_as_the_policy_reads_them():
    def policy() -> Policy:
        model, tokenizer = tiny_model()
        return Policy(model.double(), tokenizer)

    batch = prepared(forked_groups(), policy=policy())
    assert batch.previous is not None
    teacher = Teacher.of(frozen(policy()))
    read = read_by([teacher], batch, states=True)
    torch.testing.assert_close(read.teacher_logprobs, policy().logprobs(batch), rtol=0, atol=1e-12)
    update, gradient = updated(policy(), read, gkd(), heads={"teacher": teacher.head()})
    assert update.metrics["loss"] == pytest.approx(0, abs=1e-12)
    assert float(gradient.abs().max()) < 1e-12


def test_a_row_that_names_its_teacher_is_taught_by_it_alone():
    teachers = [teacher_of(seed=5, name="first"), teacher_of(seed=6, name="second", weight=3.0)]
    batch = prepared()
    lessons = tuple(Lesson(teacher="second" if row % 2 else "") for row in range(len(batch)))
    weights = weights_of_rows(teachers, batch.with_(lessons=lessons))
    assert weights["first"][:2].tolist() == [0.25, 0.0]
    assert weights["second"][:2].tolist() == [0.75, 1.0]
    read = read_by(teachers, batch.with_(lessons=lessons), states=False)
    alone = [teacher.read(batch, states=False)[0] for teacher in teachers]
    mean = torch.stack([0.25 * alone[0] + 0.75 * alone[1], alone[1]])
    for row in range(2):
        torch.testing.assert_close(read.teacher_logprobs[row], mean[row, row].float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="a row names the teacher 'third'; expected one of: first, second"):
        weights_of_rows(teachers, batch.with_(lessons=(Lesson(teacher="third"),) * len(batch)))


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("states", [False, True])
def test_a_teacher_with_a_hint_reads_it_before_the_same_answers(states: bool):
    """Rows without a hint are not taught; hints have other lengths than the prompts."""
    model, tokenizer = tiny_model()
    policy = Policy(model.double(), tokenizer)
    batch = prepared(policy=policy)
    hints = [None if row == 1 else tuple(range(10, 12 + row)) for row in range(len(batch))]
    teacher = Teacher.of(policy, reads_hint=True)
    read = read_by([teacher], batch.with_(lessons=tuple(Lesson(prompt=hint) for hint in hints)), states=states)
    for row, hint in enumerate(hints):
        mask = batch.loss_mask[row]
        if hint is None:
            assert read.teacher_logprobs[row].equal(batch.old_logprobs[row].where(mask, 0.0))
            continue
        start, length = int(batch.prompt_lengths[row]), int(batch.attention_mask[row].sum())
        answer = batch.token_ids[row, start:length]
        z = model(input_ids=torch.cat([torch.tensor(hint), answer])[None]).logits[0, len(hint) - 1 : -1]
        of_answer = (z / batch.temperature[row]).log_softmax(1).gather(1, answer[:, None])[:, 0]
        torch.testing.assert_close(read.teacher_logprobs[row][mask], of_answer[mask[start:length]], rtol=0, atol=1e-10)
        if states:
            logits = teacher.head()(read.teacher_states["teacher"][row][mask])
            torch.testing.assert_close(logits, z[mask[start:length]], rtol=0, atol=1e-10)
    assert not distillation(read).advantages[1].any()


@pytest.mark.usefixtures("keep_float64")
def test_the_most_probable_tokens_of_teachers_are_those_of_their_weighted_mean(monkeypatch: pytest.MonkeyPatch):
    """Row 0 names the second teacher, row 1 has no hint for the third, which alone is named; the others have all."""
    monkeypatch.setattr(teacher_module, "TOKENS_AT_ONCE", 3)
    teachers = [teacher_of(seed=5, name="first"), teacher_of(seed=6, hidden=48, name="second", weight=3.0)]
    model, tokenizer = tiny_model()
    batch = prepared(policy=Policy(model.double(), tokenizer))
    lessons = [Lesson(), Lesson(teacher="third"), *[Lesson(prompt=(10, 11, 12))] * (len(batch) - 2)]
    batch = batch.with_(lessons=(Lesson(teacher="second"), *lessons[1:]))
    teachers.append(teacher_of(seed=7, name="third", reads_hint=True))
    rows, token_ids, logprobs = top_of(teachers, batch, 4)
    assert rows.tolist() == [row for row in range(len(batch)) if row != 1]
    read, weights = read_by(teachers, batch, states=False), weights_of_rows(teachers, batch)
    for place, row in enumerate(rows.tolist()):
        mask = batch.loss_mask[row]
        asked, one = mask[: token_ids.shape[1]], batch.rows(torch.tensor([row]))
        mean = torch.zeros((), dtype=torch.float64)
        for teacher in teachers:
            if weights[teacher.name][row]:
                hinted = with_hints(one) if teacher.reads_hint else one
                z = all_logits(teacher.forward.model, hinted, 0) / batch.temperature[row]
                mean = mean + weights[teacher.name][row] * z.detach().log_softmax(1)
        right = mean.topk(4)
        assert token_ids[place][asked].equal(right.indices)
        torch.testing.assert_close(logprobs[place][asked], right.values, rtol=1e-6, atol=1e-6)
        assert not logprobs[place][~asked].any()
        of_sampled = mean.gather(1, batch.token_ids[row][mask][:, None])[:, 0]
        torch.testing.assert_close(read.teacher_logprobs[row][mask].double(), of_sampled, rtol=1e-5, atol=1e-5)


def test_rows_without_a_teacher_have_no_most_probable_tokens_of_one():
    batch = prepared()
    rows, token_ids, logprobs = top_of([teacher_of(reads_hint=True)], batch, 4)
    assert (len(rows), len(token_ids), len(logprobs)) == (0, 0, 0)


def test_few_tokens_have_logits_at_a_time_while_the_most_probable_are_looked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(teacher_module, "TOKENS_AT_ONCE", 5)
    teacher, most = teacher_of(), []
    head = teacher.head()
    monkeypatch.setattr(teacher, "head", lambda: lambda states: (most.append(len(states)), head(states))[1])
    top_of([teacher], prepared(), 4)
    assert max(most) == 5
    assert len(most) > 1


def test_a_hint_before_several_conversations_is_refused():
    policy = fresh()
    batch = prepared(forked_groups(), policy=policy)
    lessons = (Lesson(prompt=(1, 2)),) * len(batch)
    with pytest.raises(ModelError, match="an episode with several conversations has more than one"):
        read_by([Teacher.of(policy, reads_hint=True)], batch.with_(lessons=lessons), states=False)


def test_the_policy_as_its_own_teacher_is_the_policy_before_the_update():
    """Its head is trained: what it said of the batch is not what its new head would say of the old states."""
    policy = fresh()
    teacher = Teacher.of(policy)
    models = Models.of(policy, gkd(), advantage=distillation, teachers=[teacher])
    batch = models.score(prepared(policy=policy), requirements_of(gkd(), distillation), passes=2)
    batch = distillation(batch)
    assert float(batch.advantages.abs().max()) < 1e-5
    first = models.update(batch, ComposedObjective(surrogate=clip(low=9, high=9), weight=token_mean, beta=0))
    assert first.metrics["grad_norm"] < 1e-3
    before = policy.logprobs(batch)
    noisy = batch.with_(advantages=torch.ones_like(batch.advantages) * batch.loss_mask)
    models.update(noisy, ComposedObjective(surrogate=clip(low=9, high=9), weight=token_mean))
    moved = float((policy.logprobs(batch) - before).abs().max())
    again = models.update(batch, gkd())
    assert moved > 1e-3
    assert again.metrics["loss"] > 0  # the distance from what it was, and not 0


def test_the_logits_of_a_divergence_need_no_more_memory_where_the_vocabulary_is_larger(monkeypatch: pytest.MonkeyPatch):
    largest: list[int] = []

    def watched(logits: Tensor, teacher_logits: Tensor, temperature: Any) -> Tensor:
        largest.append(max(logits.numel(), teacher_logits.numel()))
        return reverse_kl()(logits, teacher_logits, temperature)

    monkeypatch.setattr(logprobs_module, "SUM_BYTES", {"cpu": 2**16, "cuda": 2**16})
    for words in (512, 4096):
        model, tokenizer = tiny_model(vocab=words)
        policy = Policy(model, tokenizer)
        teacher = Teacher.of(frozen(policy))
        batch = read_by([teacher], prepared(policy=policy), states=True)
        largest.clear()
        updated(policy, batch, replace(gkd(), teacher_divergence=watched), heads={"teacher": teacher.head()})
        assert 0.5 * 2**14 < max(largest) <= 2**14


def test_a_teacher_whose_files_are_bfloat16_stays_so_and_says_the_same(tmp_path: Any):
    model, tokenizer = tiny_model(seed=5)
    model.bfloat16().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = fresh()
    batch = Batch.from_groups(ragged_groups())
    narrow, wide = (Teacher.load(policy, tmp_path, weights=weights) for weights in ("auto", "float32"))
    (by_narrow, states), (by_wide, expected_states) = (teacher.read(batch, states=True) for teacher in (narrow, wide))
    assert states is not None
    assert expected_states is not None
    assert torch.equal(by_narrow, by_wide)
    assert torch.equal(states, expected_states)
    trained = states[batch.loss_mask]
    assert torch.equal(narrow.head()(trained), wide.head()(trained))
    sizes = [sum(weight.nbytes for weight in teacher.forward.model.parameters()) for teacher in (narrow, wide)]
    assert sizes[0] < 0.6 * sizes[1]


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path: Any):
    model, _ = tiny_model()
    model.save_pretrained(tmp_path)
    byte_bpe_tokenizer(["ab"], 264).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"has another vocabulary than the policy.*GOLD and ULD"):
        Teacher.load(fresh(), tmp_path)


def test_what_needs_a_teacher_says_how_to_give_one():
    with pytest.raises(ValueError, match=r"needs a teacher: Models\.of"):
        Models.of(fresh(), gkd(), advantage=distillation).check(requirements_of(gkd(), distillation))
    policy = fresh()
    with pytest.raises(ValueError, match="nothing needs the teachers"):
        Models.of(policy, outdo.grpo(beta=0.0), teachers=[Teacher.of(policy)])


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("name", list(DIVERGENCES))
def test_the_pull_of_a_teacher_is_the_derivative_where_other_tokens_keep_their_proportions(name: str):
    random = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(2, 6, 11, generator=random, dtype=torch.float64)
    token_ids, temperature = torch.arange(6), torch.full((6,), 0.7, dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    divergence = TeacherDivergence(DIVERGENCES[name], {"teacher": lambda states: states})
    pull = TeacherPull(divergence)(logits, temperature, token_ids, weights, teacher)

    def moved(by: float) -> Tensor:
        """D_T where the log-probability of each token is higher by `by`."""
        logprobs = (logits / temperature[:, None]).log_softmax(1)
        of_token = logprobs.gather(1, token_ids[:, None])
        others = logprobs + torch.log(-(of_token + by).expm1()) - torch.log(-of_token.expm1())
        changed = others.scatter(1, token_ids[:, None], of_token + by)
        return divergence(changed * temperature[:, None], temperature, weights, teacher)

    numeric = -(moved(1e-6) - moved(-1e-6)) / 2e-6
    torch.testing.assert_close(pull, numeric, rtol=1e-6, atol=1e-8)
    assert pull[2] == 0


def test_a_token_that_a_teacher_pulls_is_trained_in_the_record_and_moves_as_it_says():
    policy = fresh(optimiser=OptimiserSettings(lr=1e-4))
    teacher = Teacher.of(frozen(Policy(*tiny_model(seed=5))))
    models = Models.of(policy, gkd(), advantage=distillation, teachers=[teacher])
    batch = distillation(models.score(prepared(policy=policy), requirements_of(gkd(), distillation), passes=2))
    update = models.update(batch, gkd())
    step = Step(index=1, sampled=Sampled(groups=ragged_groups()), batch=batch, updates=[update])
    record = token_record(step, gkd(), policy.logprobs(batch))
    mask = batch.loss_mask
    assert set(record.clip[mask].tolist()) == {FREE}
    moved = (record.new_logprobs - update.tokens["logprobs"])[mask]
    assert float((moved * record.net_push[mask]).sum()) > 0
    assert (moved.sign() == record.net_push[mask].sign()).float().mean() > 0.5
    assert record.teacher_divergence is not None
    assert record.teacher_divergence[mask].equal(update.tokens["teacher_divergence"][mask])
