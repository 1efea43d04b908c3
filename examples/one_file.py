"""GRPO in one file: a language model teaches itself to add, with nothing but torch and a model.

    python examples/one_file.py

Read it from top to bottom; each section is one idea. A model has learned from a careless teacher, and errs even more.
Then it answers every question several times, and is told which of its answers were right, never how. Those that did
better than their fellows become more likely, the others less: it outdoes its teacher.

Shapes: B sequences (all groups of a step, one after the other), T padded length, V vocabulary, G answers to a question.
Index t of every [B, T] tensor is about token t. Log-probabilities are in nats.

The method is that of DeepSeekMath (arXiv 2402.03300, section 4.1): a group's own mean in place of a value model, PPO's
clipped ratio (arXiv 1707.06347), 1/G · 1/|o| in front of every token, and, if asked for, a penalty for leaving the
reference model. What it leaves to the reader is the standard deviation's divisor, here G - 1.
"""

import copy
import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Qwen3Config, Qwen3ForCausalLM

# ------------------------------------------------------------------------------------------------------ 1. Questions
# A token is a character. "47+85:" asks; "7+5=12,4+8+1=13#132." answers column by column, and "." ends the sequence.

CHARACTERS = "0123456789+=:,#."
END = CHARACTERS.index(".")

Question = tuple[int, int]


def encode(text: str) -> list[int]:
    return [CHARACTERS.index(character) for character in text]


def decode(tokens: list[int]) -> str:
    return "".join(CHARACTERS[token] for token in tokens)


def prompt(question: Question) -> str:
    return f"{question[0]}+{question[1]}:"


def worked_answer(question: Question, careless: float = 0.0) -> str:
    """What a teacher writes: the ones, the tens with what was carried, the sum; each step one too high if careless."""
    a, b = question
    ones = a % 10 + b % 10 + (random.random() < careless)
    carried = "+1" if ones > 9 else ""
    tens = a // 10 + b // 10 + ones // 10 + (random.random() < careless)
    return f"{a % 10}+{b % 10}={ones},{a // 10}+{b // 10}{carried}={tens}#{10 * tens + ones % 10}."


def reward(question: Question, answer: str) -> float:
    """1 if the answer ends, and the number after "#" is the sum. The working is not looked at."""
    return float(answer.endswith(f"#{sum(question)}."))


# ---------------------------------------------------------------------------------------------------------- 2. Model


