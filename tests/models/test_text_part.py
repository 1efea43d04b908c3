"""A model that also reads images is refused with a way out, and the way out works."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model, load_tokenizer
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import ModelError

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


@pytest.fixture
def whole(tmp_path):
    """A tiny Gemma 3 that reads images; also its folder."""
    layers = ["sliding_attention", "full_attention"]
    text = {"vocab_size": 264, "num_hidden_layers": 2, "layer_types": layers, "num_key_value_heads": 2, "head_dim": 8}
    vision = {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    config = AutoConfig.for_model("gemma3", text_config=SMALL | text, vision_config=SMALL | vision)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(tmp_path / "whole")
    byte_bpe_tokenizer([], 264).save_pretrained(tmp_path / "whole")
    return model, tmp_path / "whole"


def test_the_page_saves_the_text_part_of_a_model_that_is_refused(whole, tmp_path):
    model, folder = whole
    with pytest.raises(ModelError, match=r"Gemma3ForConditionalGeneration reads images .* docs/models.md"):
        inspect_folder(folder)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = code.replace("path/to/the/whole", str(folder)).replace("path/to/the/text/part", str(tmp_path / "text"))
    exec(code, {})
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "text")(ids).logits, model(input_ids=ids).logits)
    assert load_tokenizer(tmp_path / "text").eos_token_id == 0
