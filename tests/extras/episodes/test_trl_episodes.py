"""TRL's own tool loop and outdo play the same episodes: the tokens, the masks and what the model reads are equal.

The policy is scripted. Everything else is TRL's own code: the prompt, the calls that it reads, the messages between the
turns and the mask. The chat templates are those of the models, as TRL ships them.
TRL takes seconds to import: the tests do so, and not their collection.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from episode_cases import add, fail

from outdo.extras.episodes.adapt import adapt
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Player
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Prompt, Request

pytestmark = pytest.mark.filterwarnings(
    r"ignore:`(is_)?gradient_checkpointing\w*` is deprecated:FutureWarning",
    "ignore:You are using 'environment_factory':UserWarning",
    "ignore:The model architecture .* prefix-preserving:UserWarning",
)
CHATML = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
LLAMA = ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
CHATML_MODELS = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_nothink", "qwen3_8", "nemotron_3_nano")
SPECIAL = {**dict.fromkeys(CHATML_MODELS, CHATML), "llama3_2": LLAMA}
"""The special tokens of models by the names that TRL gives their templates; the first one ends a turn."""

LONGEST = 900

Script = Sequence[str]
"""The turns of an episode; one that ends with "…" is cut off there, without a token that ends it."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The token ids and what is trained of them, with the log-probabilities of sampling and the reward."""

    prompt: list[int]
    token_ids: list[int]
    loss_mask: list[bool]
    logprobs: list[float]
    read: list[list[int]]  # what the model read before each of its turns
    reward: float


class Scripted:
    """Answers for episodes that ask different questions: the next turn of the question that the tokens contain."""

    def __init__(self, scripts: Sequence[Script], tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.left: list[Iterator[str]] = [iter(script) for script in scripts]
        self.read: list[list[list[int]]] = [[] for _ in scripts]

    def answer(self, token_ids: Sequence[int]) -> list[int]:
        """The token ids of the next turn, at most `LONGEST`."""
        text = self.tokenizer.decode(list(token_ids))
        (place,) = [place for place in range(len(self.left)) if question(place) in text]
        self.read[place].append(list(token_ids))
        turn = next(self.left[place])
        end = [] if turn.endswith("…") else [self.tokenizer.eos_token_id]
        return [*self.tokenizer.encode(turn.removesuffix("…"), add_special_tokens=False), *end][:LONGEST]


def question(place: int) -> str:
    return f"Question {place}: what is 2 + 3?"


def written(template: str, name: str, **arguments: Any) -> str:
    """A call as the models of this template write it."""
    if template in ("qwen3_5_nothink", "qwen3_8", "nemotron_3_nano"):
        tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"
    values = ", ".join(f'"{key}": {value}' for key, value in arguments.items())
    if template.startswith("llama"):
        return f'{{"name": "{name}", "parameters": {{{values}}}}}'
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{{values}}}}}\n</tool_call>'


def model_of(template: str) -> tuple[Any, Any]:
    """A tiny model, and a byte-level tokenizer with the special tokens and the chat template of a real one."""
    import trl

    model, tokenizer = tiny_model(vocab=512, hidden=16, layers=1)
    model.config.max_position_embeddings = 1 << 15
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[template])})
    tokenizer.eos_token, tokenizer.bos_token = SPECIAL[template][:2]
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text("utf-8")
    return model, tokenizer


