"""Parts of vocabulary discovery: the alphabet, a device's choice, its vector, the noise, and TrieHH's numbers."""

from collections import Counter
from math import exp, factorial, log, sqrt

import numpy as np
import pytest

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import philox
from fedgram.core.storage import Record
from fedgram.federated.discovery.alphabet import Alphabet, encode_words, split_words
from fedgram.federated.discovery.chosen_words import choose, device_key, word_hashes
from fedgram.federated.discovery.growth import NoisyTree, Scores, grow
from fedgram.federated.discovery.options import DiscoveryOptions
from fedgram.federated.discovery.prefix_level import COUNT, Collection, PrefixLevel
from fedgram.federated.discovery.triehh import plan_voting
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.task import Total, Update, device_stream
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.privacy.gaussian import gaussian_delta
from fedgram.privacy.noise import SeededRandomness
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import Vocabulary

KNOWN = Vocabulary.of(["the", "cat", "<number>"])
LETTERS = Alphabet("abct")
NOTHING = Record()


def collection(*, levels: int = 4, first: int = 2, words_per_device: int = 1) -> Collection:
    return Collection(KNOWN, LETTERS, levels, first, words_per_device, choice=7)


def data_of(task: PrefixLevel, *words: str) -> ClientDataset:
    return ClientDataset("someone", task.encode(words))


def sent(task: PrefixLevel, *words: str, device: int = 3) -> dict[str, float]:
    """What a device with these words sends, by the text of the candidates; whole words end with a full stop."""
    update = task.client_update(NOTHING, data_of(task, *words), device_stream(1, 1, device))
    texts = [task.extended(int(i)) for i in update.index[COUNT]]
    return {text + "." * is_word: float(v) for (text, is_word), v in zip(texts, update.values[COUNT], strict=True)}


@pytest.mark.parametrize(
    ("words", "characters"),
    [
        (["ça", "<number>", "<unk>"], "'-0123456789abcdefghijklmnopqrstuvwxyzç"),
        (["да", "нет"], "'-0123456789адент"),
    ],
)
def test_the_alphabet_comes_from_the_whitelist(words: list[str], characters: str) -> None:
    assert Alphabet.of(words).characters == characters


def test_an_alphabet_keeps_the_most_common_characters() -> None:
    rare = [chr(0x4E00 + i) for i in range(200)]
    chosen = Alphabet.of(["the", "mama", *rare, rare[150], rare[150]])
    assert len(chosen) == 121
    assert rare[150] in chosen.characters
    assert rare[199] not in chosen.characters
    for wrong in ("", "aba", "a\n"):
        with pytest.raises(InvariantError, match="distinct characters"):
            Alphabet(wrong)


def test_only_words_that_may_be_discovered_are_encoded() -> None:
    words = ["Tab", "cat", "CAT", "<number>", "taxi", "abcabc", "a", "tab"]
    rows = encode_words(words, LETTERS, frozenset(KNOWN.index), longest=5)
    assert [row.tolist() for row in rows] == [[4, 1, 2, 0], [], [], [], [], [], [1, 0], [4, 1, 2, 0]]
    assert [row.tolist() for row in split_words(rows.values)] == [[4, 1, 2, 0], [1, 0], [4, 1, 2, 0]]


def reference_choice(words: list[tuple[int, ...]], key: int, most: int) -> list[tuple[int, ...]]:
    """The words in the order of their waiting times, by the definition."""
    waiting = {}
    for word, times in Counter(words).items():
        (h,) = word_hashes(np.array([*word, 0], np.int32), np.array([0, len(word) + 1], np.int64))
        u = 1 - (int(philox(np.uint64(key), h, np.uint64(0))[0]) >> 11) / 2**53
        waiting[word] = -log(u) / times
    return sorted(waiting, key=waiting.__getitem__)[:most]


