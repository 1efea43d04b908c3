"""GRPO in one file: a language model learns to add, with nothing but torch and a model from transformers.

    python examples/one_file.py

Read it from top to bottom; each section has one idea. First the model is fine-tuned on the answers of a careless
teacher, and makes even more mistakes. Then it answers each question several times. A reward shows which answers are
right, but not where the others are wrong. Answers with a higher reward than the mean of their group become more likely,
the others less likely. In the end the model is better than its teacher.

Shapes: B sequences (all groups of a step, one after the other), T padded length, V vocabulary, G answers to a question.
Index t of every [B, T] tensor is about token t. Log-probabilities are in nats.

The method is that of DeepSeekMath (arXiv 2402.03300, section 4.1): the mean reward of a group replaces a value model;
the ratio is clipped as in PPO (arXiv 1707.06347); each token has the factor 1/G · 1/|o|; a KL penalty towards the
reference model is optional. The paper does not define the divisor of the standard deviation: here it is G - 1.
"""

import copy
import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

# ------------------------------------------------------------------------------------------------------ 1. Questions
# A token is a character. "47+85:" is a question, "7+5=12,4+8+1=13#132." its answer, column by column; "." ends it.

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
    """Return a teacher's answer: the ones, the tens with the carry, the sum.

    With probability `careless` the ones are 1 too high, and with the same probability the tens are.
    """
    a, b = question
    ones = a % 10 + b % 10 + (random.random() < careless)
    carry = "+1" if ones > 9 else ""
    tens = a // 10 + b // 10 + ones // 10 + (random.random() < careless)
    return f"{a % 10}+{b % 10}={ones},{a // 10}+{b // 10}{carry}={tens}#{10 * tens + ones % 10}."


def reward(question: Question, answer: str) -> float:
    """Return 1 if the answer ends with the right sum after "#", else 0. The steps before it do not count."""
    return float(answer.endswith(f"#{sum(question)}."))


# ---------------------------------------------------------------------------------------------------------- 2. Model


def small_model() -> nn.Module:
    """Build a Hugging Face model that is small enough for one CPU core. Any causal language model works."""
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
    return Qwen3ForCausalLM(config).eval()  # .eval(): no dropout; only sampling is random