def trl_plays(
    template: str, scripts: Sequence[Script], folder: Path, *, longest: int = LONGEST, turns: int = 8, **made_of: Any
) -> list[Episode]:
    """The episodes that TRL's GRPOTrainer makes of the scripts."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = model_of(template)
    trainer: Any = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[] if "environment_factory" in made_of else lambda prompts, **_: [0.0] * len(prompts),
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=len(scripts),
            num_generations=2,
            max_completion_length=longest,
            max_tool_calling_iterations=turns - 1,
        ),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "?"}]]}),
        **made_of,
    )
    policy = Scripted(scripts, tokenizer)

    def generate(prompts: Sequence[Sequence[int]], *_: object, **__: object) -> tuple[list[Any], list[Any]]:
        answers = [policy.answer(prompt)[:longest] for prompt in prompts]
        return answers, [[-1.0] * len(answer) for answer in answers]

    trainer._generate_single_turn = generate
    rewards: list[float] = []
    calculate = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *given: rewards.extend((found := calculate(*given))[:, 0].tolist()) or found
    trainer.current_gradient_accumulation_steps = 1  # this and the next line are what its `train` does
    trainer.model.train()
    asked = [{"prompt": [{"role": "user", "content": question(place)}]} for place in range(len(scripts))]
    made = trainer._generate_and_score_completions(asked)
    episodes = []
    for place in range(len(scripts)):
        lengths = made["completion_mask"][place].bool()
        ids = made["completion_ids"][place][lengths].tolist()
        episodes.append(
            Episode(
                prompt=made["prompt_ids"][place][made["prompt_mask"][place].bool()].tolist(),
                token_ids=ids,
                loss_mask=made["tool_mask"][place][lengths].bool().tolist(),
                logprobs=made["sampling_per_token_logps"][place][lengths].tolist(),
                read=policy.read[place],
                reward=rewards[place],
            )
        )
    return episodes


def outdo_plays(
    template: str,
    scripts: Sequence[Script],
    *,
    longest: int = LONGEST,
    turns: int = 8,
    tools: Sequence[Callable[..., Any]] = (),
    environment: Callable[[], Any] | None = None,
) -> list[Episode]:
    """The episodes that outdo makes of the scripts."""
    _, tokenizer = model_of(template)
    box = ToolBox(adapt(environment()).tools if environment else tools)
    chat = Template(tokenizer, end_ids={tokenizer.eos_token_id}, tools=box.schemas)
    policy = Scripted(scripts, tokenizer)

    def player() -> Player:
        episode = adapt(environment()) if environment else None
        return Player(episode, box.of(episode.tools) if episode else box, timeout=60)

    def answer(request: Request) -> list[int]:
        return policy.answer(request.token_ids)

    prompts = []
    for place in range(len(scripts)):
        messages = [{"role": "user", "content": question(place)}]
        prompts.append(Prompt(id=str(place), text=messages, token_ids=tuple(chat.prompt(messages)), answer="5"))
    groups = Dialogue(player, chat, turns=turns).rollouts(
        ScriptedEngine(answer, tokenizer), prompts, 1, SamplingParams(max_tokens=longest), step=1, purpose="train"
    )
    return [
        Episode(
            prompt=list(group.prompt.token_ids),
            token_ids=list(group.rollouts[0].token_ids),
            loss_mask=list(group.rollouts[0].loss_mask),
            logprobs=list(group.rollouts[0].logprobs),
            read=policy.read[place],
            reward=group.rollouts[0].reward,
        )
        for place, group in enumerate(groups)
    ]


def parts(template: str, episode: Episode, *, trained: bool) -> str:
    """The text of an episode that is trained, or that is not."""
    _, tokenizer = model_of(template)
    pairs = zip(episode.token_ids, episode.loss_mask, strict=True)
    return str(tokenizer.decode([token for token, own in pairs if own is trained]))


# ------------------------------------------------------------------------------------------------------------ the same


@pytest.mark.parametrize("template", SPECIAL)
def test_trl_and_outdo_train_on_the_same_tokens_of_the_same_episodes(template: str, tmp_path: Path) -> None:
    add_2_3, add_5_4 = written(template, "add", a=2, b=3), written(template, "add", a=5, b=4)
    scripts = [
        ["It is 5."],
        [add_2_3, "It is 5."],
        [add_2_3, add_5_4, "It is 9."],
        [add_2_3, "It is…"],  # cut off in the last turn
        [add_2_3, "x" * (LONGEST + 5)],  # cut off at the length of the episode
        [add_2_3, add_5_4, add_2_3, add_5_4],  # calls until no turn is left
    ]
    if not template.startswith("llama"):  # its template allows one call in a turn
        scripts += [[add_2_3 + "\n" + add_5_4, "5 and 9."], ["First. " + add_2_3, "It is 5."]]
    if template == "qwen3":
        scripts += [["<think>\nI add.\n</think>\n\n" + add_2_3, "<think>\n\n</think>\n\n5"], ["<think>\nOh", "5"]]
    if template in ("qwen3_8", "nemotron_3_nano"):  # their prompts end with <think>
        scripts = [["I think.\n</think>\n\n" + turn for turn in script] for script in scripts]
    theirs = trl_plays(template, scripts, tmp_path, tools=[add], turns=4)
    ours = outdo_plays(template, scripts, tools=[add], turns=4)
    assert ours == theirs
    assert [len(episode.read) for episode in ours][:6] == [1, 2, 3, 2, 2, 4]
    for script, episode in zip(scripts, ours, strict=True):
        said = parts(template, episode, trained=True).replace(SPECIAL[template][0], "")
        assert "".join(script).replace("…", "").startswith(said)


class Lamp:
    """An environment for TRL: the policy has to switch the lamp on."""

    def reset(self, **row: Any) -> str:
        self.on = False
        return " The lamp is off."

    def switch(self, on: bool) -> str:
        """Switch the lamp.

        Args:
            on: Whether it shall be on.
        """
        self.on = on
        return "The lamp is " + "on" * on + "off" * (not on)

    def get_reward(self) -> float:
        return float(self.on)


def test_an_environment_of_trl_gives_the_same_tokens_masks_and_rewards_in_both(tmp_path: Path) -> None:
    on, off = written("qwen2_5", "switch", on="true"), written("qwen2_5", "switch", on="false")
    scripts = [[on, "Done."], [off, "Done."], [off, on, "Done."], ["It is off."]]
    theirs = trl_plays("qwen2_5", scripts, tmp_path, environment_factory=Lamp)
    ours = outdo_plays("qwen2_5", scripts, environment=Lamp)
    assert ours == theirs
    assert [episode.reward for episode in ours] == [1.0, 0.0, 1.0, 0.0]


# ----------------------------------------------------------------------------------------------------- the differences

END, OPEN = "<|im_end|>", "\n<|im_start|>user\n<tool_response>\n"
CLOSE = "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 2,\n</tool_call>'


def is_even(number: int) -> bool:
    """Return whether a number is even.

    Args:
        number: The number.
    """
    return number % 2 == 0


@pytest.mark.parametrize(
    ("first", "of_trl", "of_outdo"),
    [
        (written("qwen2_5", "is_even", number=2), OPEN + "True" + CLOSE, OPEN + "true" + CLOSE),
        (
            written("qwen2_5", "fail", reason='"no"'),
            OPEN + "{'error': 'no'}" + CLOSE,
            OPEN + "error: RuntimeError: no" + CLOSE,
        ),
        (
            written("qwen2_5", "ad", a=2),
            OPEN + "{'error': 'Tool ad not found.'}" + CLOSE,
            OPEN + "error: there is no tool ad; did you mean add?" + CLOSE,
        ),
        (BROKEN, "", OPEN + "error: the call is not valid: Expecting property name enclosed in double quotes"),
        (written("qwen2_5", "add", a=2, b=3) + "…", OPEN + "5" + CLOSE, END + OPEN + "5" + CLOSE),
    ],
    ids=["a result that is no text", "an exception", "an unknown tool", "no JSON", "a turn without its end"],
)
def test_what_the_policy_reads_after_a_turn_differs(first: str, of_trl: str, of_outdo: str, tmp_path: Path) -> None:
    scripts, tools = [[first, "5"]] * 2, [add, fail, is_even]
    theirs = trl_plays("qwen2_5", scripts, tmp_path, tools=tools)[0]
    ours = outdo_plays("qwen2_5", scripts, tools=tools)[0]
    assert parts("qwen2_5", theirs, trained=False) == of_trl
    assert parts("qwen2_5", ours, trained=False).startswith(of_outdo)
    said = [parts("qwen2_5", each, trained=True) for each in (theirs, ours)]
    assert said[1].startswith(said[0])  # where TRL ends the episode, outdo lets the policy try again
    assert (said[0] == said[1]) is (first != BROKEN)
