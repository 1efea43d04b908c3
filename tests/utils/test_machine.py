"""What a container leaves of the machine that it is on."""

from pathlib import Path

import pytest

from outdo.utils.machine import container_limit, cores, free_in_container, main_memory


def test_free_memory_is_what_a_container_leaves_without_its_file_caches(tmp_path: Path):
    assert free_in_container(tmp_path) > 2**60
    (tmp_path / "memory.max").write_text("max\n")
    assert free_in_container(tmp_path) > 2**60
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert free_in_container(tmp_path) == 500
    assert container_limit(tmp_path) == 1000
    assert 0 < main_memory() < 2**60


@pytest.mark.parametrize(("quota", "count"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), (None, 8)])
def test_a_container_with_a_share_of_the_cores_has_as_many_as_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, count: int
):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    if quota:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert cores(tmp_path) == count
