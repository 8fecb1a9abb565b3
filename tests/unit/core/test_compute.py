"""How many cores share the work."""

import os

import pytest

from fedgram.core.compute import Compute


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to cores here")
def test_workers_are_as_many_as_the_cores_that_a_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert (Compute().cores, Compute(workers=3).cores) == (1, 3)
    finally:
        os.sched_setaffinity(0, allowed)
    assert Compute().cores == len(allowed)
