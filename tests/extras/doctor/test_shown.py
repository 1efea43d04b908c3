"""What a page shows of a diagnosis."""

import json

from outdo.extras.doctor.shown import shown_diagnosis


def test_a_part_of_the_reward_rose_or_fell_only_beyond_chance() -> None:
    parts = {"score": lambda n: 0.4 + 0.02 * n, "topic": lambda n: 0.9 if n < 10 else 0.88}
    lines = [{"step": n + 1, **{f"rewards/{name}/mean": mean(n) for name, mean in parts.items()}} for n in range(20)]
    findings, shown = shown_diagnosis(lines, {})
    assert [(part["name"], part["last"], part["change"]) for part in shown] == [
        ("score", 0.75, "rose"),
        ("topic", 0.88, "steady"),
    ]
    assert json.loads(json.dumps([findings, shown], allow_nan=False)) == [findings, shown]
