"""Grammars whose probabilities are known, and the typists who draw from them."""

import math
from collections import Counter

import numpy as np
import pytest

from fedgram.automata.build import count_ngrams
from fedgram.automata.scoring import sentence_log_probs
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.random import stream_key
from fedgram.text.normalize import normalize
from fedgram.text.synthetic.grammar import LANGUAGES, load_grammar, parse_grammar
from fedgram.text.synthetic.typists import Habits, SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

TINY = """
# two topics
topic food 1
2* I like {what} [very much]
hi
set what
pizza | 3* red {thing} | ~
set thing
wine | beans
topic chat 3
hi
"""


def test_sentences_come_with_the_probability_that_the_grammar_gives() -> None:
    grammar = parse_grammar(TINY)
    rng = np.random.default_rng(0)
    topics = rng.choice(2, 40_000, p=grammar.topic_share).astype(np.int32)
    seen = Counter(" ".join(grammar.words[i] for i in row) for row in grammar.sentences(topics, stream_key(1, "test")))
    assert len(seen) == 9
    total = 0.0
    for text, count in seen.items():
        p = math.exp(grammar.log_prob(text.split()))
        total += p
        assert count / 40_000 == pytest.approx(p, abs=4 * math.sqrt(p / 40_000) + 1e-9)
    assert total == pytest.approx(1.0)
    assert grammar.log_prob(["I", "like", "cake"]) == -math.inf
    assert grammar.log_prob([]) == -math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no topic"),
        ("hello\n", ":1: a phrase is before"),
        ("topic a 1\nhi {x}\n", "uses the set 'x', which is not defined"),
        ("topic a 1\nhi {x}\nset x\na {y}\nset y\nb {x}\n", "uses itself"),
        ("topic a 1\nhi\ntopic a 2\nho\n", ":3: 'a' is defined twice"),
        ("topic a 1\nset x\ny\n", "has no alternatives"),
    ],
)
def test_broken_grammars_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_grammar(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_languages_are_rich_enough(language: str) -> None:
    grammar = load_grammar(language)
    assert len(grammar.topics) >= 20
    assert len({word.lower() for word in grammar.words}) >= 3000
    sentences = list(SyntheticPopulation(language, seed=3).clean_sentences(3000))
    assert 4 < np.mean([len(s) for s in sentences]) < 15
    assert all(s[0][0].isupper() for s in sentences)
    assert len({" ".join(s) for s in sentences}) > 2000
    for sentence in sentences[:50]:
        assert normalize(" ".join(sentence)) == [sentence]


@pytest.mark.parametrize("language", LANGUAGES)
def test_typists_are_as_careless_as_people(language: str) -> None:
    people = SyntheticPopulation(language, seed=1)
    rows = list(people.rows(400))
    lower = np.mean([text[0].islower() for _, text, _ in rows])
    assert 0.25 < lower < 0.45
    lengths = sorted(Counter(user for user, _, _ in rows).values())
    assert lengths[-1] > 10 * lengths[len(lengths) // 2]
    known = {word.lower() for word in people.grammar.words}
    words = [w.lower() for _, text, _ in rows for s in normalize(text) for w in s]
    unknown = sum(w not in known for w in words) / len(words)
    assert 0.01 < unknown < 0.15


def test_typists_depend_on_seed_and_number_alone() -> None:
    people = SyntheticPopulation("en_us", seed=5)
    whole = list(people.rows(6))
    assert whole == [row for first in range(6) for row in SyntheticPopulation("en_us", seed=5).rows(1, first)]
    assert whole != list(SyntheticPopulation("en_us", seed=6).rows(6))
    with pytest.raises(FedgramError, match="at least 1 user"):
        list(people.rows(0))
    with pytest.raises(FedgramError, match="no grammar for the language 'xx'"):
        SyntheticPopulation("xx", seed=1)


def test_the_distance_of_a_model_from_the_truth_can_be_measured() -> None:
    """KL(truth ‖ model) by sampling: positive, and smaller for a model that saw more text."""
    people = SyntheticPopulation("en_us", seed=2, habits=Habits.careful(), grammar=parse_grammar(TINY))
    typed = [normalize(text)[0] for _, text, _ in people.rows(400)]
    clean = [[s[0][0].lower() + s[0][1:] if s[0] != "I" else "I", *s[1:]] for s in typed]
    words = Vocabulary.of(w for s in clean for w in s)
    ids = Ragged.from_rows([words.encode(s) for s in clean])
    truth = np.array([people.grammar.log_prob(s) for s in clean])
    distances = []
    for size in (30, 3000):
        text = Ragged.from_rows([words.encode(s) for s in clean[:size]])
        model = smooth(count_ngrams(text, words, order=3, open_vocabulary=True), "witten-bell")
        distances.append(float(np.mean(truth - sentence_log_probs(model, ids))))
    assert 0 < distances[1] < distances[0]
