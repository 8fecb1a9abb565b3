"""Both predictors against the reference keyboard, on random models with case variants, ties and unknown words."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.reference.keyboard import Keyboard, ngram_log_probability
from tests.reference.random_models import random_model, random_topology, random_weights

from fedgram.automata.model import NGramModel
from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.evaluate.dense import DensePredictor
from fedgram.evaluate.forms import WordForms
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.predictor import Judgement, Predictor
from fedgram.evaluate.typed_text import TypedText, TypedTextReader
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import BOS, Vocabulary

WORDS = ("an", "An", "ant", "Ann", "<number>", "antes", "é", "bo", "AN", "any")
TYPED = [*WORDS, "ANT", "bob", "3", "Bo", "z"]


def cased_model(seed: int, order: int) -> NGramModel:
    """Sparse for even seeds; dense for odd seeds, so that states have several words with the same prefix."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        model = random_weights(rng, random_topology(rng, words=len(WORDS), order=order, ngrams=150), len(WORDS))
    else:
        model = random_model(rng, order=order, words=len(WORDS))
    return replace(model, vocabulary=Vocabulary.of(WORDS))


def typists(seed: int, users: int = 3) -> Population:
    rng = np.random.default_rng(seed)
    return population_from_messages(
        (f"u{user}", " ".join(rng.choice(TYPED, rng.integers(1, 7)).tolist()), "test")
        for user in range(users)
        for _ in range(4)
    )


def dense(model: NGramModel, *, cased: bool) -> DensePredictor:
    log_p = ngram_log_probability(model)

    def rows(sentences: Ragged) -> Iterator[FloatArray]:
        for sentence in sentences:
            ids = tuple(sentence.tolist())
            yield np.array(
                [
                    [log_p(ids[:i], x) if x != BOS else -np.inf for x in range(len(model.vocabulary))]
                    for i in range(len(ids) + 1)
                ]
            )

    return DensePredictor(model.vocabulary, rows, cased=cased)


def agrees(predictor: Predictor, keyboard: Keyboard, people: Population) -> None:
    text = TypedTextReader(people, predictor.forms).text(people.clients())
    judged = predictor.judge(text)
    i = 0
    for s, sentence in enumerate(text.read):
        for j in range(len(sentence)):
            history, typed = tuple(sentence[:j].tolist()), people.words[people.token[i]]
            log_p, rank, letters = keyboard.judge(history, typed)
            assert judged.log_prob[i] == pytest.approx(log_p, rel=1e-12), (history, typed)
            assert (judged.rank[i], judged.letters[i]) == (rank, letters), (history, typed)
            i += 1
        assert judged.end_log_prob[s] == keyboard.end(tuple(sentence.tolist()))


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_an_ngram_ranks_as_the_keyboard(seed: int, cased: bool) -> None:
    model = cased_model(seed, order=1 + seed % 4)
    keyboard = Keyboard(model.vocabulary, ngram_log_probability(model), cased=cased)
    agrees(NGramPredictor(model, cased=cased), keyboard, typists(seed))


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_dense_rows_rank_as_the_keyboard(seed: int, cased: bool) -> None:
    model = cased_model(seed, order=1 + seed % 3)
    keyboard = Keyboard(model.vocabulary, ngram_log_probability(model), cased=cased)
    predictor = dense(model, cased=cased)
    predictor.forms = NGramPredictor(model, cased=cased).forms  # so that both read unknown capitals in the same way
    agrees(predictor, keyboard, typists(seed))


@pytest.mark.parametrize("faulty", ["weight", "rank_weight", "unigram"])
def test_the_keyboard_catches_a_wrong_bound(faulty: str) -> None:
    """Candidates with slightly too low weights, in the lists for ranks or in the lists for letters."""
    model = cased_model(3, order=3)
    keyboard = Keyboard(model.vocabulary, ngram_log_probability(model), cased=True)
    predictor = NGramPredictor(model, cased=True)
    agrees(predictor, keyboard, typists(3, users=30))
    lists = predictor._candidates
    predictor._candidates = lists._replace(**{faulty: getattr(lists, faulty) - 0.5})
    with pytest.raises(AssertionError):
        agrees(predictor, keyboard, typists(3, users=30))