@pytest.mark.parametrize("most", [1, 3, 50])
def test_the_choice_is_that_of_its_definition(most: int) -> None:
    rng = np.random.default_rng(most)
    for device in range(200):
        words = [tuple(rng.integers(1, 4, rng.integers(1, 4)).tolist()) for _ in range(rng.integers(0, 30))]
        rows = encode_words([LETTERS.text(word) for word in words], LETTERS, frozenset(), 9)
        key = device_key(11, device)
        found = choose(word_hashes(rows.values, rows.offsets), key, most)
        assert [words[place] for place in found] == reference_choice(words, int(key), most)
        assert [words.index(words[place]) for place in found] == found.tolist()  # the first occurrence


def test_a_word_is_chosen_as_often_as_it_is_typed_and_hashes_differ() -> None:
    rows = encode_words(["aa", "ab", "aa", "ba", "aa", "cat"], LETTERS, frozenset(KNOWN.index), 9)
    hashes = word_hashes(rows.values, rows.offsets)
    assert len(set(hashes.tolist())) == 4  # three words, and none for a known one
    drawn = Counter(int(choose(hashes, device_key(0, device), 1)[0]) for device in range(4000))
    assert set(drawn) == {0, 1, 3}
    assert drawn[0] / 4000 == pytest.approx(0.6, abs=0.03)
    assert drawn[1] / 4000 == pytest.approx(0.2, abs=0.03)


def test_more_text_rarely_changes_the_choice() -> None:
    rng, kept = np.random.default_rng(5), 0
    for device in range(300):
        words = [LETTERS.text(rng.integers(1, 5, 4)) for _ in range(20)]
        rows = encode_words([*words, words[3], words[7]], LETTERS, frozenset(), 9)
        hashes, key = word_hashes(rows.values, rows.offsets), device_key(1, device)
        before, after = (int(hashes[choose(part, key, 1)[0]]) for part in (hashes[:20], hashes))
        kept += before == after
    assert kept > 270


def test_a_device_sends_how_its_word_continues() -> None:
    assert sent(PrefixLevel(collection(), 0, [""]), "tab", "the") == {"ta": 1.0}
    assert sent(PrefixLevel(collection(), 0, [""]), "a") == {"a.": 1.0}
    assert sent(PrefixLevel(collection(), 1, ["ab", "ta"]), "tab") == {"tab": 1.0}
    assert sent(PrefixLevel(collection(), 2, ["tab", "tac"]), "tab") == {"tab.": 1.0}
    assert sent(PrefixLevel(collection(), 3, ["tabb"]), "tabb") == {"tabb.": 1.0}
    assert sent(PrefixLevel(collection(), 1, ["ab"]), "tab") == {}
    assert sent(PrefixLevel(collection(), 1, ["ab"]), "cat", "the") == {}
    assert sent(PrefixLevel(collection(), 1, ["ab"]), "a") == {}


def test_several_words_share_a_norm_of_one() -> None:
    several = collection(words_per_device=3)
    assert sent(PrefixLevel(several, 0, [""]), "tab", "ta", "tac") == {"ta": 1.0}
    shared = sent(PrefixLevel(several, 0, [""]), "tab", "abc", "tac")
    assert shared == {"ab": pytest.approx(1 / sqrt(5), abs=1e-7), "ta": pytest.approx(2 / sqrt(5), abs=1e-7)}
    apart = sent(PrefixLevel(several, 1, ["ta", "ab"]), "tab", "tac", "abc")
    assert apart == {word: pytest.approx(1 / sqrt(3), abs=1e-7) for word in ("tab", "tac", "abc")}
    assert sum(value**2 for value in apart.values()) <= 1
    assert sent(PrefixLevel(several, 1, ["ab"]), "tab", "tac", "abc") == {"abc": 1.0}


