"""The reference reads the same token ids as the policy."""

from pathlib import Path

import pytest
from engine_cases import fresh

from outdo.models.reference import load_reference
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError


def test_a_reference_may_have_another_size_but_no_other_vocabulary(tmp_path: Path) -> None:
    tiny_model(tmp_path / "small", hidden=16, layers=1)
    assert not any(
        weight.requires_grad for weight in load_reference(fresh(), tmp_path / "small").forward.model.parameters()
    )
    tiny_model(tmp_path / "other")
    tokenizer = tmp_path / "other" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("<|user|>", "<|human|>"), encoding="utf-8")
    with pytest.raises(ModelError, match="another vocabulary than the policy: the same token ids are other words"):
        load_reference(fresh(), tmp_path / "other")