@pytest.mark.parametrize("cased", [True, False])
def test_suggestions_are_the_keyboards(cased: bool) -> None:
    for seed in range(20):
        model = cased_model(seed, order=3)
        keyboard = Keyboard(model.vocabulary, ngram_log_probability(model), cased=cased)
        for predictor in (NGramPredictor(model, cased=cased), dense(model, cased=cased)):
            for history in (["an"], ["An", "ant"], ["bo", "antes", "any"], []):
                ids = tuple(model.vocabulary.encode(history))
                shown = predictor.suggest(history)
                assert [w if cased else w.lower() for w, _ in shown] == keyboard.suggestions(ids)
                assert [p for _, p in shown] == sorted((p for _, p in shown), reverse=True)
        assert len(NGramPredictor(model, cased=True).suggest([], 5)) == 5


def test_forms_number_variants_together_and_find_prefixes() -> None:
    forms = WordForms.of(Vocabulary.of(WORDS), cased=False)
    assert [forms.vocabulary.words[i] for i in forms.variants[forms.index["an"]]] == ["an", "An", "AN"]
    assert not forms.candidate[forms.index["<number>"]]
    p = forms.prefixes
    by_rank = sorted((r, w) for w, r in zip(forms.index, p.rank.tolist(), strict=True) if r >= 0)
    assert [w for _, w in by_rank] == ["an", "ann", "ant", "antes", "any", "bo", "é"]
    ant = p.first_letter[forms.index["ant"]]
    spans = [(int(p.node_first[n]), int(p.node_end[n])) for n in p.nodes[ant : ant + 3]]
    assert spans == [(0, 5), (0, 5), (2, 4)]


def test_the_likeliest_variant_is_read_for_an_unknown_capital() -> None:
    model = cased_model(1, order=1)
    predictor = NGramPredictor(model, cased=True)
    likely = max(("an", "An", "AN"), key=lambda w: model.log_weight[model.topology.label == model.vocabulary[w]][0])
    people = population_from_messages([("u", "aN", "test"), ("u", "Z <number>", "test")])
    text = TypedTextReader(people, predictor.forms).text(people.clients())
    assert text.read.values.tolist() == [model.vocabulary[likely], 0, model.vocabulary["<number>"]]
    assert text.target.tolist() == [-1, -1, model.vocabulary["<number>"]]
    assert text.is_word.tolist() == [True, True, False]
    assert repr(text) == "TypedText(1 users, 2 sentences, 3 tokens)"


def test_special_words_in_a_foreign_population_are_unknown() -> None:
    people = population_from_messages([("u", "an bo", "test")])
    people = replace(people, words=("</s>", "<s>"))
    predictor = NGramPredictor(cased_model(2, order=2), cased=False)
    text = TypedTextReader(people, predictor.forms).text(people.clients())
    assert (text.read.values.tolist(), text.target.tolist()) == ([0, 0], [-1, -1])
    assert not text.is_word.any()


def test_rows_that_do_not_fit_are_refused() -> None:
    people, model = typists(0), cased_model(0, order=1)
    for shape in [(1, 3), (10_000, 13), (2, 13)]:
        predictor = DensePredictor(model.vocabulary, lambda _, s=shape: iter([np.zeros(s)]), cased=True)  # type: ignore[misc]
        text: TypedText = TypedTextReader(people, predictor.forms).text(people.clients())
        with pytest.raises(InvariantError, match="rows of log-probabilities"):
            predictor.judge(text)


def test_chunks_are_the_whole_text_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgram.evaluate.typed_text._CHUNK_WORDS", 20)
    people = typists(5, users=9)
    reader = TypedTextReader(people, WordForms.of(Vocabulary.of(WORDS), cased=True))
    parts = list(reader.chunks(people.clients()))
    whole = reader.text(people.clients())
    assert len(parts) > 2
    assert sum(part.users for part in parts) == whole.users == 9
    assert np.concatenate([part.read.values for part in parts]).tolist() == whole.read.values.tolist()


def test_judgements_are_read_only() -> None:
    judged = Judgement(np.zeros(1), np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1))
    with pytest.raises(ValueError, match="read-only"):
        judged.rank[0] = 1
