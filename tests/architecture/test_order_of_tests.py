"""The order in which tests begin: no test is lost, and long ones begin first where that is possible."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import pytest_collection_modifyitems


def item(number: int, *, early: bool) -> Any:
    return SimpleNamespace(number=number, get_closest_marker=lambda _: early)


@pytest.mark.parametrize("processes", range(1, 10))
@pytest.mark.parametrize("count", [*range(12), 101, 4399])
def test_no_test_is_lost_and_long_ones_begin_first(count: int, processes: int) -> None:
    items = [item(number, early=number in (2, 3, 5, 6)) for number in range(count)]
    config: Any = SimpleNamespace(workerinput={"workercount": processes})
    before = list(items)
    pytest_collection_modifyitems(config, items)
    assert sorted(i.number for i in items) == [i.number for i in before]
    if count > 100:
        start, begins = 0, []
        for n in range(processes):  # as xdist's work stealing cuts them
            begins.append(items[start].get_closest_marker("early"))
            start += (count - start) // (processes - n)
        assert begins == [n % 2 == 0 and n // 2 < 4 for n in range(processes)]
