"""transformers in the benchmark: sampling alone, with each answer of a group as its own row."""

import time

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessorList

from benchmarks.suite.setting import Setting, Turn, Turns
from benchmarks.suite.work import END, PAD, ForcedLengths, model_of, most_memory, prompts_of, synchronise

PAGE = 32  # tokens


def generate(setting: Setting, turns: Turns) -> None:
    """Sample by `model.generate`, the whole batch at once; the options may have `cache_implementation`."""
    case, model = setting.case, model_of(setting)
    config = _sampling(max(case.answers), **setting.options)
    rows = torch.tensor(_rows(setting, model), device=setting.device)  # [B, L]
    lengths = case.answers * case.prompts

    def turn() -> Tensor:
        force = LogitsProcessorList([ForcedLengths(lengths)])
        return model.generate(
            rows, attention_mask=torch.ones_like(rows), generation_config=config, logits_processor=force
        )  # type: ignore[operator]

    turns.take(lambda: _timed(turn, setting))


def continuous(setting: Setting, turns: Turns) -> None:
    """Sample by the manager of `model.generate_batch`: continuous batching with a paged cache."""
    case, model = setting.case, model_of(setting)
    rows, lengths = _rows(setting, model), case.answers * case.prompts
    pages = sum(-(-(case.prompt_tokens + length) // PAGE) + 1 for length in lengths)
    config = ContinuousBatchingConfig(page_size=PAGE, num_blocks=pages, max_batch_tokens=max(512, len(rows) + 512))
    sampling = _sampling(max(case.answers), eos=-1)
    settings = {"generation_config": sampling, "continuous_batching_config": config}

    def turn() -> None:
        with model.continuous_batching_context_manager(**settings, block=True, timeout=5) as manager:  # type: ignore[operator]
            for row, length in zip(rows, lengths, strict=True):
                manager.add_request(row, max_new_tokens=length)
            finished = 0
            while finished < len(rows):
                result = manager.get_result(timeout=1)
                finished += result is not None and result.is_finished()
                if result is None and not manager.is_running():
                    raise RuntimeError("continuous batching stopped before all answers were finished")

    turns.take(lambda: _timed(turn, setting))


def _timed(turn: object, setting: Setting) -> Turn:
    began = time.perf_counter()
    turn()  # type: ignore[operator]
    synchronise(setting.device)
    taken = time.perf_counter() - began
    return Turn(sampling=taken, tokens=setting.case.sampled, bytes=most_memory(setting.device))


def _rows(setting: Setting, model: PreTrainedModel) -> list[list[int]]:
    prompts = prompts_of(setting, model.config.get_text_config().vocab_size)
    return [list(prompt) for prompt in prompts for _ in setting.case.answers]


def _sampling(longest: int, *, eos: int = END, **options: object) -> GenerationConfig:
    """Return the settings for sampling at temperature 1 without filters."""
    return GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=longest, eos_token_id=eos, pad_token_id=PAD,
        **options,
    )  # fmt: skip
