"""The ledger: what is spent, what is refused before it begins, and what a resumed or repeated operation costs."""

import json
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.privacy.accounting import Approximate, BltGaussian, Gaussian, PoissonGaussian, compose
from fedgram.privacy.ledger import Budget, BudgetError, Entry, Ledger, ledger_facts, operations_in_words, total_in_words

pytest.importorskip("dp_accounting")
DELTA = 1e-8
COUNTS, TRAINING = Gaussian(4.0), PoissonGaussian(1.5, 0.1, 12)


def epsilon(*events: Gaussian | PoissonGaussian | BltGaussian | Approximate) -> float:
    return compose(events, DELTA).epsilon


def test_operations_are_composed_as_they_are_spent(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    ledger = Ledger.open(path, Budget(9.0, DELTA))
    assert ledger.spent() == (0.0, DELTA, 0.0)
    ledger.plan("counts", COUNTS)
    ledger.plan("training", TRAINING, rounds=12, run="a")
    assert ledger.spent().epsilon == 0.0  # nothing was begun
    ledger.spend("counts")
    for number in (1, 2, 2, 1, 3):
        ledger.spend("training", number, run="a")
    again = Ledger.open(path)
    assert [(e.name, e.spent, e.rounds) for e in again.entries] == [("counts", 1, 1), ("training", 3, 12)]
    assert again.spent().epsilon == pytest.approx(epsilon(COUNTS, PoissonGaussian(1.5, 0.1, 3)), rel=1e-12)
    assert again.budget == Budget(9.0, DELTA)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".privacy.json.lock", "privacy.json"]


def test_a_plan_beyond_the_budget_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    limit = epsilon(COUNTS, Gaussian(2.0)) * 0.99
    ledger = Ledger.open(tmp_path / "privacy.json", Budget(limit, DELTA))
    ledger.plan("counts", COUNTS)
    ledger.spend("counts")
    with pytest.raises(BudgetError, match=r"^training would exceed the privacy budget \(ε = .* it was not begun"):
        ledger.plan("training", Gaussian(2.0, rounds=1))
    assert [e.name for e in Ledger.open(tmp_path / "privacy.json").entries] == ["counts"]
    ledger.plan("training", Gaussian(2.1))


def test_a_run_stops_before_the_round_that_would_exceed_the_budget(tmp_path: Path) -> None:
    """It was planned when the budget allowed all of it; then another operation took some."""
    limit = epsilon(Gaussian(3.0, 10)) * 1.001
    ledger = Ledger.open(tmp_path / "privacy.json", Budget(limit, DELTA))
    ledger.plan("training", Gaussian(3.0, 10), rounds=10)
    for number in range(1, 5):
        ledger.spend("training", number)
    other = Ledger.open(tmp_path / "privacy.json")
    other.plan("counts", Gaussian(2.0))
    other.spend("counts")
    left = next(n for n in range(4, 11) if epsilon(Gaussian(3.0, n + 1), Gaussian(2.0)) > limit)
    for number in range(5, left + 1):
        ledger.spend("training", number)
    with pytest.raises(BudgetError, match=rf"^round {left + 1} of training would exceed"):
        ledger.spend("training", left + 1)
    spent = Ledger.open(tmp_path / "privacy.json").spent()
    assert spent.epsilon == pytest.approx(epsilon(Gaussian(3.0, left), Gaussian(2.0)))
    assert spent.epsilon <= limit


def test_a_resumed_operation_is_counted_once_and_a_repeated_one_twice() -> None:
    ledger = Ledger(budget=Budget(20.0, DELTA))
    for run in ("first", "first", "second"):
        ledger.plan("training", Gaussian(2.0, 3), rounds=3, run=run)
        ledger.spend("training", 2, run=run)
    assert [(e.run, e.spent) for e in ledger.entries] == [("first", 2), ("second", 2)]
    ledger.plan("training", Gaussian(3.0, 3), rounds=3, run="second")  # other noise: both are counted
    ledger.spend("training", 1, run="second")
    assert [(e.event.multiplier, e.spent) for e in ledger.entries if not isinstance(e.event, Approximate)] == [
        (2.0, 2), (2.0, 2), (3.0, 1)
    ]  # fmt: skip
    ledger.plan("discovery", Gaussian(5.0))
    ledger.plan("discovery", Gaussian(6.0))  # the first was never begun
    assert [e.event for e in ledger.entries if e.name == "discovery"] == [Gaussian(6.0)]


def test_planning_or_recording_again_never_lowers_what_was_spent(tmp_path: Path) -> None:
    """An operation that resumes plans as before and begins with an earlier round; another process sees it all spent."""
    path, event = tmp_path / "privacy.json", Gaussian(2.0, 5)
    ledger = Ledger.open(path)
    for resumed in range(3):
        assert ledger.plan("training", event, rounds=5, run="a").spent == (4 if resumed else 0)
        for number in (4, 3, 1):
            ledger.spend("training", number, run="a")
            assert [entry.spent for entry in Ledger.open(path).entries] == [4]
    assert ledger.spent(DELTA).epsilon == pytest.approx(epsilon(Gaussian(2.0, 4)))