def test_every_candidate_has_one_text() -> None:
    task = PrefixLevel(collection(first=3), 0, [""])
    texts = [task.extended(i) for i in range(task.size[COUNT])]
    whole = [text for text, is_word in texts if is_word and text]
    prefixes = [text for text, is_word in texts if not is_word and text]
    assert len(set(whole)) == len(whole) == 4 + 4**2
    assert len(set(prefixes)) == len(prefixes) == 4**3
    codes = [LETTERS.codes(word) for word in [*whole, *prefixes]]
    assert [task.extended(i)[0] for i in task.candidates(codes)] == [*whole, *prefixes]


@pytest.mark.parametrize("words_per_device", [1, 2])
def test_a_device_that_sends_more_is_refused(words_per_device: int) -> None:
    task = PrefixLevel(collection(words_per_device=words_per_device), 1, ["ab", "ta"])

    def reason(values: list[float]) -> Reason | None:
        update = Update(task.size, {COUNT: np.arange(len(values))}, {COUNT: np.array(values)}, 1.0)
        try:
            Total.zero(task.size, task.bits).add(update, task.bounds)
        except RefusedUpdateError as refusal:
            return refusal.reason
        return None

    assert reason([1.0]) is None
    assert reason([]) is None
    assert reason([2.0]) == Reason.TOO_LARGE
    assert reason([1.0, 1.0]) == Reason.NORM
    assert reason([0.6, 0.6]) == (Reason.NOT_WHOLE if words_per_device == 1 else None)
    assert reason([-1.0]) in (Reason.NEGATIVE, Reason.NOT_WHOLE)


def test_a_level_is_its_settings() -> None:
    task = PrefixLevel(collection(words_per_device=3), 1, ["ab", "ta"])
    there = job_from_bytes(Job(task, 5, 1).content).task
    assert isinstance(there, PrefixLevel)
    assert (there.collection, there.level, there.prefixes) == (task.collection, 1, ("ab", "ta"))
    assert sent(there, "tab", "abc") == sent(task, "tab", "abc")
    first = job_from_bytes(Job(PrefixLevel(collection(), 0, [""]), 5).content).task
    assert isinstance(first, PrefixLevel)
    assert first.prefixes == ("",)


def test_a_level_is_one_question_whatever_its_prefixes() -> None:
    """So a device answers each level of a collection once."""
    here, c = Job(PrefixLevel(collection(), 1, ["ab"]), 5), collection()
    other_choice = Collection(KNOWN, LETTERS, c.levels, c.first, 1, choice=99)
    for same in (PrefixLevel(c, 1, ["ta", "bb"]), PrefixLevel(other_choice, 1, ["ab"])):
        assert Job(same, 6).question == here.question
        assert Job(same, 5).digest != here.digest
    for other in (PrefixLevel(c, 2, ["abc"]), PrefixLevel(collection(levels=5), 1, ["ab"])):
        assert Job(other, 5).question != here.question


def test_levels_that_cannot_be_are_refused() -> None:
    for level, prefixes in ((4, ["abcab"]), (-1, [""]), (1, ["a"]), (1, []), (0, ["a"])):
        with pytest.raises(InvariantError):
            PrefixLevel(collection(), level, prefixes)
    with pytest.raises(InvariantError, match="more than"):
        PrefixLevel(collection(first=12), 0, [""])
    settings = PrefixLevel(collection(), 1, ["ab"]).settings()
    with pytest.raises(InvariantError, match="does not exist"):
        PrefixLevel.from_settings(Record({**settings.fields, "level": 9}, settings.arrays))


