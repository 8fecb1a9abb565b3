"""The jackknife against its textbook form, and experiments with a known result."""

import numpy as np
import pytest
from scipy import stats

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.evaluate.evaluation import Evaluation
from fedgram.evaluate.experiment import aa_coverage, ab_experiment, deal_arms
from fedgram.evaluate.jackknife import Estimate, deal_users, level, relative_change, student_quantile
from fedgram.evaluate.measure import Measure


def typists(users: int, *, rate: float, seed: int) -> Measure:
    """Heavy-tailed numbers of words, and an accuracy that differs from user to user."""
    rng = np.random.default_rng(seed)
    words = np.ceil(rng.lognormal(np.log(200), 1.2, users))
    own = rng.beta(40 * rate, 40 * (1 - rate), users)
    return Measure(rng.binomial(words.astype(int), own).astype(float), words)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 19, 49, 200])
@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_students_quantile_is_scipys(freedom: int, share: float) -> None:
    assert student_quantile(freedom, share) == pytest.approx(stats.t.ppf((1 + share) / 2, freedom), rel=1e-8)


def test_students_quantile_between_whole_numbers() -> None:
    for freedom in (2.5, 5.5, 13.2, 60.1):
        assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.02)


def test_the_jackknife_of_a_mean_is_the_usual_interval() -> None:
    """With one user per bucket and equal counts, it is Student's interval of the mean."""
    x = np.random.default_rng(1).normal(5, 2, 30)
    estimate = level(Measure(x, np.ones(30)), np.arange(30, dtype=np.int32))
    low, high = stats.t.interval(0.95, 29, x.mean(), stats.sem(x))
    assert estimate.interval == pytest.approx((low, high))


