"""When a device may take part: each limit on its own and at its edge, and what its record remembers."""

import json
from functools import partial
from pathlib import Path

import pytest

from fedgram.core.errors import InputError
from fedgram.deployment.participation import MAX_OPEN, TOO_EARLY, TOOK_PART, Limits, Participation, Participations

FREE, ONCE, TWICE, APART = Limits(), Limits(1), Limits(2), Limits(None, 3)


@pytest.fixture
def noted(tmp_path: Path) -> Participations:
    return Participations(tmp_path / "device" / "participations.json")


@pytest.mark.parametrize(
    ("limits", "record", "number", "reason"),
    [
        (FREE, Participation(spent=99, last=4), 5, None),
        (TWICE, Participation(spent=1), 5, None),
        (TWICE, Participation(spent=2), 5, TOOK_PART),
        (APART, Participation(last=2), 5, None),
        (APART, Participation(last=3), 5, TOO_EARLY),
        (APART, Participation(last=0), 1, None),
        (APART, Participation(last=7), 5, TOO_EARLY),  # the server goes back
        (Limits(2, 3), Participation(spent=2, last=1), 9, TOOK_PART),
    ],
)
def test_how_often_and_how_far_apart(limits: Limits, record: Participation, number: int, reason: str | None) -> None:
    assert limits.refusal(record, number) == reason
    assert limits.are_any == (limits is not FREE)


def test_a_report_counts_once_and_may_be_sent_again_byte_for_byte(noted: Participations) -> None:
    assert noted.refuses_report("job", 1, "digest", ONCE) is None
    for _ in range(2):
        noted.reported("job", 1, "digest")
        assert noted.of("job") == Participation(1, 1, "digest", last=1)
    assert noted.refuses_report("job", 1, "digest", ONCE) is None
    assert noted.refuses_report("job", 1, "other", ONCE) == TOOK_PART
    assert noted.refuses_report("job", 2, "digest", ONCE) == TOOK_PART
    noted.reported("job", 2, "digest")
    assert noted.of("job").spent == 2


def test_jobs_are_recorded_apart(noted: Participations) -> None:
    noted.reported("one", 1, "digest")
    noted.masked("two")
    assert (noted.of("one").spent, noted.of("two").open, noted.of("three")) == (1, 1, Participation())


def test_a_masked_vector_counts_when_its_sum_is_unmasked(noted: Participations) -> None:
    for number in range(MAX_OPEN):
        assert noted.refuses_mask("job", 1, ONCE) is None
        noted.masked("job")
        assert noted.of("job").open == number + 1
    assert noted.refuses_mask("job", 1, ONCE) == TOOK_PART
    assert noted.refuses_mask("job", 1, ONCE, begins=False) is None  # a round that has begun may end
    assert noted.refuses_mask("job", 1, FREE) is None
    noted.unmasked("job", 4)
    assert noted.of("job") == Participation(spent=1, last=4)
    assert noted.refuses_mask("job", 9, ONCE, begins=False) == TOOK_PART


def test_a_record_is_flushed_before_anything_is_sent(
    noted: Participations, tmp_path: Path, flushed: list[Path]
) -> None:
    records = partial(noted.reported, "job", 1, "x"), partial(noted.masked, "job"), partial(noted.unmasked, "job", 2)
    for record in records:
        flushed.clear()
        record()
        assert [path.parent for path in flushed] == [tmp_path / "device", tmp_path]


@pytest.mark.parametrize(
    "entry",
    [{"spent": -1}, {"spent": 0.5}, {"open": -1}, {"round": "1"}, {"report": 1}, {"last": None}, {"other": 1}, 5],
)
def test_a_damaged_record_lets_the_device_take_part_in_nothing(
    noted: Participations, tmp_path: Path, entry: object
) -> None:
    noted.reported("fine", 1, "x")
    (tmp_path / "device" / "participations.json").write_text(json.dumps({"fine": {}, "job": entry}))
    with pytest.raises(InputError, match="is damaged"):
        noted.of("fine")
