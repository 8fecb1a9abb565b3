"""Two languages in one keyboard: top-1 of next words on mixed text, beside that of the right model alone.

    python -m benchmarks.two_languages --users en_us_users.parquet pt_br_users.parquet
    python -m benchmarks.two_languages                                                  # on generated text

One model per language is trained on sentences of train users, open to unknown words. The mixed text takes turns: some
sentences of the first language's users, some of the second's, and so on; how many is drawn anew each time. `kept` is
top-1 of both models in one keyboard, as a share of top-1 of the right model alone, on the text of each language. Its
95 % interval takes turns as the unit.

The options of `Languages` were chosen on the first dev and test users, so `--skip` leaves out as many sentences of the
split, and the rest of the last user's.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Tally:
    """Words of one language, and how many were the first prediction, turn by turn."""

    turns: list[list[int]] = field(default_factory=list)

    @property
    def words(self) -> int:
        """Number of words."""
        return sum(words for words, _, _ in self.turns)

    @property
    def alone(self) -> int:
        """Hits of the right model alone."""
        return sum(alone for _, alone, _ in self.turns)

    @property
    def together(self) -> int:
        """Hits of both models in one keyboard."""
        return sum(together for _, _, together in self.turns)

    @property
    def kept(self) -> float:
        """Top-1 of both models together, as a share of that of the right one alone."""
        return self.together / max(self.alone, 1)

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of `kept`, by the delta method over turns."""
        rests = np.array([together - self.kept * alone for _, alone, together in self.turns])
        return float(1.96 * np.sqrt(np.sum(rests**2)) / max(self.alone, 1))


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
    tallies, state, last = [Tally() for _ in languages.models], languages.start(), -1
    for language, sentence in turns:
        if language != last:
            tallies[language].turns.append([0, 0, 0])
        model, turn, last = languages.models[language], tallies[language].turns[-1], language
        for at, word in enumerate(sentence):
            turn[0] += 1
            turn[1] += model.predict(sentence[:at], 1)[0].word.lower() == word.lower()
            turn[2] += languages.predict_from(state, 1)[0].word.lower() == word.lower()
            state = languages.advance(state, word)
        state = languages.advance(state, "</s>")
    return tallies


def real_text(
    path: str, sentences: int, *, split: str, skip: int, test: int
) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences of the first train users, and of users of a split, behind those that have the first `skip` ones."""
    train: list[list[str]] = []
    kept: list[list[str]] = []
    seen, last = 0, ""
    for user, text, own_split in parquet_messages(Path(path)):
        rows = [sentence for sentence in normalize(text) if sentence]
        if own_split == "train" and len(train) < sentences:
            train += rows
        elif own_split == split and len(kept) < test:
            if seen < skip or user == last:
                seen, last = seen + len(rows), user
            else:
                kept += rows
    return train, kept


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
    parser.add_argument("--split", choices=["dev", "test"], default="dev", help="users whose text is mixed")
    parser.add_argument("--skip", type=int, default=0, help="sentences of the split to leave out")
    options = parser.parse_args()
    named = options.users or ("en_us", "pt_br")
    chosen = {"split": options.split, "skip": options.skip, "test": options.test}
    texts = [
        real_text(name, options.sentences, **chosen) if options.users else generated_text(name, options.sentences)
        for name in named
    ]
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
                    "kept, %": f"{100 * tally.kept:.1f} ± {100 * tally.half_width:.1f}",
                })  # fmt: skip
    save("two_languages", rows)


if __name__ == "__main__":
    main()
