"""A thousand random tiny corpora: training, pruning and merging never fail and always give whole models."""

import numpy as np
import pytest
from tests.reference.random_models import random_sentences, vocabulary

from fedgram.automata.build import count_ngrams
from fedgram.automata.merge import METHODS as MERGING
from fedgram.automata.merge import merge, merge_counts, replace_unigrams
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.automata.prune import prune_to_size, prune_to_threshold
from fedgram.automata.scoring import score
from fedgram.automata.smoothing import METHODS as SMOOTHING
from fedgram.automata.smoothing import smooth
from fedgram.automata.training import NGramOptions, train
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import UNK


def random_training(rng: np.random.Generator) -> tuple[NGramModel, Corpus]:
    words = int(rng.integers(1, 6))
    text = random_sentences(rng, words=words, sentences=int(rng.integers(1, 6)), length=4)
    if rng.random() < 0.3 and len(text.values) > 1:
        text.values[int(rng.integers(1, len(text.values)))] = UNK
    corpus = Corpus(text, vocabulary(words))
    order = int(rng.integers(1, 8))
    options = NGramOptions(
        order=order,
        smoothing=str(rng.choice(list(SMOOTHING))),  # type: ignore[arg-type]
        higher_order_words=int(rng.integers(1, 5)),
        min_count=tuple(sorted(rng.integers(1, 3, 2).tolist()[:order])),
        open_vocabulary=bool(rng.random() < 0.5) or None,
    )
    return train(corpus, options), corpus


@pytest.mark.parametrize("block", range(10))
def test_tiny_corpora_give_whole_models(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        rng = np.random.default_rng(seed)
        (a, corpus), (b, _) = random_training(rng), random_training(rng)
        budget = int(rng.integers(a.topology.first_arc[1], a.topology.arcs + 1))
        merged = merge(a, b, weight=float(rng.random()), method=str(rng.choice(MERGING)))
        frequency = {word: float(rng.integers(0, 3)) for word in [*a.vocabulary.words[3:], "new"]}
        frequency[a.vocabulary.words[3]] += 1.0
        for model in (
            a,
            merged,
            prune_to_size(a, budget),
            prune_to_threshold(merged, float(rng.choice([0.0, 1e-4, 0.1]))),
            replace_unigrams(a, frequency),
        ):
            assert model_faults(model) == [], seed
        assert np.isfinite(score(a, corpus.sentences).perplexity)


def test_merged_counts_are_those_of_the_joint_text() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        texts = [random_sentences(rng, words=4, sentences=4) for _ in range(2)]
        order = int(rng.integers(1, 5))
        parts = [count_ngrams(text, vocabulary(4), order=order) for text in texts]
        both = count_ngrams(type(texts[0]).concatenate(texts), vocabulary(4), order=order)
        merged = merge_counts(*parts)
        assert np.array_equal(merged.topology.label, both.topology.label)
        assert np.array_equal(merged.count, both.count)
        for method in SMOOTHING:
            assert np.array_equal(smooth(merged, method).log_weight, smooth(both, method).log_weight)
