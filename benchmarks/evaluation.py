"""Evaluation: typed words a second through a model of 1.5M n-grams, on one core, and the dense way beside it.

    python -m benchmarks.evaluation [--model FILE --users FILE]

Without files, on generated text: 12M words make the model, another 1M are typed by 1,000 users. With files, on a real
model and the test users of a population, repeated until they have typed 1M words.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
from benchmarks.generated_text import write_text
from benchmarks.measure import save

from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import FloatArray, LongArray, Ragged
from fedgram.evaluate.dense import DensePredictor
from fedgram.evaluate.evaluation import evaluate_model
from fedgram.evaluate.experiment import aa_coverage
from fedgram.evaluate.forms import WordForms
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.typed_text import TypedTextReader
from fedgram.formats.models import read_model
from fedgram.text.corpus import read_corpus
from fedgram.text.population import Population, open_population
from fedgram.text.vocabulary import Vocabulary

WORDS, NGRAMS, USERS = 1_000_000, 1_500_000, 1000


def generated(folder: Path) -> tuple[NGramModel, Population, LongArray]:
    text = read_corpus([write_text(folder / "train.txt", 12 * WORDS)])
    model = prune_to_size(train(text, NGramOptions(smoothing="modified-kneser-ney")), NGRAMS)
    typed = read_corpus([write_text(folder / "typed.txt", WORDS, seed=2)])
    first = np.linspace(0, len(typed.sentences), USERS + 1).astype(np.int64)
    people = Population(
        tuple(f"u{i:04d}" for i in range(USERS)), np.full(USERS, 2, np.uint8), first, typed.sentences.offsets,
        typed.sentences.values, typed.vocabulary.words,
    )  # fmt: skip
    return model, people, people.clients("test")


def real(model: Path, users: Path) -> tuple[NGramModel, Population, LongArray]:
    people = open_population(users)
    clients = people.clients("test")
    p = people
    words = int((p.first_token[p.first_sentence[clients + 1]] - p.first_token[p.first_sentence[clients]]).sum())
    return read_model(model), people, np.tile(clients, -(-WORDS // words))


def dense_seconds(model: NGramModel, people: Population, clients: LongArray) -> tuple[float, int]:
    """The dense way on rows that are already there: what a predictor without sorted arcs must at least do."""
    vocabulary = Vocabulary(model.vocabulary.words)
    text = TypedTextReader(people, WordForms.of(vocabulary, cased=False)).text(clients[:3])
    row = -np.log(np.arange(len(vocabulary)) + 2.7) - 2.0  # Zipf's law

    def rows(sentences: Ragged) -> Iterator[FloatArray]:
        for sentence in sentences:
            yield np.broadcast_to(row, (len(sentence) + 1, len(row)))

    predictor = DensePredictor(vocabulary, rows, cased=False)
    predictor.judge(TypedTextReader(people, predictor.forms).text(clients[:1]))
    began = perf_counter()
    predictor.judge(text)
    return perf_counter() - began, len(text.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--users", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        given_both = given.model and given.users
        model, people, clients = real(given.model, given.users) if given_both else generated(Path(name))
    ngrams = f"{model.topology.arcs / 1e6:.3g}M n-grams of order {model.topology.order}"
    result: list[dict[str, object]] = []
    for cased in (False, True):
        NGramPredictor(model, cased=cased).judge(  # compile
            TypedTextReader(people, WordForms.of(model.vocabulary, cased=cased)).text(clients[:1])
        )
        began = perf_counter()
        predictor = NGramPredictor(model, cased=cased)
        sorted_ = perf_counter()
        evaluation = evaluate_model(predictor, people, clients)
        took = perf_counter() - sorted_
        result.append(
            {
                "task": f"evaluate {evaluation.words:,} typed words, {'cased' if cased else 'uncased'}, {ngrams}",
                "seconds": round(took + sorted_ - began, 2),
                "of which sorting": round(sorted_ - began, 2),
                "rate": f"{evaluation.words / took:,.0f} words/s",
                "goal": f"≤ 20 s for {WORDS:,}",
            }
        )
    took, words = dense_seconds(model, people, clients)
    result.append({"task": f"the same over dense rows, {words:,} words", "seconds": round(took, 2),
                   "rate": f"{words / took:,.0f} words/s"})  # fmt: skip
    began = perf_counter()
    coverage = aa_coverage(evaluation.measures["top1"], experiments=2000, seed=1)
    task = f"2,000 A/A experiments, {len(clients):,} users: zero covered in {coverage:.1%}"
    result.append({"task": task, "seconds": round(perf_counter() - began, 2), "goal": "95 ± 1 %"})
    save("evaluation", result)


if __name__ == "__main__":
    main()
