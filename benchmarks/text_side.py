"""Populations, unigrams, capitals and pieces: throughput, and what the Z statistic says of a population that moves.

    python -m benchmarks.text_side [--users FILE.parquet --whitelist FILE]

Without files, on a generated population. With a Parquet population that has a column `source` with two values or more,
Z is measured within the first source and from the first to the second.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.measure import save, seconds

from fedgram.automata.prune import prune_to_size
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import LongArray
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.convergence import measure_convergence
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.unigram_collection import RoundCounts, UnigramTask
from fedgram.text.corpus import read_corpus
from fedgram.text.messages import write_messages
from fedgram.text.normalize import normalize
from fedgram.text.population import Population, Users, open_population
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary, read_vocabulary
from fedgram.text.wordpieces import train_pieces


def rate(task: str, amount: int, unit: str, took: float) -> dict[str, object]:
    return {"task": task, "seconds": round(took, 2), "rate": f"{amount / took:,.0f} {unit}/s"}


def sources(path: Path, people: Population) -> list[LongArray]:
    """The training clients of each source, the largest first; halves by number where the file names none."""
    clients = people.clients("train")
    import pyarrow.parquet as pq

    if "source" not in pq.read_schema(path).names:
        return [clients[::2], clients[1::2]]
    table = pq.read_table(path, columns=["user_id", "source"])
    of = dict(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
    named = np.array([of[people.client_ids[c]] for c in clients])
    return sorted((clients[named == s] for s in np.unique(named)), key=len)


def shifts(path: Path, people: Population, words: Vocabulary) -> list[dict[str, object]]:
    first, second, *_ = sources(path, people)
    rows: list[dict[str, object]] = []
    for clip in (1.0, 1000.0, np.inf):
        task = UnigramTask(words, clip=clip)
        devices = min(200, len(first) // 3)

        def rounds(
            clients: LongArray, seed: int, task: UnigramTask = task, n: int = devices
        ) -> tuple[RoundCounts, ...]:
            job = Job(task, seed)
            fleet = SimulatedFleet(job, Users(people, clients))
            return run_rounds(job, fleet, RunOptions(20, RoundPlan(n, 1.3))).state.rounds

        same = measure_convergence(rounds(first, 1) + rounds(first, 2)).z[-1]
        other = measure_convergence(rounds(first, 1) + rounds(second, 2)).z[-1]
        rows.append({"task": f"Z at λ = {clip:g}: one population, then another", "Z": f"{same:.2f}, {other:.2f}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=Path)
    parser.add_argument("--whitelist", type=Path)
    given = parser.parse_args()
    source = SyntheticPopulation("en_us", seed=1)
    messages = list(source.rows(1000))
    texts = [text for _, text, _ in messages]
    amount = sum(len(text.split()) for text in texts)
    rows = [
        rate("generate 300 users", 300, "users", seconds(lambda: list(source.rows(300, 5000)))),
        rate("normalise messages", amount, "words", seconds(lambda: [normalize(t) for t in texts])),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        users = given.users or folder / "users.parquet"
        if not given.users:
            write_messages(users, messages)
        people = open_population(users)
        words = (
            read_vocabulary(given.whitelist)
            if given.whitelist
            else Vocabulary.of(sorted({w.lower() for w in source.grammar.words if w[0].isalpha()}))
        )
        rows += shifts(users, people, words)
        (folder / "s.txt").write_text("\n".join(" ".join(s) for s in source.clean_sentences(60_000)))
        cased = prune_to_size(
            train(read_corpus([folder / "s.txt"]), NGramOptions(smoothing="modified-kneser-ney")), 120_000
        )
        capitalizer = Capitalizer(cased)
        sentences = [s for t in texts for s in normalize(t)]
        capitalizer.capitalize_words(sentences[:10])
        total = sum(map(len, sentences))
        took = seconds(lambda: capitalizer.capitalize_words(sentences))
        rows.append(rate("restore capitals, strings", total, "words", took))
        frequency = {w: 1.0 + i % 50 for i, w in enumerate(words.words[3:20_000])}
        pieces = train_pieces(frequency, size=1000, path=folder / "p.model")
        took = seconds(lambda: pieces.encode_words(list(frequency)))
        rows.append(rate("encode words into pieces", len(frequency), "words", took))
    save("text_side", rows)


if __name__ == "__main__":
    main()