def test_the_jackknife_leaves_one_bucket_out_at_a_time() -> None:
    new, old = typists(90, rate=0.2, seed=1), typists(90, rate=0.1, seed=2)
    bucket = deal_users([f"u{i}" for i in range(90)], 9)
    left_out = [
        np.log(new.amount[k].sum() / new.count[k].sum() / (old.amount[k].sum() / old.count[k].sum()))
        for k in (bucket != b for b in range(9))
    ]
    share = [
        (new.count[k].sum() / new.count.sum() + old.count[k].sum() / old.count.sum()) / 2
        for k in (bucket == b for b in range(9))
    ]
    t = student_quantile(1 / np.sum(np.square(share)) - 1)
    half = t * np.sqrt(8 / 9 * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    change = relative_change(new, old, bucket)
    ratio = new.level / old.level
    assert change.value == pytest.approx(100 * (ratio - 1))
    assert change.interval == pytest.approx((100 * (ratio * np.exp(-half) - 1), 100 * (ratio * np.exp(half) - 1)))


def test_a_rise_of_a_negative_level_is_positive() -> None:
    """Log-likelihoods are negative: from −30 to −27 is a rise of 10 %."""
    count, bucket = np.full(40, 2.0), deal_users([str(i) for i in range(40)], 8)
    noise = np.random.default_rng(4).normal(0.0, 0.5, 40)
    old, new = Measure(-60.0 + noise, count), Measure(-54.0 + 0.8 * noise, count)
    change, mirrored = relative_change(new, old, bucket), relative_change(old, new, bucket)
    assert change.value == pytest.approx(10.0, abs=0.3)
    assert change.interval is not None
    assert change.interval[0] < change.value < change.interval[1]
    assert change.interval[0] > 0 > mirrored.value


def test_heavy_buckets_leave_fewer_degrees_of_freedom() -> None:
    """The shares 1/2, 1/6, 1/6, 1/6 are worth 3 equal buckets: 2 degrees of freedom, not 3."""
    measure = Measure(np.array([1.0, 2.0, 1.0, 2.0]), np.array([9.0, 3.0, 3.0, 3.0]))
    left_out = np.array([5 / 9, 4 / 15, 5 / 15, 4 / 15])
    half = stats.t.ppf(0.975, 2) * np.sqrt(3 / 4 * np.sum((left_out - left_out.mean()) ** 2))
    assert level(measure, np.arange(4, dtype=np.int32)).half_width == pytest.approx(half)


def test_intervals_of_exponentials() -> None:
    nats = Measure(np.array([10.0, 12.0, 9.0, 11.0]), np.array([2.0, 3.0, 2.0, 2.0]), exponential=True)
    bucket = np.arange(4, dtype=np.int32)
    left_out = [np.exp((42 - a) / (9 - c)) for a, c in zip(nats.amount, nats.count, strict=True)]
    estimate = level(nats, bucket)
    assert estimate.value == pytest.approx(np.exp(42 / 9))
    assert estimate.half_width == pytest.approx(
        student_quantile(81 / 21 - 1) * np.sqrt(3 / 4 * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    )


def test_the_same_users_cancel() -> None:
    """If a model is 10 % better for every user, the paired interval is much narrower than those of the levels."""
    old = typists(400, rate=0.2, seed=3)
    new = Measure(old.amount * 1.1, old.count)
    change = relative_change(new, old, deal_users([str(i) for i in range(400)], 20))
    assert change.value == pytest.approx(10.0)
    assert change.half_width < 1e-9


def test_too_few_users_for_an_interval() -> None:
    one = Measure(np.array([1.0]), np.array([2.0]))
    assert level(one, deal_users(["u"], 20)) == Estimate(0.5, None)
    assert str(level(one, deal_users(["u"], 20))) == "0.50"
    nobody = Measure(np.array([1.0, 0.0]), np.array([2.0, 0.0]))  # without the first user nothing is left
    assert level(nobody, deal_users(["u", "v"], 2)).interval is None
    with pytest.raises(FedgramError, match="at least 2 user buckets"):
        deal_users(["u"], 1)
    with pytest.raises(InvariantError, match="every user must have a bucket"):
        level(one, np.zeros(2, np.int32))
    with pytest.raises(InvariantError, match="same number of buckets"):
        relative_change(nobody, nobody, np.array([0, 1], np.int32), np.array([0, 0], np.int32))


def test_buckets_depend_on_ids_alone() -> None:
    ids = [f"user-{i}" for i in range(100)]
    once = dict(zip(ids, deal_users(ids, 7).tolist(), strict=True))
    again = dict(zip(ids[::-1], deal_users(ids[::-1], 7).tolist(), strict=True))
    assert once == again
    assert set(once.values()) == set(range(7))


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize("users", [400, 3000])
def test_aa_intervals_cover_zero_in_95_of_100(users: int, exponential: bool) -> None:
    words = typists(users, rate=0.2, seed=4)
    measure = Measure(words.amount * (15 if exponential else 1), words.count, exponential)
    coverage = aa_coverage(measure, experiments=2000, seed=1)
    assert coverage == pytest.approx(0.95, abs=0.01)


def test_aa_catches_intervals_over_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals that treat words as independent, as a naive test does, miss far too often."""
    measure = typists(600, rate=0.2, seed=5)

    def naive(new: Measure, old: Measure, _: int) -> Estimate:
        p, q = new.level, old.level
        se = np.sqrt((1 - p) / p / new.count.sum() + (1 - q) / q / old.count.sum())
        change = 100 * (p / q - 1)
        return Estimate(change, (change - 196 * se, change + 196 * se))

    monkeypatch.setattr("fedgram.evaluate.experiment._compare", naive)
    assert aa_coverage(measure, experiments=300, seed=1) < 0.7


def test_an_ab_experiment_finds_a_real_change() -> None:
    ids = tuple(f"u{i}" for i in range(3000))
    old = typists(3000, rate=0.10, seed=6)
    better = Measure(np.minimum(old.amount * 1.3, old.count), old.count)
    baseline = Evaluation(ids, {"top1": old})
    result = ab_experiment(baseline, {"better": Evaluation(ids, {"top1": better}), "same": baseline}, seed=2)
    assert result["better"]["top1"].covers(30)
    assert not result["better"]["top1"].covers(10)
    assert result["same"]["top1"].covers(0)
    other = Evaluation(ids[::-1], {"top1": old})
    with pytest.raises(FedgramError, match="same users"):
        ab_experiment(baseline, {"x": other}, seed=2)


def test_the_arms_together_have_all_users() -> None:
    arms = deal_arms(11, np.random.default_rng(0))
    assert sorted(np.concatenate(arms).tolist()) == list(range(11))
    assert [len(arm) for arm in arms] == [6, 5]
    with pytest.raises(FedgramError, match="at least 4 users, not 3"):
        deal_arms(3, np.random.default_rng(0))
