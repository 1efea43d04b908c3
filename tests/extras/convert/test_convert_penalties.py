"""A penalty for long answers counts the results of tools in the other libraries, and not in outdo."""

from collections.abc import Callable
from typing import Any

import pytest

from outdo.extras.convert.conversion import RESULTS_COUNT, Conversion
from outdo.extras.convert.openrlhf import convert_openrlhf
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.verl import convert_verl

TRL = {"model_name_or_path": "m", "dataset_name": "x.jsonl", "reward_funcs": ["get_soft_overlong_punishment"]}
VERL = {"actor_rollout_ref.model.path": "m", "data.train_files": "x.parquet", "actor_rollout_ref.rollout.n": 4}
VERL |= {"reward_model.overlong_buffer.enable": True, "reward_model.overlong_buffer.len": 64}
OPENRLHF = {"pretrain": "m", "prompt_data": "x.jsonl", "advantage_estimator": "group_norm", "overlong_buffer_len": 64}


@pytest.mark.parametrize(
    ("convert", "written", "tools"),
    [
        (convert_trl, TRL, {"tools": ["tools.py:add"]}),
        (convert_verl, VERL, {"actor_rollout_ref.rollout.multi_turn.enable": True}),
        (convert_openrlhf, OPENRLHF, {"agent_func_path": "agent.py"}),
    ],
)
def test_it_is_told_where_the_answers_have_results_of_tools(
    convert: Callable[..., Conversion], written: dict[str, Any], tools: dict[str, Any]
) -> None:
    alone, with_tools = convert(written), convert(written | tools)
    assert not any(RESULTS_COUNT in remark for remark in alone.remarks)
    assert [remark.count(RESULTS_COUNT) for remark in with_tools.remarks if RESULTS_COUNT in remark] == [1]
    for conversion in (alone, with_tools):
        assert "'name': 'overlong'" in str(conversion.settings["rewards"])