def test_noise_has_the_deviation_of_one_gaussian_event() -> None:
    """Over all levels: √levels for the vectors of one device, σ·√levels of noise at each."""
    options = DiscoveryOptions(epsilon=3.42, delta=1e-8, levels=9, max_candidates=1 << 18)
    rule = NoisyTree(options, SeededRandomness(3))
    assert rule.multiplier == pytest.approx(1.61, abs=0.005)  # a check value of the analytic Gaussian mechanism
    assert gaussian_delta(rule.multiplier, 3.42) == pytest.approx(1e-8, rel=1e-3)
    for words_per_device in (1, 2):
        task = PrefixLevel(collection(first=7, words_per_device=words_per_device), 0, [""])
        noise = rule.scores(task, np.zeros(task.size[COUNT], np.int64)).score
        assert len(noise) == 5**7
        assert noise.std() == pytest.approx(sqrt(9) * rule.multiplier, rel=0.01)  # no candidate is left out
        assert abs(noise.mean()) < 5 * noise.std() / sqrt(len(noise))
        assert noise.max() < rule.threshold


def test_thresholds() -> None:
    rule = NoisyTree(DiscoveryOptions(epsilon=4, delta=2.3e-12), SeededRandomness(0))
    assert rule.deviation == pytest.approx(1.7101 * sqrt(10), abs=1e-3)
    assert rule.threshold == pytest.approx(sqrt(2 * log(2**18)) * rule.deviation)
    assert (rule.holders, rule.sure_holders) == (28, 40)
    assert not rule.can_find(27)
    assert rule.can_find(28)
    assert "about 28 holders to be found, 40 to be found almost surely" in rule.in_words()
    loose = NoisyTree(DiscoveryOptions(epsilon=200, delta=0.1, min_holders=7), SeededRandomness(0))
    assert loose.holders == 7
    task = PrefixLevel(collection(), 0, [""])
    assert loose.scores(task, np.zeros(25, np.int64)).prefix == 7


def test_growing_keeps_what_reaches_its_threshold() -> None:
    task = PrefixLevel(collection(first=2), 0, [""])
    score = np.zeros(25)

    def place(text: str) -> int:
        return int(task.candidates([LETTERS.codes(text)])[0])

    score[place("abc")], score[place("tab")], score[place("bbb")], score[place("ccc")] = 5, 9, 3, 4
    score[place("a")], score[place("b")], score[place("c")], score[0], score[1] = 8, 7, 20, 99, 99
    known = PrefixLevel(Collection(Vocabulary.of(["c"]), LETTERS, 4, 2, 1, 0), 0, [""])
    grown = grow(known, Scores(score, word=8, prefix=4), max_prefixes=2)
    assert grown.words == {"a": 8.0}  # c is known; two candidates have something after the end of the word
    assert grown.prefixes == ("ta", "ab")


@pytest.mark.parametrize(("epsilon", "delta", "levels"), [(4, 2.3e-12, 10), (1, 1e-6, 5), (30, 1e-2, 6)])
def test_TrieHH_takes_the_least_threshold_and_the_largest_batch(epsilon: float, delta: float, levels: int) -> None:
    plan = plan_voting(1_000_000, levels, epsilon=epsilon, delta=delta)

    def allowed(theta: int) -> bool:
        small = (theta - 2) / ((theta - 3) * factorial(theta)) <= delta if theta >= 4 else False
        return small and theta >= exp(epsilon / levels) - 1

    assert allowed(plan.threshold)
    assert not allowed(plan.threshold - 1)
    assert plan.delta <= delta
    assert plan.epsilon <= epsilon * (1 + 1e-9)
    larger = -levels * log(1 - (plan.batch + 1) * plan.threshold / 1_000_000)
    assert larger > epsilon


def test_TrieHH_with_hardly_any_privacy_is_planned_in_no_time() -> None:
    plan = plan_voting(1000, 4, epsilon=60.0, delta=1e-3)
    assert (plan.threshold, plan.batch) == (3_269_017, 0)  # e¹⁵ − 1
    assert plan.delta == 0.0
    assert plan_voting(1000, 1, epsilon=1e6, delta=1e-3).batch == 0


def test_TrieHH_takes_one_word_per_device() -> None:
    with pytest.raises(FedgramError, match="one word per device"):
        DiscoveryOptions(method="triehh", words_per_device=2)