def logprobs(model: nn.Module, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Compute log π(token t | tokens before t) of every token: [B, T] -> [B, T].

    The logits at t - 1 predict token t. Nothing predicts index 0: its value is 0, and every mask leaves it out.
    """
    logits = model(input_ids=token_ids, attention_mask=attention_mask).logits  # [B, T, V]
    distribution = logits[:, :-1].log_softmax(-1)  # [B, T-1, V]
    chosen = distribution.gather(-1, token_ids[:, 1:, None]).squeeze(-1)  # [B, T-1]
    return pad(chosen, (1, 0))  # [B, T]


# ------------------------------------------------------------------------------------------------------- 3. Sampling


@torch.no_grad()
def sample(model: nn.Module, prompt_ids: list[int], group_size: int, limit: int = 24) -> list[list[int]]:
    """Sample `group_size` answers to a prompt at temperature 1. Each ends with END, or after `limit` tokens."""
    new = torch.tensor([prompt_ids] * group_size)  # [G, prompt]
    answers = torch.empty(group_size, 0, dtype=torch.int64)  # [G, tokens so far]
    cache = DynamicCache()  # keys and values of all earlier tokens, so that the model reads each token once
    while answers.shape[1] < limit and not (answers == END).any(1).all():
        logits = model(new, None, None, cache, use_cache=True).logits  # by position: its name depends on the version
        new = logits[:, -1].softmax(-1).multinomial(1)  # [G, 1]
        answers = torch.cat([answers, new], 1)
    return [until_end(tokens) for tokens in answers.tolist()]


def until_end(tokens: list[int]) -> list[int]:
    """Return the tokens up to the first END, END included: the policy sampled it, so it is trained too."""
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def padded(prompts: list[list[int]], answers: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows of [prompt | answer | padding]: `token_ids`, `attention_mask` and `loss_mask`, each [B, T].

    `attention_mask` is True for prompt and answer, `loss_mask` for the answer.
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
    """Compute Â = (r - mean) / (std + eps), with mean and std of the answer's group: [B], [B] -> [B].

    Answers with the same number in `group` are a group. If all its rewards are equal, Â = 0: nothing can be learned.
    """
    result = torch.zeros_like(rewards)
    for number in group.unique():
        members = group == number  # [B]
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
    """Compute -J of equation 3, a scalar with a gradient for `logprobs` only. All are [B, T] except `advantages` [B].

    J = 1/B Σ_i 1/|o_i| Σ_t ( min(ρ Â, clip(ρ, 1 ± ε) Â) - β D ),   ρ = π/π_old,   D = π_ref/π - log(π_ref/π) - 1
    """
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()  # [B, T]
    advantage = advantages[:, None]  # [B, 1]: every token of an answer shares its advantage
    gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)  # [B, T]
    if ref_logprobs is not None:
        log_ratio = (ref_logprobs - logprobs).clamp(-20, 20)  # log(π_ref/π)
        gain = gain - beta * (log_ratio.exp() - log_ratio - 1)
    lengths = loss_mask.sum(1)  # [B]
    per_answer = (gain * loss_mask).sum(1) / lengths.clamp(min=1)  # [B]
    return -per_answer.sum() / (lengths > 0).sum().clamp(min=1)


def optimiser_step(model: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
    """Make one optimiser step, with the gradient clipped to norm 1. Return the norm before clipping."""
    optimiser.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return float(norm)


def warm_start(model: nn.Module, questions: list[Question], steps: int, batch: int = 64, lr: float = 3e-3) -> None:
    """Fine-tune on the answers of a careless teacher, who is right in 0.65 x 0.65 = 42 % of them."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for _ in range(steps):
        chosen = random.sample(questions, batch)
        prompts = [encode(prompt(question)) for question in chosen]
        answers = [encode(worked_answer(question, careless=0.35)) for question in chosen]
        token_ids, attention_mask, loss_mask = padded(prompts, answers)
        optimiser_step(model, optimiser, -logprobs(model, token_ids, attention_mask)[loss_mask].mean())


def grpo(
    model: nn.Module,
    questions: list[Question],
    *,
    steps: int,
    prompts_per_step: int = 16,
    group_size: int = 8,
    passes: int = 1,
    lr: float = 2e-4,
    beta: float = 0.0,
) -> Iterator[dict[str, float]]:
    """Train the model with GRPO; yield the metrics of each step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    reference = copy.deepcopy(model) if beta else None
    for step in range(1, steps + 1):
        # Sample G answers to each question from the current policy.
        chosen = random.sample(questions, prompts_per_step)
        repeated = [question for question in chosen for _ in range(group_size)]  # one question per answer
        prompts = [encode(prompt(question)) for question in repeated]
        answers = [answer for question in chosen for answer in sample(model, encode(prompt(question)), group_size)]

        # Compute rewards, and from them the advantages within each group.
        rewards = torch.tensor(
            [reward(question, decode(answer)) for question, answer in zip(repeated, answers, strict=True)]
        )
        group = torch.arange(prompts_per_step).repeat_interleave(group_size)  # [B]
        advantage = advantages(rewards, group)  # [B]

        # Compute π_old and π_ref, which do not change during the updates.
        token_ids, attention_mask, loss_mask = padded(prompts, answers)
        with torch.no_grad():
            old = logprobs(model, token_ids, attention_mask)  # [B, T]
            ref = logprobs(reference, token_ids, attention_mask) if reference else None

        # Update: in the first pass the ratio is 1 and nothing is clipped. The loss is 0 (the advantages of a group sum
        # to 0), but its gradient is not. In later passes the clip limits how far a token can move.
        loss, norm = torch.zeros(()), 0.0
        for _ in range(passes):
            new = logprobs(model, token_ids, attention_mask)  # [B, T]
            loss = grpo_loss(new, old, ref, advantage, loss_mask, beta=beta)
            norm = optimiser_step(model, optimiser, loss)
        yield {"step": step, "reward": float(rewards.mean()), "loss": loss.item(), "gradient": norm}


# ---------------------------------------------------------------------------------------------------------- 5. Run


def accuracy(model: nn.Module, questions: list[Question]) -> float:
    """Return the mean reward of one sampled answer to each question."""
    answers = [sample(model, encode(prompt(question)), 1)[0] for question in questions]
    rewards = [reward(question, decode(answer)) for question, answer in zip(questions, answers, strict=True)]
    return sum(rewards) / len(rewards)


def main(steps: int = 60, seed: int = 0) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    questions = [(a, b) for a in range(100) for b in range(100)]
    random.shuffle(questions)
    held_out, training = questions[:200], questions[200:]

    model = small_model()
    warm_start(model, training, steps=300)
    before = accuracy(model, held_out)
    for metrics in grpo(model, training, steps=steps):
        print("step {step:3d}  reward {reward:.2f}  gradient {gradient:.2f}".format(**metrics), flush=True)
    after = accuracy(model, held_out)
    print(f"accuracy on {len(held_out)} held-out questions: before {before:.0%}, after {after:.0%}")


if __name__ == "__main__":
    main()
