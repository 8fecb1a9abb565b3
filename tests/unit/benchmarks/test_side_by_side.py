"""The table of ratios: medians of figures taken in turns, and rows for peers that are missing or fail."""

import doctest
from itertools import count

from benchmarks import side_by_side
from benchmarks.side_by_side import MEGABYTES, QUERIES, SECONDS, Figures, Missing, Peer, compare


def in_turn(*figures: float) -> Figures:
    """One figure after the other."""
    at = count()
    return lambda: figures[next(at)]


def test_examples_in_docstrings() -> None:
    tried = doctest.testmod(side_by_side)
    assert tried.attempted
    assert not tried.failed


def test_ratios_are_those_of_the_medians() -> None:
    (row,) = compare({"read": SECONDS}, in_turn(2.0, 1.0, 9.0), Peer("other", lambda: in_turn(4.0, 4.0, 3.0)))
    assert row == {
        "task": "read", "fedgram": "2 s", "peer": "other", "its figure": "4 s", "ratio": "2 times as fast",
        "range": "0.333 to 4",
    }  # fmt: skip


def test_more_queries_and_fewer_bytes_are_better() -> None:
    rows = compare(
        {"score": QUERIES, "size": MEGABYTES}, lambda: (100.0, 4.0), Peer("other", lambda: lambda: (50.0, 8.0))
    )
    assert [row["ratio"] for row in rows] == ["2 times as fast", "2 times as small"]
    assert [row["range"] for row in rows] == [None, None]


def test_programs_take_turns() -> None:
    order: list[str] = []

    def noted(name: str) -> Figures:
        return lambda: float(len(order.append(name) or order))  # type: ignore[func-returns-value]

    compare({"x": SECONDS}, noted("ours"), Peer("a", lambda: noted("a")), Peer("b", lambda: noted("b")), repeats=2)
    assert order == ["ours", "a", "b"] * 2


def test_a_missing_peer_is_a_row_that_says_how_to_install_it() -> None:
    def prepare() -> Figures:
        raise Missing("apt-get install other")

    missing, present = compare(
        {"read": SECONDS}, lambda: 1.0, Peer("other", prepare), Peer("present", lambda: lambda: 3.0)
    )
    assert missing == {
        "task": "read", "fedgram": "1 s", "peer": "other", "its figure": "missing: apt-get install other",
        "ratio": None, "range": None,
    }  # fmt: skip
    assert present["ratio"] == "3 times as fast"


def test_a_peer_that_fails_does_not_end_the_table() -> None:
    calls = []

    def fails() -> float:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("reading\nno such file")
        return 1.0

    failed, present = compare(
        {"read": SECONDS}, lambda: 1.0, Peer("other", lambda: fails), Peer("present", lambda: lambda: 3.0)
    )
    assert failed["its figure"] == "failed: no such file"
    assert failed["ratio"] is None
    assert len(calls) == 2  # it is not asked again
    assert present["ratio"] == "3 times as fast"
