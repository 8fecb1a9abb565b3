"""The stages on words: population, unigrams, word pieces, and the n-gram model of text that a server may see.

population   users.population, supplement.txt, whitelist.txt: normalised, or generated; without users, the last two
unigrams     U.unigrams from the train users' devices, and how they converged (§3)
pieces       pieces.model from the unigrams (§6)
external     A_W.ngram, the cased model of the supplement (§7.2)
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.automata.budget import Budget
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import atomic_write
from fedgram.federated.collect_unigrams import UnigramOptions, collect_unigrams
from fedgram.formats.artefact import write_ngram
from fedgram.pipeline.config import PopulationSection
from fedgram.pipeline.participants import DevicesOf, simulated
from fedgram.pipeline.workspace import Work
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.corpus import Corpus, normalized_sentences, read_corpus
from fedgram.text.messages import SPLITS
from fedgram.text.normalize import PLACEHOLDERS, uncase
from fedgram.text.population import Population, open_population, population_from_messages, write_population
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.unigrams import read_unigram_counts, read_unigrams, write_unigrams
from fedgram.text.vocabulary import SPECIAL, UNK, Vocabulary, read_vocabulary
from fedgram.text.wordpieces import load_pieces, train_pieces


def write_json(path: Path, content: Any) -> None:
    """A small JSON file."""
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def ledger_entries(ledger: Ledger) -> dict[str, Any]:
    """What a stage tells of the privacy that it spent, if it spent any."""
    return {"ledger": [entry.to_json() for entry in ledger.entries]} if ledger.entries else {}


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with atomic_write(path) as file:
        file.writelines(line.encode() + b"\n" for line in lines)


def population(work: Work, config: PopulationSection, seed: int) -> None:
    """Users' text by user, the server's text, and the whitelist, in one form."""
    people: Population | None = None
    if "supplement" in work.inputs:
        if "users" in work.inputs:
            people = open_population(work.read("users"), on_rows=work.begin("Reading users", None))
        words = _lower_case(read_vocabulary(work.read("whitelist")), work.read("whitelist")).words[len(SPECIAL) :]
        lines = _normalized(work.read("supplement"), work)
    else:
        source, advance = SyntheticPopulation(config.language, seed=seed), work.begin("Typing", config.typists)

        def rows() -> Iterator[tuple[str, str, str | None]]:
            for typist in range(config.typists):
                yield from source.rows(1, typist)
                advance(1)

        people = population_from_messages(rows())
        words = tuple(sorted({uncase(word) for word in source.grammar.words if word[0].isalpha()}))
        topics = _some(source.grammar.topic_share[::-1], config.supplement_topics)  # other favourites than the users'
        lines = map(" ".join, source.clean_sentences(config.supplement_sentences, topic_share=topics))
    sizes = {"whitelist": len(words)}
    if people is not None:
        sizes |= _users_sizes(people)
        write_population(work.write("users.population"), people)
    _write_lines(work.write("whitelist.txt"), words)
    work.begin("Writing the supplement", None)
    _write_lines(work.write("supplement.txt"), lines)
    write_json(work.write("population.json"), sizes)


def _users_sizes(people: Population) -> dict[str, int]:
    """How many users and words there are; every split must have users."""
    sizes = {f"{split}_users": len(people.clients(split)) for split in SPLITS}
    for split in SPLITS:
        if not sizes[f"{split}_users"]:
            raise FedgramError(f"the population has no users in the split {split}; add users, or name their splits")
    return sizes | {"sentences": len(people.first_token) - 1, "words": len(people.token)}


def _some(share: FloatArray, part: float) -> FloatArray:
    """A part of the topics, evenly spread; the others get nothing."""
    number = np.arange(1, len(share) + 1)
    kept: FloatArray = np.where(np.floor(number * part) > np.floor((number - 1) * part), share, 0.0)
    return kept


def _normalized(path: Path, work: Work) -> Iterator[str]:
    advance = work.begin("Normalising the supplement", path.stat().st_size if path.suffix != ".gz" else None)
    lines = map(" ".join, normalized_sentences(path, advance))
    first = next(lines, None)
    if first is None:
        raise InputError(path, "contains no sentences", remedy="give text that the server may see")
    return chain([first], lines)


def _lower_case(words: Vocabulary, path: Path) -> Vocabulary:
    if capitals := sum(uncase(word) != word for word in words.words):
        remedy = "write the whitelist in lower case: devices count uncased words"
        raise InputError(path, f"{capitals} words are not in lower case", remedy=remedy)
    return words


def unigrams(
    work: Work, options: UnigramOptions, privacy: PrivacyOptions, seed: int, *, devices: DevicesOf = simulated,
    ledger: Ledger | None = None,
) -> None:  # fmt: skip
    """U by federated collection, or checked and copied from elsewhere."""
    whitelist = read_vocabulary(work.read("whitelist.txt"))
    history: dict[str, Any] = {}
    if "counts" in work.inputs:
        counts = read_unigram_counts(work.read("counts"))
        if strangers := len(set(counts.frequency()) - set(whitelist.words)):
            remedy = "name the whitelist with which they were collected"
            raise InputError(work.read("counts"), f"{strangers} words are not on the whitelist", remedy=remedy)
        shutil.copyfile(work.read("counts"), work.write("U.unigrams"))
    else:
        ledger = ledger or Ledger()
        collected = collect_unigrams(
            devices(work), whitelist, options, privacy=privacy, seed=seed, folder=work.write("checkpoints"),
            ledger=ledger, begin=work.begin,
        )  # fmt: skip
        write_unigrams(work.write("U.unigrams"), collected)
        counts, history = collected, {"participations": collected.progress.most, **ledger_entries(ledger)}
        if collected.convergence is not None:
            history |= asdict(collected.convergence)
    about = {"clip": None if np.isinf(counts.clip) else counts.clip, "rounds": counts.rounds,
             "reports": counts.clients, "words": len(counts.frequency())}  # fmt: skip
    write_json(work.write("unigrams.json"), {**about, "whitelist": len(whitelist) - len(SPECIAL), **history})


def pieces(work: Work, size: int) -> None:
    """V_P from the unigrams, or from elsewhere."""
    if "model" in work.inputs:
        load_pieces(work.read("model"))
        shutil.copyfile(work.read("model"), work.write("pieces.model"))
        return
    work.begin("Training word pieces", None)
    train_pieces(read_unigrams(work.read("U.unigrams")), size=size, path=work.write("pieces.model"))


def external(work: Work, options: NGramOptions, budget: Budget) -> None:
    """A_W within the budget."""
    work.begin("Training A_W on the supplement", None)
    corpus = read_corpus([work.read("supplement.txt")])
    whitelist = read_vocabulary(work.read("whitelist.txt"))
    model = budget.within(train(whitelisted(corpus, whitelist, budget.max_words), options))
    write_ngram(model, work.write("A_W.ngram"))


def whitelisted(corpus: Corpus, whitelist: Vocabulary, most: int) -> Corpus:
    """The corpus with its most frequent words of the whitelist, however they are cased; all others are `<unk>`."""
    allowed: Mapping[str, int] = whitelist.index
    words, counts = corpus.vocabulary.words, np.bincount(corpus.sentences.values, minlength=len(corpus.vocabulary))
    ranked = sorted(range(len(SPECIAL), len(words)), key=lambda i: (-counts[i], words[i]))
    kept = [i for i in ranked if counts[i] and (uncase(words[i]) in allowed or words[i] in PLACEHOLDERS)][:most]
    new_id = np.full(len(words), UNK, np.int32)
    new_id[kept] = np.arange(len(SPECIAL), len(SPECIAL) + len(kept), dtype=np.int32)
    vocabulary = Vocabulary.of(words[i] for i in kept)
    return Corpus(Ragged(new_id[corpus.sentences.values], corpus.sentences.offsets), vocabulary)
