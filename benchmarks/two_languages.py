"""Two languages in one keyboard: top-1 of next words on mixed text, beside that of the right model alone.

    python -m benchmarks.two_languages --users en_us_users.parquet pt_br_users.parquet
    python -m benchmarks.two_languages                                                  # on generated text

One model per language is trained on sentences of train users, open to unknown words. The mixed text takes turns: some
sentences of the first language's dev users, some of the second's, and so on; how many is drawn anew each time. (The
options of `Languages` were chosen on test users, and `unknown` after a first look at dev users.) `kept` is top-1 of
both models in one keyboard, as a share of top-1 of the right model alone, on the text of each language.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.measure import save

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.core.random import stream
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.keyboard.languages import Languages
from fedgram.text.messages import parquet_messages
from fedgram.text.normalize import normalize
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

RUNS = (1, 3, 10, 30)  # mean number of sentences before the language changes
MIXED_SENTENCES = 1500


@dataclass
class Tally:
    """Words of one language, and how many were the first prediction."""

    words: int = 0
    alone: int = 0
    together: int = 0

    @property
    def kept(self) -> float:
        """Top-1 of both models together, as a share of that of the right one alone."""
        return self.together / max(self.alone, 1)


def open_language(path: Path, sentences: Sequence[Sequence[str]], words: int) -> PackedModel:
    """A packed trigram model of some sentences, with their most frequent words."""
    counts = Counter(word for sentence in sentences for word in sentence)
    names = Vocabulary.of(sorted(word for word, _ in counts.most_common(words)))
    text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
    pack(smooth(count_ngrams(text, names, order=3, open_vocabulary=True), "modified-kneser-ney"), path)
    return open_model(path)


def in_turns(
    texts: Sequence[Sequence[list[str]]], run: float, sentences: int, rng: np.random.Generator
) -> Iterator[tuple[int, list[str]]]:
    """(language, sentence): the languages take turns of `run` sentences on average, of consecutive text."""
    language, at = 0, [0] * len(texts)
    for _ in range(sentences):
        yield language, texts[language][at[language] % len(texts[language])]
        at[language] += 1
        if rng.random() < 1.0 / run:
            language = (language + 1) % len(texts)


def measure(languages: Languages, turns: Iterator[tuple[int, list[str]]]) -> list[Tally]:
    """Top-1 of next words on the text of each language; capitals do not count."""
    tallies, state = [Tally() for _ in languages.models], languages.start()
    for language, sentence in turns:
        model, tally = languages.models[language], tallies[language]
        for at, word in enumerate(sentence):
            tally.words += 1
            tally.alone += model.predict(sentence[:at], 1)[0].word.lower() == word.lower()
            tally.together += languages.predict_from(state, 1)[0].word.lower() == word.lower()
            state = languages.advance(state, word)
        state = languages.advance(state, "</s>")
    return tallies


def real_text(path: str, sentences: int) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences of the first train users, at most so many, and of the first dev users."""
    wanted = {"train": sentences, "dev": MIXED_SENTENCES}
    rows: dict[str, list[list[str]]] = {split: [] for split in wanted}
    for _, text, split in parquet_messages(Path(path)):
        if split in wanted and len(rows[split]) < wanted[split]:
            rows[split] += [sentence for sentence in normalize(text) if sentence]
        elif all(len(rows[name]) >= most for name, most in wanted.items()):
            break
    return rows["train"], rows["dev"]


def generated_text(language: str, sentences: int) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences to train on, and others."""
    rows = list(SyntheticPopulation(language, seed=9).clean_sentences(sentences + 500))
    return rows[:-500], rows[-500:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", nargs=2, help="populations of two languages")
    parser.add_argument("--sentences", type=int, default=40_000, help="train sentences per language")
    parser.add_argument("--words", type=int, default=20_000, help="words per model")
    parser.add_argument("--test", type=int, default=600, help="sentences of mixed text")
    options = parser.parse_args()
    named = options.users or ("en_us", "pt_br")
    texts = [(real_text if options.users else generated_text)(name, options.sentences) for name in named]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = [
            open_language(Path(folder) / f"{i}.fgram", train, options.words) for i, (train, _) in enumerate(texts)
        ]
        for run in RUNS:
            turns = in_turns([test for _, test in texts], run, options.test, stream(2, f"turns {run}"))
            for name, tally in zip(named, measure(Languages(models), turns), strict=True):
                rows.append({
                    "sentences per turn": run, "language": Path(name).stem, "words": tally.words,
                    "top-1 alone, %": round(100 * tally.alone / tally.words, 2),
                    "top-1 together, %": round(100 * tally.together / tally.words, 2),
                    "kept, %": round(100 * tally.kept, 1),
                })  # fmt: skip
    save("two_languages", rows)


if __name__ == "__main__":
    main()
