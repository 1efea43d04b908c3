"""The real model in a GGUF file: SmolLM2-135M-Instruct."""

from pathlib import Path

from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model, load_tokenizer


def test_the_real_model_answers(smollm2: Path):
    tokenizer, model = load_tokenizer(smollm2), load_model(smollm2)
    assert inspect_folder(smollm2).parameters == sum(each.numel() for each in model.parameters()) == 134_515_008
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert [tokenizer.encode(token) for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")] == [[1], [2], [0]]
    for text in ("  two  spaces\n\nand\ttabs ", "naïve 漢字 🙂", "<|im_start|>user\nHi<|im_end|>\n", "1.\n\n 2026  7"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_digits_are_tokens_of_their_own_and_spaces_before_them_stay_together(smollm2: Path):
    """As the model was trained: the tokenizer of transformers' own conversion takes the spaces apart."""
    tokens = load_tokenizer(smollm2).tokenize("a  12\n\n3")
    assert tokens == ["a", "ĠĠ", "1", "2", "ĊĊ", "3"]
