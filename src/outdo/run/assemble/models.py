"""Load the models of a run: the policy, and the reference and the critic that its method requires."""

from functools import partial
from typing import cast

from outdo.algorithms.requirements import Requires
from outdo.config.attention import sequence_replicas
from outdo.config.recipe import Recipe
from outdo.config.teachers import POLICY, REFERENCE, TeacherSection
from outdo.models.bundle import Models
from outdo.models.chat_options import set_chat_options
from outdo.models.choose_forward import AttentionSetting
from outdo.models.device import choose_device
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.models.loading import load_tokenizer
from outdo.models.policy import Policy
from outdo.models.reference import Reference, frozen, load_reference
from outdo.models.scorer import BatchSizes
from outdo.models.teacher import Teacher, check_vocabulary
from outdo.run.assemble import micro_batch_size
from outdo.run.assemble.data import with_date_of_template
from outdo.run.assemble.hardware import gradients_of, resolve_weights
from outdo.run.assemble.method import Method, adapter_of, critic_of, optimiser_of
from outdo.run.check import cost
from outdo.utils.errors import ModelError, UserError
from outdo.utils.world import World


def load_policy(recipe: Recipe, facts: ModelFacts, world: World) -> tuple[Policy, Recipe]:
    """Return the policy, and the recipe with the date that its chat template writes."""
    policy = Policy.load(
        facts,
        device=recipe.device,
        stop_token_ids=recipe.sampling.stop_token_ids,
        adapter=None if facts.adapter else adapter_of(recipe),  # a checkpoint of the run has the adapter already
        seed=recipe.seed,
        weights=resolve_weights(recipe, facts),
        optimiser=optimiser_of(recipe),
        batch_sizes=BatchSizes(minibatches=recipe.train.minibatches),
        attention=cast("AttentionSetting", recipe.attention.name),
        precision=recipe.precision,
        compile=recipe.compile,
        gradient_checkpointing=recipe.train.gradient_checkpointing,
        gradients=gradients_of(recipe),
        world=world,
    )
    set_chat_options(policy.tokenizer, recipe.data.chat_options)
    world.check_forward(policy.forward)
    return policy, with_date_of_template(recipe, policy, world)


def resolve_micro_batch(recipe: Recipe, policy: Policy, requires: Requires, world: World) -> tuple[Recipe, list[str]]:
    """Set how many tokens the policy computes at once; return the recipe with that number, and how it was found."""
    tokens, notes = recipe.train.micro_batch_tokens, []
    if tokens == "auto":
        critic = recipe.critic is not None and recipe.critic.name == "model"
        trained = sum(weight.numel() for weight in policy.optimiser.weights.values())
        adapter = cost.AdapterSize(trained=trained, base=0) if policy.base else None  # its base is loaded already
        parts = cost.model_states(
            policy.model.num_parameters(), recipe, reference=requires.reference, critic=critic, adapter=adapter
        )
        find = partial(
            micro_batch_size.find_micro_batch_tokens,
            policy,
            longest=cost.longest_sequence(recipe),
            reserved=sum(size for name, size in parts.items() if not name.startswith("weights")),
            replicas=recipe.cluster.world_size,
            share=sequence_replicas(recipe),
        )
        tokens, why = world.together(find)[0]  # divided models are run by all
        notes = [f"train.micro_batch_tokens: {tokens:,} ({why})"]
    policy.set_micro_batch_tokens(tokens)
    train = recipe.train.model_copy(update={"micro_batch_tokens": tokens})
    return recipe.model_copy(update={"train": train}), notes


def models_of(recipe: Recipe, policy: Policy, method: Method) -> Models:
    """Return the policy with the reference, the teachers and the critic that the method requires."""
    sync, requires = recipe.reference.sync, method.requires
    taught_by = recipe.teachers if requires.needs_teacher else ()
    is_teacher = any(teacher.model == REFERENCE for teacher in taught_by)
    reference = reference_of(recipe, policy) if requires.reference or is_teacher else None
    critic = critic_of(recipe, policy) if requires.values else None
    try:
        return Models.of(
            policy,
            method.objective,
            requires=requires,
            reference=reference,
            critic=critic,
            teachers=[teacher_of(teacher, policy, reference) for teacher in taught_by],
            refresh_every=sync and sync.every,
            mix=sync.mix if sync else 1.0,
        )
    except ValueError as error:
        raise UserError([f"reference.sync: {error}"]) from error


def reference_of(recipe: Recipe, policy: Policy) -> Reference:
    """Return the reference: the model of the recipe, or the policy as it is now."""
    model = recipe.reference.model
    return frozen(policy) if model is None else load_reference(policy, model)


def teacher_mistakes(recipe: Recipe) -> list[str]:
    """Return a sentence for each teacher of another vocabulary, or on a device that this machine does not have."""
    mistakes: list[str] = []
    tokenizer = None
    for teacher in recipe.teachers:
        if not teacher.is_folder:
            continue
        try:
            choose_device(teacher.device or recipe.device)
            tokenizer = tokenizer or load_tokenizer(recipe.model, stop_token_ids=recipe.sampling.stop_token_ids)
            check_vocabulary(inspect_folder(teacher.model), tokenizer)
        except (UserError, ModelError) as error:
            mistakes.append(f"teachers: {teacher.name}: {error}")
    return mistakes


def teacher_of(teacher: TeacherSection, policy: Policy, reference: Reference | None) -> Teacher:
    """Load a teacher of the recipe; the policy and the reference are there already."""
    options = {"name": teacher.name, "weight": teacher.weight, "reads_hint": teacher.hint is not None}
    if teacher.is_folder:
        return Teacher.load(policy, teacher.model, weights=teacher.weights, device=teacher.device, **options)
    model = policy if teacher.model == POLICY else reference
    assert model is not None, "a method that is taught by the reference has one"
    return Teacher.of(model, **options)
