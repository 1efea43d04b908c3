"""What looks like a secret is found and hidden, and ordinary settings are not taken for one."""

import pytest

from outdo.utils.secrets import find_secrets, has_secret_name, has_secret_value, redact


@pytest.mark.parametrize("name", ["api_key", "rewards.api_key", "HF_TOKEN", "judge-password", "client_secret", "token"])
def test_names_of_secrets_are_known(name: str):
    assert has_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens", "eos_token", "stop_token", "monkey", "key", "micro_batch_tokens"])
def test_names_of_ordinary_settings_are_not_those_of_secrets(name: str):
    assert not has_secret_name(name)


SECRETS = [
    "sk-" + "a1" * 12,
    "hf_" + "aB3" * 10,
    "ghp_" + "x" * 36,
    "AKIA" + "ABCD" * 4,
    "https://me:password@host/path",
    "-----BEGIN RSA PRIVATE KEY",
]


@pytest.mark.parametrize("text", SECRETS)
def test_keys_of_services_are_known_by_their_form_and_hidden(text: str):
    assert has_secret_value(f"it is {text}, keep it")
    assert text not in redact(f"it is {text}, keep it")


@pytest.mark.parametrize("text", ["task-oriented", "https://host:8000/v1", "12:30@noon", "sk-learn", "<|im_end|>"])
def test_ordinary_texts_are_not_secrets(text: str):
    assert not has_secret_value(text)
    assert redact(text) == text


def test_secrets_are_found_in_nested_tables_by_their_keys():
    values = {"a": [{"api_key": "abcdef", "max_tokens": "abcdef"}], "b": {"c": SECRETS[0], "token": "####"}}
    assert list(find_secrets(values)) == ["a.api_key", "b.c"]
