"""Which special tokens a reward reads: tags that the policy writes, and none that frame a message."""

import pytest
from transformers import PreTrainedTokenizerFast

from outdo.models.completion_text import completion_text, left_out, rendered_text
from outdo.testing import byte_bpe_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GLM = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}<|assistant|>\n<think>"
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
MODELS = {  # as their tokenizers have them: the template, the special tokens, a completion, and how it is read
    "Qwen3": (
        CHATML,
        ["<|im_start|>", "<|im_end|>", "<|vision_start|>"],
        "a</think>\n\n42<|vision_start|><|im_end|>",
        "a</think>\n\n42",
    ),
    "tags of Qwen3 as special tokens": (
        CHATML,
        ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<plan>"],
        "a</think><plan><tool_call>{}</tool_call><|im_end|><|im_start|>",
        "a</think><plan><tool_call>{}</tool_call>",
    ),
    "Gemma 3": (
        GEMMA,
        ["<bos>", "<start_of_turn>", "<end_of_turn>", "<think>", "</think>"],
        "<think>a</think>42<end_of_turn><start_of_turn>",
        "<think>a</think>42",
    ),
    "Llama 3": (
        LLAMA,
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<answer>", "</answer>"],
        "<answer>42</answer><|eot_id|>",
        "<answer>42</answer>",
    ),
    "GLM-4.5": (GLM, ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>"], "a</think>\n42<|user|>", "a</think>\n42"),
    "Magistral": (
        MISTRAL,
        ["<s>", "</s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]"],
        "[THINK]a[/THINK]42</s>",
        "[THINK]a[/THINK]42",
    ),
    "gpt-oss": (
        HARMONY,
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"],
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
        "<|channel|>analysis<|message|>aassistant<|channel|>final<|message|>42",
    ),
}


def tokenizer_of(model: str) -> PreTrainedTokenizerFast:
    template, tokens, _, _ = MODELS[model]
    tokenizer = byte_bpe_tokenizer([], 300)
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    if model == "Magistral":
        tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    if model == "Gemma 3":
        tokenizer.add_special_tokens({"bos_token": "<bos>"})
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("model", MODELS)
def test_a_completion_has_the_tags_and_not_the_frame_of_messages(model: str) -> None:
    tokenizer = tokenizer_of(model)
    _, _, completion, text = MODELS[model]
    ids = tokenizer.encode(completion, add_special_tokens=False)
    assert completion_text(tokenizer, ids) == text
    assert rendered_text(tokenizer, ids) == completion
    assert all(token not in text for token in left_out(tokenizer))


def test_a_completion_without_tags_is_decoded_as_by_transformers() -> None:
    tokenizer = tokenizer_of("tags of Qwen3 as special tokens")
    for text in ("42<|im_end|>", " 42 . <|im_start|>user\n", ""):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert completion_text(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_tokenizer_without_a_template_or_with_one_that_refuses_a_message_has_its_tags_too() -> None:
    tokenizer = tokenizer_of("tags of Qwen3 as special tokens")
    ids = tokenizer.encode("<think>a<|im_end|>", add_special_tokens=False)
    for template in (None, "{{ raise_exception('no') }}"):
        tokenizer.chat_template = template
        assert completion_text(tokenizer, ids) == "<think>a"