def test_a_given_budget_replaces_the_one_of_the_file(tmp_path: Path) -> None:
    path, event = tmp_path / "privacy.json", Gaussian(2.0)
    large, small = Budget(epsilon(event) * 2, DELTA), Budget(epsilon(event) / 2, DELTA)
    Ledger.open(path, large).plan("counts", event)
    ledger = Ledger.open(path, small)
    assert ledger.budget == small
    with pytest.raises(BudgetError, match="would exceed the privacy budget"):
        ledger.spend("counts")
    assert Ledger.open(path).budget == large  # nothing was recorded
    Ledger.open(path, small).plan("less", Gaussian(99.0))
    assert Ledger.open(path).budget == small


def test_delta_is_that_of_the_budget_or_the_largest_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    assert Ledger.open(path).delta == 1e-10
    Ledger.open(path).asked_at(1e-6).plan("counts", Gaussian(2.0))
    assert Ledger.open(path).delta == 1e-6
    Ledger.open(path).asked_at(1e-7).plan("other counts", Gaussian(2.0))
    assert (Ledger.open(path).delta, ledger_facts(Ledger.open(path))["delta"]) == (1e-6, 1e-6)
    Ledger.open(path).plan("words", Approximate(1.0, 1e-5))
    assert Ledger.open(path).delta == 1e-5
    assert Ledger.open(path, Budget(9.0, DELTA)).delta == DELTA
    assert Ledger().asked_at(1e-6).asked_at(1e-7).delta == 1e-6
    with pytest.raises(FedgramError, match="delta must be between 0 and 1"):
        Ledger().asked_at(1.0)


def test_what_was_not_planned_cannot_be_spent() -> None:
    ledger = Ledger()
    with pytest.raises(InvariantError, match="counts was not planned"):
        ledger.spend("counts")
    ledger.plan("counts", COUNTS, rounds=2)
    with pytest.raises(BudgetError, match="round 3 of counts is beyond the 2 rounds"):
        ledger.spend("counts", 3)


def test_a_simulated_operation_is_labelled_and_has_the_real_cost_beside_it() -> None:
    ledger = Ledger(budget=Budget(5.0, DELTA))
    ledger.plan("counts", COUNTS, stands_for=10.0, generator="system generator (cryptographic)")
    ledger.spend("counts")
    facts = ledger_facts(ledger)
    assert facts["simulated"]
    assert facts["epsilon"] == pytest.approx(epsilon(COUNTS))
    assert facts["real_epsilon"] == pytest.approx(epsilon(Gaussian(0.4)))
    assert facts["operations"][0]["users_per_device"] == 10.0
    assert "simulated population; for the real users ε = " in total_in_words(facts)
    assert "each device stands for 10 users" in operations_in_words(facts)["counts"]
    assert json.loads(json.dumps(facts)) == facts


def test_one_line_per_operation_and_a_total() -> None:
    ledger = Ledger()
    for run in "ab":
        ledger.plan("counts", COUNTS, run=run)
        ledger.spend("counts", run=run)
    ledger.plan("discovery", Approximate(1.0, 1e-9))
    ledger.spend("discovery")
    facts = ledger_facts(ledger, DELTA)
    assert list(operations_in_words(facts)) == ["counts", "counts (2)", "discovery"]
    assert facts["zcdp"] is None
    left = compose([COUNTS, COUNTS], DELTA - 1e-9).epsilon
    assert facts["epsilon"] == pytest.approx(1.0 + left)
    assert ledger_facts(ledger, 1e-10)["epsilon"] is None  # δ of the discovery is larger
    assert "no bound" in total_in_words(ledger_facts(ledger, 1e-10))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"kind": "fedgram privacy ledger", "version": 9, "budget": null, "entries": []}',
        '{"kind": "fedgram privacy ledger", "version": 1, "budget": {"epsilon": -1, "delta": 0.1}, "entries": []}',
        '{"kind": "fedgram privacy ledger", "version": 1, "budget": null, "entries": [{"name": "x"}]}',
        json.dumps({"kind": "fedgram privacy ledger", "version": 1, "budget": None,
                    "entries": [{**Entry("x", COUNTS).to_json(), "spent": 2}]}),
        '{"kind": "fedgram privacy ledger", "version": 1, "budget": null, "delta": 1, "entries": []}',
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "privacy.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"is not a privacy ledger, or is damaged; restore it"):
        Ledger.open(path)


def test_wrong_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder does not exist"):
        Ledger.open(tmp_path / "nowhere" / "privacy.json")
    for budget in ((0.0, DELTA), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(FedgramError):
            Budget(*budget)
    with pytest.raises(InvariantError, match="stand for"):
        Entry("x", COUNTS, stands_for=-1.0)
    with pytest.raises(InvariantError, match="wrong value"):
        Entry("", COUNTS)


def test_the_ledger_and_its_folder_are_flushed_to_disk(tmp_path: Path, flushed: list[Path]) -> None:
    ledger = Ledger.open(tmp_path / "ledger.json")
    ledger.plan("training", Gaussian(1.0, 2), rounds=2)
    assert flushed[-1] == tmp_path
    before = len(flushed)
    ledger.spend("training", 1)
    assert [path.parent for path in flushed[before:]] == [tmp_path, tmp_path.parent]
    assert Ledger.open(tmp_path / "ledger.json").entries[0].spent == 1
