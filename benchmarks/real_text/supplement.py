"""The supplement: well-cased sentences of another domain than the users' text, from public corpora."""

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import anonymize, clean, words

AMALGUM_GENRES = ("news", "interview", "academic", "bio", "voyage", "fiction")
MAX_WORDS = 80
MAX_UPPER_SHARE, MAX_CAPITALIZED_SHARE = 0.3, 0.6
_TEXT = re.compile(r"^# text = (.*)$", re.MULTILINE)
_HOLE = re.compile(r"\(\s*\)|\[\s*\]|[,;:]\s*[,;:.]|\b(?:where|of|and|by|is|at|for|with|in)\s*[.,;)]")
_OPENING, _CLOSING = frozenset("([{$£€#"), re.compile(r"[.,;:!?%)\]}…]+|'(?:s|re|ve|ll|d|m)|n't", re.IGNORECASE)
_QUOTES = frozenset("\"'")

_ARTICLES = ("o", "a", "os", "as")
_PRONOUNS = (
    *(stem + end for stem in ("est", "ess", "aquel") for end in ("e", "a", "es", "as")),
    "isto", "isso", "aquilo", "ele", "ela", "eles", "elas",
)  # fmt: skip
_INDEFINITE = ("um", "uma", "uns", "umas")
CONTRACTIONS = {
    **{("de", x): f"d{x}" for x in (*_ARTICLES, *_PRONOUNS, "aqui", "ali", "aí")},
    **{("em", x): f"n{x}" for x in (*_ARTICLES, *_PRONOUNS, *_INDEFINITE)},
    **{("por", x): f"pel{x}" for x in _ARTICLES},
    ("a", "o"): "ao", ("a", "os"): "aos", ("a", "a"): "à", ("a", "as"): "às",
    **{("a", f"aquel{e}"): f"àquel{e}" for e in ("e", "a", "es", "as")}, ("a", "aquilo"): "àquilo",
}  # fmt: skip


class Corpus(NamedTuple):
    """A corpus of sentences."""

    name: str
    repository: str
    read: Callable[[Checkout], Iterator[str]]
    min_words: int = 4


def conllu_texts(content: str) -> list[str]:
    """The sentences of a CoNLL-U file, from its comments `# text`."""
    return _TEXT.findall(content)


def detokenize(text: str) -> str:
    """The sentence without the spaces of a tokeniser. Quotation marks open and close in turn.

    >>> print(detokenize("He does n't know , but ( they say ) it 's ' well known ' ."))
    He doesn't know, but (they say) it's 'well known'.
    """
    result, opened, joins = "", set[str](), True
    for token in clean(text).split():
        closes = token in _QUOTES and token in opened
        result += token if joins or closes or _CLOSING.fullmatch(token) else f" {token}"
        joins = token in _OPENING or (token in _QUOTES and not closes)
        if token in _QUOTES:
            opened ^= {token}
    return result


def amalgum(checkout: Checkout) -> Iterator[str]:
    """The sentences of AMALGUM without its wikiHow part, which is for non-commercial use."""
    for genre in AMALGUM_GENRES:
        paths = [
            path for part in ("amalgum", "amalgum_extra") for path in checkout.paths(f"{part}/{genre}/dep", ".conllu")
        ]
        for _, content in checkout.read(paths):
            for text in conllu_texts(content.decode()):
                if genre != "academic" or not _HOLE.search(text):
                    yield detokenize(text)


def treebank(checkout: Checkout, under: str, prefix: str = "") -> Iterator[str]:
    """The sentences of the CoNLL-U files in a folder whose names start with the prefix."""
    paths = [p for p in checkout.paths(under, ".conllu") if p.rpartition("/")[2].startswith(prefix)]
    for _, content in checkout.read(paths):
        yield from conllu_texts(content.decode())


def mac_morpho(checkout: Checkout) -> Iterator[str]:
    """The sentences of Mac-Morpho in NLTK's distribution."""
    content = checkout.read_one("packages/corpora/mac_morpho.zip")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".txt"):
                yield from tagged_sentences(archive.read(name).decode("latin-1"))


def tagged_sentences(content: str) -> Iterator[str]:
    r"""The sentences of a file with one `word_TAG` per line; contractions that the tags split are joined again.

    >>> list(tagged_sentences("Em_PREP|+\na_ART\navaliação_N\ntrata_V|+\nse_PROPESS\n._.\n"))
    ['Na avaliação trata-se.']
    """
    sentence: list[str] = []
    joins = ""
    for line in content.split():
        word, _, tag = line.rpartition("_")
        if joins and sentence:
            _append(sentence, word, joins)
        else:
            sentence.append(word)
        joins = tag.split("|")[0] if tag.endswith("|+") else ""
        if word in (".", "!", "?", "..."):
            yield detokenize(" ".join(sentence))
            sentence = []


def _append(sentence: list[str], word: str, tag: str) -> None:
    before = sentence[-1]
    joined = CONTRACTIONS.get((before.lower(), word.lower()))
    if tag == "PREP" and joined:
        sentence[-1] = joined.capitalize() if before[0].isupper() else joined
    elif tag.startswith("V"):
        sentence[-1] = f"{before}-{word}"
    else:
        sentence.append(word)


def common_voice(checkout: Checkout) -> Iterator[str]:
    """The sentences that people collected for Common Voice in Portuguese."""
    yield from checkout.read_one("server/data/pt/sentence-collector.txt").decode().splitlines()


_UD = "UniversalDependencies/UD_Portuguese"
CORPORA = {
    "en_us": (Corpus("AMALGUM", "gucorpling/amalgum", amalgum),),
    "pt_br": (
        Corpus("Mac-Morpho", "nltk/nltk_data", mac_morpho),
        Corpus("GSD", f"{_UD}-GSD", lambda c: treebank(c, "not-to-release/documents")),
        Corpus("Bosque", f"{_UD}-Bosque", lambda c: treebank(c, "not-to-release/documents", "CF")),
        Corpus("Porttinari", f"{_UD}-Porttinari", lambda c: treebank(c, "pt_porttinari-ud-dev.conllu")),
        Corpus("Porttinari", f"{_UD}-Porttinari", lambda c: treebank(c, "pt_porttinari-ud-test.conllu")),
        Corpus("Common Voice", "common-voice/common-voice", common_voice, 3),
    ),
}


def well_cased(sentences: Iterable[str], min_words: int, seen: set[str]) -> Iterator[str]:
    """The sentences that start with a capital or a digit and are not titles; `seen` keeps repeats out."""
    for raw in sentences:
        text = anonymize(clean(raw))
        found = words(text)
        first = text.lstrip("\"'([ ")[:1]
        if not min_words <= len(found) <= MAX_WORDS or not (first.isupper() or first.isdigit()):
            continue
        upper = sum(len(word) > 1 and word.isupper() for word in found)
        capitals = sum(word[0].isupper() for word in found)
        key = " ".join(found).lower()
        if upper <= MAX_UPPER_SHARE * len(found) and capitals <= MAX_CAPITALIZED_SHARE * len(found) and key not in seen:
            seen.add(key)
            yield text
