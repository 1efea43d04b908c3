"""Cards and models are found by name, by numbers and by size, and unknown names are answered with the nearest one."""

import json

import pytest

from outdo.extras.plan.hardware import UNITS, card_named, cluster_named, known_cards
from outdo.extras.plan.shapes import known_shapes, shape_of
from outdo.testing import tiny_model
from outdo.utils.errors import UserError

pytestmark = pytest.mark.release


def test_a_cluster_is_a_number_and_a_card():
    cluster = cluster_named("16xh100")
    assert (cluster.devices, cluster.card.name, cluster.machines) == (16, "H100", 2)
    assert cluster.card.peak == 989e12
    assert cluster.card.memory == 80 * 2**30
    assert cluster_named("A100").card.name == "A100-80GB"


def test_numbers_replace_those_of_a_card_and_make_a_new_one():
    assert cluster_named("8xH100", ["memory=141", "price=3.5"]).card.memory == 141 * 2**30
    numbers = {"peak": 500, "memory": 64, "bandwidth": 2, "link": 100, "network": 25, "machine": 4, "price": 1}
    card = cluster_named("3xmine", [f"{key}={value}" for key, value in numbers.items()]).card
    assert (card.name, card.peak, card.machine) == ("mine", 500e12, 4)


def test_all_mistakes_of_a_cluster_are_named_at_once():
    with pytest.raises(UserError) as caught:
        cluster_named("0xH10", ["memry=3", "price=-1"])
    said = str(caught.value)
    assert "unknown number 'memry'; did you mean memory?" in said
    assert "expected price=NUMBER, above 0" in said
    assert "expected 1 to 100,000 devices" in said
    assert "unknown card 'H10'; did you mean H" in said


def test_every_card_has_all_numbers_and_a_public_source():
    for name, numbers in known_cards().items():
        assert card_named(name).peak > 0
        assert numbers["source"].startswith("https://")
        assert set(numbers) <= {*UNITS, "source"}


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "width", "vocab", "tied"),
    [
        ("qwen2.5-7b", 28, 3584, 18944, 152064, False),
        ("qwen3-4b", 36, 2560, 9728, 151936, True),
        ("llama-3.1-8b", 32, 4096, 14336, 128256, False),
        ("qwen2.5-0.5b", 24, 896, 4864, 151936, True),
    ],
)
def test_the_weights_of_published_models_add_up(name, layers, hidden, width, vocab, tied):
    """Attention has q and o of heads × head_dim and k and v of kv_heads × head_dim; the rest is three matrices."""
    shape = known_shapes()[name]
    attention = 2 * hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    whole = layers * (attention + 3 * hidden * width) + (1 if tied else 2) * vocab * hidden
    assert (shape.layers, shape.hidden) == (layers, hidden)
    assert whole == pytest.approx(shape.parameters, rel=0.01)


def test_a_name_of_the_hub_is_a_known_model():
    assert shape_of("Qwen/Qwen2.5-7B-Instruct")[0] is known_shapes()["qwen2.5-7b"]


def test_a_folder_tells_its_own_sizes(tmp_path):
    model, _ = tiny_model(tmp_path / "model", hidden=64, layers=3)
    shape, assumed = shape_of(str(tmp_path / "model"))
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    assert (shape.layers, shape.hidden, assumed) == (3, 64, [])


def test_a_folder_of_experts_tells_how_many_weights_compute_a_token(tmp_path):
    tiny_model(tmp_path / "model", hidden=64, layers=2)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    experts = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    path.write_text(json.dumps(config | experts))
    shape, _ = shape_of(str(tmp_path / "model"))
    routed = 2 * 4 * 3 * 8 * 64
    assert (shape.experts, shape.experts_per_token) == (4, 1)
    assert shape.parameters - shape.active == 3 / 4 * routed
    assert shape.touched(1) == pytest.approx(shape.active)
    assert shape.touched(1000) == pytest.approx(shape.parameters)