def small_model() -> nn.Module:
    """An ordinary Hugging Face model, small enough for one CPU core. Any causal model would do."""
    config = Qwen3Config(
        vocab_size=len(CHARACTERS),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()  # .eval(): nothing random but what we sample


def logprobs(model: nn.Module, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """log π(token t | tokens before t) of every token: [B, T] -> [B, T].

    The logits at t - 1 predict token t. Nothing predicts index 0: it gets 0, and no mask may ever ask for it.
    """
    logits = model(input_ids=token_ids, attention_mask=attention_mask).logits  # [B, T, V]
    distribution = logits[:, :-1].log_softmax(-1)  # [B, T-1, V]
    chosen = distribution.gather(-1, token_ids[:, 1:, None]).squeeze(-1)  # [B, T-1]
    return pad(chosen, (1, 0))  # [B, T]


# ------------------------------------------------------------------------------------------------------- 3. Sampling


@torch.no_grad()
def sample(model: nn.Module, prompt_ids: list[int], group_size: int, limit: int = 24) -> list[list[int]]:
    """Draw `group_size` answers to one prompt at temperature 1; each ends with END, or is cut at `limit` tokens."""
    new = torch.tensor([prompt_ids] * group_size)  # [G, prompt]
    answers = torch.empty(group_size, 0, dtype=torch.int64)  # [G, tokens so far]
    cache = None  # the keys and values of what was read, so that each token is read once
    while answers.shape[1] < limit and not (answers == END).any(1).all():
        output = model(input_ids=new, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        new = output.logits[:, -1].softmax(-1).multinomial(1)  # [G, 1]
        answers = torch.cat([answers, new], 1)
    return [until_end(tokens) for tokens in answers.tolist()]


def until_end(tokens: list[int]) -> list[int]:
    """The tokens up to the first END, and END itself: the policy chose it, so it is trained like any other."""
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def padded(prompts: list[list[int]], answers: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack [prompt | answer | padding] into rows: `token_ids`, `attention_mask` and `loss_mask`, each [B, T].

    `attention_mask` is True on real tokens, `loss_mask` on those that the policy chose.
    """
    starts = torch.tensor([len(question) for question in prompts])[:, None]
    ends = starts + torch.tensor([len(answer) for answer in answers])[:, None]
    token_ids = torch.full((len(prompts), int(ends.max())), END)
    for row, question, answer in zip(token_ids, prompts, answers, strict=True):
        row[: len(question) + len(answer)] = torch.tensor(question + answer)
    index = torch.arange(token_ids.shape[1])  # [T]
    return token_ids, index < ends, (starts <= index) & (index < ends)


# ------------------------------------------------------------------------------------------------------- 4. Learning


def advantages(rewards: Tensor, group: Tensor, eps: float = 1e-6) -> Tensor:
    """How much better was this answer than its fellows? Â = (r - mean) / (std + eps) in its group: [B], [B] -> [B].

    `group` says which answers belong together. Where all are equally good, nobody can learn: Â = 0.
    """
    result = torch.zeros_like(rewards)
    for number in group.unique():
        members = group == number
        r = rewards[members]
        if len(r) > 1:
            result[members] = (r - r.mean()) / (r.std() + eps)
    return result


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    clip: float = 0.2,
    beta: float = 0.0,
) -> Tensor:
    """-J of equation 3: all [B, T] but `advantages` [B]; a scalar whose gradient flows through `logprobs` alone.

    J = 1/B Σ_i 1/|o_i| Σ_t ( min(ρ Â, clip(ρ, 1 ± ε) Â) - β D ),   ρ = π/π_old,   D = π_ref/π - log(π_ref/π) - 1
    """
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()  # [B, T]
    advantage = advantages[:, None]  # [B, 1]: every token of an answer shares its advantage
    gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)  # [B, T]
    if ref_logprobs is not None:
        away = (ref_logprobs - logprobs).clamp(-20, 20)
        gain = gain - beta * (away.exp() - away - 1)
    lengths = loss_mask.sum(1)  # [B]
    per_answer = (gain * loss_mask).sum(1) / lengths.clamp(min=1)  # [B]
    return -per_answer.sum() / (lengths > 0).sum().clamp(min=1)


def descend(model: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
    """One optimiser step, its gradient no longer than 1; returns how long it was."""
    optimiser.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return float(norm)


def warm_start(model: nn.Module, questions: list[Question], steps: int, batch: int = 64, lr: float = 3e-3) -> None:
    """Supervised learning from a careless teacher, who is right in 0.65 x 0.65 = 42 % of the answers."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for _ in range(steps):
        chosen = random.sample(questions, batch)
        prompts = [encode(prompt(question)) for question in chosen]
        answers = [encode(worked_answer(question, careless=0.35)) for question in chosen]
        token_ids, attention_mask, loss_mask = padded(prompts, answers)
        descend(model, optimiser, -logprobs(model, token_ids, attention_mask)[loss_mask].mean())


def grpo(
    model: nn.Module,
    questions: list[Question],
    *,
    steps: int,
    prompts_per_step: int = 16,
    group_size: int = 8,
    updates: int = 1,
    lr: float = 2e-4,
    beta: float = 0.0,
) -> Iterator[dict[str, float]]:
    """Improve the model against its own past self; yields what each step measured."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    reference = copy.deepcopy(model) if beta else None
    for step in range(1, steps + 1):
        # Ask: G answers to each question, by the policy as it is now.
        chosen = random.sample(questions, prompts_per_step)
        asked = [question for question in chosen for _ in range(group_size)]
        prompts = [encode(prompt(question)) for question in asked]
        answers = [answer for question in chosen for answer in sample(model, encode(prompt(question)), group_size)]

        # Judge: rewards, and from them advantages within each group.
        rewards = torch.tensor(
            [reward(question, decode(answer)) for question, answer in zip(asked, answers, strict=True)]
        )
        group = torch.arange(prompts_per_step).repeat_interleave(group_size)  # [B]
        advantage = advantages(rewards, group)  # [B]

        # Fix what the updates are measured against.
        token_ids, attention_mask, loss_mask = padded(prompts, answers)
        with torch.no_grad():
            old = logprobs(model, token_ids, attention_mask)  # [B, T]
            ref = logprobs(reference, token_ids, attention_mask) if reference else None

        # Learn: with one update the ratio is 1, nothing is clipped, and the loss is 0 in value (the advantages of a
        # group sum to 0) but not in gradient. With more, the clip says when to stop pushing.
        loss, norm = torch.zeros(()), 0.0
        for _ in range(updates):
            new = logprobs(model, token_ids, attention_mask)  # [B, T]
            loss = grpo_loss(new, old, ref, advantage, loss_mask, beta=beta)
            norm = descend(model, optimiser, loss)
        yield {"step": step, "reward": float(rewards.mean()), "loss": loss.item(), "gradient": norm}


# ---------------------------------------------------------------------------------------------------------- 5. Run


def share_right(model: nn.Module, questions: list[Question]) -> float:
    """Mean reward of one sampled answer to each question."""
    answers = [sample(model, encode(prompt(question)), 1)[0] for question in questions]
    return sum(reward(question, decode(answer)) for question, answer in zip(questions, answers, strict=True)) / len(
        questions
    )


def main(steps: int = 60, seed: int = 0) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    questions = [(a, b) for a in range(100) for b in range(100)]
    random.shuffle(questions)
    held_out, practice = questions[:200], questions[200:]

    model = small_model()
    warm_start(model, practice, steps=300)
    before = share_right(model, held_out)
    for done in grpo(model, practice, steps=steps):
        print("step {step:3d}  reward {reward:.2f}  gradient {gradient:.2f}".format(**done), flush=True)
    after = share_right(model, held_out)
    print(f"right of {len(held_out)} questions never practised: before {before:.0%}, after {after:.0%}")


if __name__ == "__main__":
    main()
