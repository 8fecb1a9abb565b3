"""Distillation on the CPU: composing with word pieces, counting samples of n-gram models and of dense rows, fitting.

    python -m benchmarks.distillation [--text FILE --samples N --workers N]

Without a file, on generated sentences with capitals.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np
from benchmarks.measure import save

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.build import lowercase_topology
from fedgram.automata.compose import compose, compose_model, with_unknown_as_unigram
from fedgram.automata.lexicon import spell_words
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import Ragged
from fedgram.distill.casing.cap_sample_approx import cased_counting_step, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.case_classes import CaseClasses
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.sample_approx import Counting, CountingOptions, PlainCounting, count_samples, counting_step, fit
from fedgram.distill.source import NGramSource, Step
from fedgram.text.corpus import Corpus, read_corpus
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import EOS, Vocabulary
from fedgram.text.wordpieces import MARK, piece_vocabulary, train_pieces

T = TypeVar("T")
COLUMNS = 30_000

_NGRAMS = 1_450_000


def timed(work: Callable[[], T]) -> tuple[T, float]:
    began = perf_counter()
    result = work()
    return result, perf_counter() - began


class DenseSource(NGramSource):
    """An n-gram model's samples with a network's load on counting: a row of 30,000 single-precision numbers a visit."""

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        sentences = self.sample(samples, seed=seed) if sentences is None else sentences
        lengths, said = np.diff(sentences.offsets), np.append(sentences.values, EOS)
        pool = np.full((256, COLUMNS), 1.0 / COLUMNS, np.float32)
        for position in range(int(lengths.max()) + 1):
            alive = np.flatnonzero(lengths >= position)
            at = np.where(lengths[alive] > position, sentences.offsets[alive] + position, len(said) - 1)
            for first in range(0, len(alive), len(pool)):
                part = slice(first, first + len(pool))
                yield Step(position, alive[part], np.arange(len(alive[part])), said[at[part]], pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    options = CountingOptions(workers=given.workers)
    rows: list[dict[str, object]] = []

    def counted(task: str, counting: Counting, samples: int, vocabulary: Vocabulary) -> None:
        fit(counting.finish(count_samples(counting, 4)), vocabulary)  # compiles
        counts, took = timed(lambda: count_samples(counting, samples, options))
        rate = f"{counts.positions / took:,.0f} positions/s"
        rows.append({"task": task, "seconds": round(took, 2), "rate": rate})
        finished, took = timed(lambda: counting.finish(counts))
        _, fitting = timed(lambda: fit(finished, vocabulary))
        rows.append({"task": "… and the KL minimum", "seconds": round(took + fitting, 2), "rate": ""})

    with tempfile.TemporaryDirectory() as name:
        text = given.text or Path(name) / "text"
        if not given.text:
            lines = SyntheticPopulation("en_us", seed=1).clean_sentences(100_000)
            text.write_text("\n".join(" ".join(words) for words in lines))
        corpus = read_corpus([text])
        classes = CaseClasses.of(corpus.vocabulary)
        lower = Corpus(Ragged(classes.uncased_id[corpus.sentences.values], corpus.sentences.offsets), classes.uncased)
        training = NGramOptions(order=4)
        A_W, source = (
            train(corpus, training, max_ngrams=_NGRAMS),
            NGramSource(train(lower, training, max_ngrams=_NGRAMS)),
        )
        uncased = source.model
        size = f"{A_W.topology.arcs:,} n-grams"
        frequency = dict.fromkeys((w for w in classes.uncased.words[3:] if MARK not in w and "▅" not in w), 1.0)
        pieces = train_pieces(frequency, size=min(4000, len(frequency)), path=Path(name) / "pieces")
        labels = piece_vocabulary(pieces)
        topology, words = lowercase_topology(A_W.topology, A_W.vocabulary)
        topology = with_unknown_as_unigram(topology, len(words))
        lexicon, spelling = timed(lambda: spell_words(words, pieces, labels))
        compose(lexicon, topology)
        composed, took = timed(lambda: compose(lexicon, topology))
        rows.append({"task": f"spell {len(words):,} words with {pieces.size:,} pieces", "seconds": round(spelling, 2)})
        rows.append({"task": f"compose {size} → {composed.topology.arcs:,} arcs", "seconds": round(took, 2)})
        k = given.samples
        counted(
            f"count an n-gram source on {size}", counting_step(NGramSource(A_W), A_W.topology, 1), k, A_W.vocabulary
        )
        casing = casing_of(Capitalizer(A_W), source.vocabulary)
        cased = cased_counting_step(source, casing, cased_topology(A_W, source, casing), 1)
        counted(f"count an uncased n-gram source on {size}, with capitals", cased, k // 10, casing.vocabulary)
        by_pieces = NGramSource(compose_model(spell_words(uncased.vocabulary, pieces, labels), uncased, labels))
        on_pieces = PlainCounting(by_pieces, composed.topology, 1)
        counts, took = timed(lambda: count_samples(on_pieces, max(k // 100, 1), options))
        rate = f"{counts.positions / took:,.0f} positions/s"
        rows.append(
            {"task": "count a source of word pieces on the composition", "seconds": round(took, 2), "rate": rate}
        )
        few = Vocabulary(uncased.vocabulary.words[:COLUMNS])
        small = train(Corpus(known_words(lower, len(few)), few), training, max_ngrams=_NGRAMS)
        target = adopt_topology(small.topology, few, few, open_vocabulary=small.has_unknown)
        counted(
            f"count rows of {COLUMNS:,} on {target.arcs:,} n-grams", PlainCounting(DenseSource(small), target, 1),
            max(k // 100, 1), few,
        )  # fmt: skip
    save("distillation", rows)


def known_words(corpus: Corpus, words: int) -> Ragged:
    """The sentences with all but the first words of the vocabulary as `<unk>`."""
    return Ragged(np.where(corpus.sentences.values < words, corpus.sentences.values, 0), corpus.sentences.offsets)


if __name__ == "__main__":
    main()
