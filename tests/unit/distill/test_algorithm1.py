"""Algorithm 1: four models from a source, and the models for the keyboard."""

import pytest
from tests.unit.distill.casing.test_capitalization import trained
from tests.unit.distill.test_nn2wfa import CASED, UNCASED, WORDS, piece_source, pieces

from fedgram.automata.budget import Budget
from fedgram.automata.build import ngrams_of
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.properties import model_faults
from fedgram.automata.prune import prune_to_size
from fedgram.automata.scoring import score
from fedgram.core.arrays import Ragged
from fedgram.distill.algorithm1 import final_models, generate
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.nn2wfa import PieceNN2WFA, WordNN2WFA
from fedgram.distill.source import NGramSource
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import UNK
from fedgram.text.wordpieces import WordPieces

__all__ = ["pieces"]  # a fixture


@pytest.mark.parametrize("by", ["words", "pieces"])
def test_algorithm_1(by: str, pieces: WordPieces) -> None:
    A_W, uncased = trained(CASED), trained(UNCASED, smoothing="witten-bell")
    budget = Budget(max_ngrams=120, max_words=60)
    capitalizer = Capitalizer(A_W)
    inferred = prune_to_size(trained(CASED[:5]), 80, split_ties=True)
    nn2wfa = (
        WordNN2WFA(NGramSource(uncased), capitalizer, [A_W, inferred], samples=2000, seed=1)
        if by == "words"
        else PieceNN2WFA(
            piece_source(uncased, pieces), capitalizer, [A_W, inferred], pieces=pieces, samples=2000, seed=1
        )
    )
    result = generate(nn2wfa, A_W, inferred, budget)
    for model in result.by_letter().values():
        assert model_faults(model) == []
        assert model.topology.arcs <= budget.max_ngrams
    wide = nn2wfa.widest()
    assert model_faults(wide) == []
    assert wide.vocabulary.words == tuple(uncase(word) for word in wide.vocabulary.words)
    on_e = {tuple(row.tolist()) for row in ngrams_of(wide.topology)}
    lower = lowercase_model(result.refitted)
    names = [
        tuple(wide.vocabulary.encode([lower.vocabulary.words[i] for i in row])) for row in ngrams_of(lower.topology)
    ]
    assert {name for name in names if UNK not in name[1:]} <= on_e
    text = Ragged.from_rows([result.external.vocabulary.encode(sentence) for sentence in CASED])
    perplexity = {name: score(model, text).perplexity for name, model in result.by_letter().items()}
    assert perplexity["e"] < 12
    assert min(model.log_weight.min() for model in result.by_letter().values()) > -20
    assert result.warnings() == {}
    assert all(fit.after <= fit.before + 1e-2 for fit in result.fits.values())
    frequency = {word: float(n) for word, n in WORDS.items()} | {"zebra": 3.0, "yak": 1.0}
    for name, final in final_models(result.refitted, frequency, capitalizer, budget).items():
        assert model_faults(final) == []
        assert final.topology.arcs <= budget.max_ngrams
        assert "zebra" in final.vocabulary, name


def test_the_most_frequent_words_come_in_first() -> None:
    A_W = trained(CASED)
    budget = Budget(max_ngrams=500, max_words=len(A_W.vocabulary) + 1)
    finals = final_models(A_W, {"in": 9.0, "yak": 1.0, "zebra": 3.0}, Capitalizer(A_W), budget)
    assert "zebra" in finals["replaced"].vocabulary
    assert "yak" not in finals["replaced"].vocabulary
    assert "tail" not in finals  # a closed vocabulary has no <unk> to divide


# -- Earnest ----------------------------------------------------------------------------------------------------------
