"""What the commands on networks share: presets, codings and devices."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgram.core.errors import FedgramError, InputError

if TYPE_CHECKING:
    from fedgram.neural.model import ModelShape, Preset
    from fedgram.neural.network import Coding, Network

device_option = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to compute."
)
_KNOWN_WORDS = 30_000  # of 𝒱, in word-piece networks


def find_preset(name: str) -> "Preset":
    """The preset of this name."""
    from fedgram.neural.model import PRESETS

    if name not in PRESETS:
        raise FedgramError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def coding_for(preset: str, unigrams: str, pieces: str | None) -> "Coding":
    """The coding of a new network; the preset says whether of words or of pieces."""
    from fedgram.neural.network import piece_coding, word_coding
    from fedgram.text.unigrams import read_unigrams

    chosen, frequency = find_preset(preset), read_unigrams(unigrams)
    if not chosen.pieces:
        if pieces:
            raise FedgramError(
                f"{preset} is a network of words; leave --pieces out, or choose a preset that begins with P"
            )
        return word_coding(frequency, chosen.shape.words)
    if not pieces:
        raise FedgramError(f"{preset} is a network of word pieces; give it some with --pieces")
    coding = piece_coding(Path(pieces).read_bytes(), frequency, _KNOWN_WORDS)
    if abs(len(coding.vocabulary) - chosen.shape.words) > 0.01 * chosen.shape.words:
        remedy = f"train {chosen.shape.words:,} with fedgram pieces train --size, or choose another preset"
        raise InputError(
            pieces, f"has {len(coding.vocabulary):,} pieces, and {preset} wants {chosen.shape.words:,}", remedy=remedy
        )
    return coding


def network_shape(preset: str, coding: "Coding") -> "ModelShape":
    """The preset's shape with as many words as there are."""
    from dataclasses import replace

    return replace(find_preset(preset).shape, words=len(coding.vocabulary))


def check_start(path: str, network: "Network", preset: str, coding: "Coding") -> None:
    """Refuse a network to start from that has another shape or vocabulary than was asked for."""
    from dataclasses import asdict

    given, wanted = asdict(network.shape), asdict(network_shape(preset, coding))
    kinds = ["word pieces" if c.pieces is not None else "words" for c in (network.coding, coding)]
    differ = [f"{k} {given[k]}, not {wanted[k]}" for k in given if k != "words" and given[k] != wanted[k]]
    if kinds[0] != kinds[1] or differ:
        problem = ", ".join(differ) if kinds[0] == kinds[1] else f"a network of {kinds[0]}, not of {kinds[1]}"
        own = network.about.get("preset")
        remedy = f"choose its own: --preset {own}" if own else None
        raise InputError(path, f"is not what {preset} asks for: {problem}", remedy=remedy)
    if network.coding.pieces != coding.pieces:
        raise InputError(path, "has other word pieces", remedy="give those it was trained with: --pieces")
    own_words, words = network.coding.known, coding.known
    if own_words.digest != words.digest:
        strangers = len(set(own_words.words) - set(words.words))
        missing = len(set(words.words) - set(own_words.words))
        differ = [f"{strangers:,} of its words are not among the most frequent unigrams"] if strangers else []
        differ += [f"{missing:,} of these are not among its words"] if missing else []
        problem = ", ".join(differ) or "its words are in another order than the unigrams"
        raise InputError(path, problem, remedy="give those it was trained with: --unigrams")


def presets_table() -> str:
    """Table 2: the presets, with S_e and S_total here and in the paper, in millions."""
    from fedgram.neural.model import PRESETS

    lines = ["preset    cell  layers  groups   N_e   N_h   words    S_e (paper)   S_total (paper)"]
    for name, preset in PRESETS.items():
        s = preset.shape
        own = s.words * s.embedding / 1e6, s.parameters() / 1e6
        paper = [f"({p:.2f})" if p else "     –" for p in (preset.paper_embedding, preset.paper_total)]
        lines.append(
            f"{name:<8}  {s.cell:<4}  {s.layers:>6}  {s.groups:>6}  {s.embedding:>4}  {s.hidden:>4}  {s.words:>6,}"
            f"  {own[0]:>5.2f} {paper[0]:>6}  {own[1]:>8.2f} {paper[1]:>6}"
        )
    return "\n".join(lines)
