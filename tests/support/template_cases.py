"""Chat templates in the manner of real ones, each with a property of its own, and conversations that show it."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from outdo.testing import byte_bpe_tokenizer

Messages = Sequence[Mapping[str, Any]]

OPENING = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
EACH = "<|{{ m.role }}|>{{ m.content }}<|end|>"
CALLS = "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
ANSWER = "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}"

TEMPLATES = {
    "whole": "{% for m in messages %}<|{{ m.role }}|>" + THOUGHT + "{{ m.content }}" + CALLS + "<|end|>{% endfor %}",
    "no calls": "{% for m in messages %}<|{{ m.role }}|>" + THOUGHT + "{{ m.content }}<|end|>{% endfor %}",
    "no system": "{% for m in messages %}{% if m.role != 'system' %}" + EACH + "{% endif %}{% endfor %}",
    "users alone": "{% for m in messages %}{% if m.role == 'user' %}" + EACH + "{% endif %}{% endfor %}",
    "drops thinking": "{% for m in messages %}<|{{ m.role }}|>" + ANSWER + CALLS + "<|end|>{% endfor %}",
    "own system": (  # as Qwen2.5's
        "{% if messages[0].role != 'system' %}<|system|>You are helpful.<|end|>{% endif %}"
        "{% for m in messages %}" + EACH + "{% endfor %}"
    ),
    "system in front": (  # as DeepSeek-R1's
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.system = m.content %}{% endif %}{% endfor %}{{ ns.system }}"
        "{% for m in messages %}{% if m.role != 'system' %}" + EACH + "{% endif %}{% endfor %}"
    ),
    "system in the user's turn": (  # as Gemma's
        "{% set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}"
        "{% for m in (messages[1:] if first else messages) %}<|{{ m.role }}|>{{ first if loop.first }}"
        "{{ m.content | trim }}<|end|>{% endfor %}"
    ),
    "loud": "{% for m in messages %}<|{{ m.role }}|>{{ m.content | upper }}" + CALLS + "<|end|>{% endfor %}",
}

CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
QUESTION = {"role": "user", "content": "What is 1 + 2?"}
NEXT = {"role": "user", "content": "Go on, please."}

CONVERSATIONS: dict[str, Messages] = {
    "question": [QUESTION],
    "system": [{"role": "system", "content": "Be brief."}, QUESTION],
    "a system message of one letter": [{"role": "system", "content": "s"}, QUESTION],
    "history": [QUESTION, {"role": "assistant", "content": "It is 3."}, NEXT],
    "thinking": [QUESTION, {"role": "assistant", "content": "<think>I add them.</think>It is 3."}, NEXT],
    "thinking beside": [QUESTION, {"role": "assistant", "content": "It is 3.", "reasoning_content": "I add."}, NEXT],
    "calls": [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "content": "3"},
        NEXT,
    ],
    "late system": [
        QUESTION,
        {"role": "assistant", "content": "It is 3."},
        {"role": "system", "content": "Be brief!"},
        NEXT,
    ],
    "developer": [{"role": "developer", "content": "Be brief."}, QUESTION],
    "prefill": [QUESTION, {"role": "assistant", "content": "Let me see. <think>\n"}],
}


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with one of the templates."""
    tokenizer = byte_bpe_tokenizer([], 264, chat=True)
    tokenizer.chat_template = TEMPLATES[template] + OPENING
    return tokenizer
