"""New networks: a preset's shape, the coding of text that it wants, and random weights."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InputError
from fedgram.neural.model import PRESETS, ModelShape, Preset, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays, piece_coding, word_coding
from fedgram.text.unigrams import UnigramCounts

KNOWN_WORDS = 30_000  # of 𝒱, in word-piece networks: those of W_30K


def find_preset(name: str, *, pieces: bool | None = None) -> Preset:
    """The preset of this name; of words or of word pieces, if that is said."""
    names = [known for known, preset in PRESETS.items() if pieces is None or preset.pieces == pieces]
    if name not in names:
        kind = "" if pieces is None else " of word pieces" if pieces else " of words"
        raise FedgramError(f"there is no preset {name!r}{kind}; choose one of {', '.join(names)}")
    return PRESETS[name]


def create_network(
    preset: str, unigrams: Mapping[str, float] | UnigramCounts, *, pieces: bytes | None = None, seed: int = 0,
    any_size: bool = False, known_words: int = KNOWN_WORDS,
) -> Network:  # fmt: skip
    """A network with random weights, whose vocabulary are the most frequent words, or the word pieces.

    There must be about as many word pieces as the preset has, unless `any_size`. 𝒱 of a network of word pieces are the
    most frequent words, `known_words` with the special ones: as many as the network of words has that it is compared
    with.
    """
    chosen = find_preset(preset)
    frequency = unigrams.frequency() if isinstance(unigrams, UnigramCounts) else unigrams
    coding = _coding(preset, frequency, pieces, known_words, any_size=any_size)
    shape = replace(chosen.shape, words=len(coding.vocabulary))
    return Network(shape, as_arrays(initial_weights(shape, seed=seed)), coding, {"preset": preset})


def _coding(
    preset: str, frequency: Mapping[str, float], pieces: bytes | None, known_words: int, *, any_size: bool
) -> Coding:
    chosen = find_preset(preset)
    if not chosen.pieces:
        if pieces is not None:
            raise FedgramError(f"{preset} is a network of words; leave the word pieces out, or choose a preset P_…")
        return word_coding(frequency, chosen.shape.words)
    if pieces is None:
        raise FedgramError(f"{preset} is a network of word pieces; give it some, as `fedgram network pieces` makes")
    coding, wanted = piece_coding(pieces, frequency, known_words), chosen.shape.words
    if not any_size and abs(len(coding.vocabulary) - wanted) > 0.01 * wanted:
        raise FedgramError(
            f"there are {len(coding.vocabulary):,} word pieces, and {preset} needs {wanted:,}; train as many with "
            "fedgram network pieces train --size, or choose another preset"
        )
    return coding


def check_start(path: str | Path, start: Network, wanted: Network) -> None:
    """Refuse a network to start from that has another shape or vocabulary than a new one would have."""
    given, asked = asdict(start.shape), asdict(wanted.shape)
    preset, kinds = wanted.about.get("preset"), [_kind(network) for network in (start, wanted)]
    differ = [f"{k} {given[k]}, not {asked[k]}" for k in given if k != "words" and given[k] != asked[k]]
    if kinds[0] != kinds[1] or differ:
        problem = ", ".join(differ) if kinds[0] == kinds[1] else f"a network of {kinds[0]}, not of {kinds[1]}"
        own = start.about.get("preset")
        remedy = f"choose its own: --preset {own}" if own else None
        raise InputError(path, f"is not what {preset} asks for: {problem}", remedy=remedy)
    if start.coding.pieces != wanted.coding.pieces:
        raise InputError(path, "has other word pieces", remedy="give those it was trained with: --pieces")
    own_words, words = start.coding.known, wanted.coding.known
    if own_words.digest != words.digest:
        strangers = len(set(own_words.words) - set(words.words))
        missing = len(set(words.words) - set(own_words.words))
        differ = [f"{strangers:,} of its words are not among the most frequent unigrams"] if strangers else []
        differ += [f"{missing:,} of these are not among its words"] if missing else []
        problem = ", ".join(differ) or "its words are in another order than the unigrams"
        raise InputError(path, problem, remedy="give those it was trained with: --unigrams")


def _kind(network: Network) -> str:
    return "word pieces" if network.coding.pieces is not None else "words"


def presets() -> list[dict[str, Any]]:
    """Table 2: the presets, with S_e and S_total here and in the paper, in millions."""
    return [
        {"preset": name, **_about(preset.shape), "paper_embedding": preset.paper_embedding,
         "paper_total": preset.paper_total}
        for name, preset in PRESETS.items()
    ]  # fmt: skip


def _about(s: ModelShape) -> dict[str, Any]:
    sizes = {"embedding_parameters": s.words * s.embedding / 1e6, "parameters": s.parameters() / 1e6}
    return {"cell": s.cell, "layers": s.layers, "groups": s.groups, "embedding": s.embedding, "hidden": s.hidden,
            "words": s.words, **sizes}  # fmt: skip
