"""A keyboard's model of a language from public text alone, without users: the operation behind `fedgram phone build`.

The folder has `lm.fgram` for fedgram's keyboards, `main_LOCALE.dict` with next words for HeliBoard and other keyboards
of AOSP's family, and `lm.arpa` for other programs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.scoring import Score, score
from fedgram.automata.training import train
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import AtLeastOne, Between, Settings, setting
from fedgram.fgram.pack import PackOptions, pack
from fedgram.formats.exports import ExportOptions, export
from fedgram.text.corpus import Corpus
from fedgram.text.normalize import PLACEHOLDERS
from fedgram.text.public_text import public_sentences, with_true_case
from fedgram.text.vocabulary import UNK, Vocabulary

_HELD_OUT = 50  # every 50th sentence measures the model


@dataclass(frozen=True, slots=True)
class PublicModelOptions(Settings):
    """How large the model is, and of how much text."""

    order: Annotated[int, Between(2, MAX_ORDER)] = setting(3, "Length of the longest n-gram.")
    max_words: AtLeastOne = setting(60_000, "Maximum number of words, the most frequent ones.")
    max_ngrams: AtLeastOne = setting(600_000, "Maximum number of n-grams, words included.")
    min_count: AtLeastOne = setting(2, "Words that occur less often are left out.")
    max_sentences: AtLeastOne = setting(5_000_000, "Maximum number of sentences to read.")
    true_case: bool = setting(True, "Drop capitals that only begin a sentence.")


@dataclass(frozen=True, slots=True, eq=False)
class PublicModel:
    """The model, its files, and its score on sentences that were held out."""

    model: NGramModel
    sentences: int
    files: tuple[Path, ...]
    held_out: Score


def build_public_model(
    texts: Sequence[str | Path], folder: Path, *, locale: str, options: PublicModelOptions | None = None,
    begin: Begin = silent,
) -> PublicModel:  # fmt: skip
    """Train a model on public text, and write it for keyboards.

    Args:
        texts: Files in the formats of `fedgram.text.public_text`.
        folder: Where the files are written.
        locale: The language, such as `sv` or `pt_BR`.
        options: Sizes.
        begin: Progress callback.
    """
    options, exported = options or PublicModelOptions(), ExportOptions(locale=locale)
    advance = begin("Reading text", options.max_sentences)
    sentences = []
    for sentence in islice(public_sentences(texts), options.max_sentences):
        sentences.append(sentence)
        if len(sentences) % 1000 == 0:
            advance(1000)
    if len(sentences) < 2 * _HELD_OUT:
        found = f"the text has only {len(sentences)} sentences"
        raise FedgramError(f"{found}; a model needs at least {2 * _HELD_OUT}, and a useful one many thousands")
    sentences = with_true_case(sentences) if options.true_case else sentences
    vocabulary = _vocabulary(sentences, options)
    parts = [[s for i, s in enumerate(sentences) if (i % _HELD_OUT == 0) == held_out] for held_out in (False, True)]
    text, rest = (Corpus(_encoded(part, vocabulary), vocabulary) for part in parts)
    model = train(text, order=options.order, open_vocabulary=True, begin=begin)
    if model.topology.arcs > options.max_ngrams:
        begin("Pruning")
        model = prune_to_size(model, max(options.max_ngrams, len(vocabulary)))
    begin("Writing")
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / name for name in ("lm.fgram", f"main_{locale.lower()}.dict", "lm.arpa"))
    pack(model, files[0], bits=PackOptions().bits)
    export(model, files[1], "aosp-dict", exported)
    export(model, files[2], "arpa")
    return PublicModel(model, len(sentences), files, score(model, rest.sentences))


def _vocabulary(sentences: list[list[str]], options: PublicModelOptions) -> Vocabulary:
    counts = Counter(word for sentence in sentences for word in sentence if word not in PLACEHOLDERS)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: options.max_words]
    words = [word for word in ranked if counts[word] >= options.min_count]
    if not words:
        raise FedgramError(f"no word of the text occurs {options.min_count} times; give more text")
    return Vocabulary.of(words)


def _encoded(sentences: list[list[str]], vocabulary: Vocabulary) -> Ragged:
    index = vocabulary.index
    offsets = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])]).astype(np.int64)
    return Ragged(np.array([index.get(w, UNK) for s in sentences for w in s], np.int32), offsets)
