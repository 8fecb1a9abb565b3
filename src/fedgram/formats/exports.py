"""Models in the formats of other programs: one table for the command, the stage of a run, and the library.

A new format is a writer of its own module, and a line here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from fedgram.automata.model import NGramModel
from fedgram.core.errors import InvariantError
from fedgram.core.settings import AtLeastOne, Between, Settings, setting
from fedgram.formats.aosp import write_combined, write_dict
from fedgram.formats.arpa import write_arpa
from fedgram.formats.kenlm import write_kenlm
from fedgram.formats.onboard import write_onboard
from fedgram.formats.openfst import write_openfst
from fedgram.formats.presage import write_presage
from fedgram.formats.word_pairs import WordPairs, word_pairs

ExportFormat = Literal["arpa", "kenlm", "openfst", "g.fst", "aosp-combined", "aosp-dict", "onboard", "presage"]


@dataclass(frozen=True, slots=True)
class ExportOptions(Settings):
    """What some formats ask for."""

    locale: str = setting("en_US", "Language of an AOSP dictionary.")
    bigrams: Annotated[int, Between(0, 30)] = setting(
        10, "Maximum number of next words per word in an AOSP dictionary; more make keyboards slow."
    )
    words: AtLeastOne | None = setting(None, "Maximum number of words in an AOSP dictionary; by default, all.")
    structure: Literal["probing", "trie"] = setting("probing", "Data structure of a KenLM binary.")
    build_binary: str | None = setting(None, "KenLM's build_binary; by default, the one on the PATH.")

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if not self.locale.replace("_", "").replace("-", "").isalnum() or not self.locale.isascii():
            raise InvariantError(f"the locale {self.locale!r} is not one such as en_US")


class Export(NamedTuple):
    """The usual name of a file in some format, and its writer."""

    file: str
    write: Callable[[NGramModel, Path, ExportOptions], object]


def _pairs(model: NGramModel, options: ExportOptions) -> WordPairs:
    return word_pairs(model, bigrams=options.bigrams, words=options.words)


EXPORTS: dict[str, Export] = {
    "arpa": Export("lm.arpa", lambda model, path, _: write_arpa(model, path)),
    "kenlm": Export(
        "lm.kenlm", lambda model, path, o: write_kenlm(model, path, structure=o.structure, builder=o.build_binary)
    ),
    "openfst": Export("lm.fst", lambda model, path, _: write_openfst(model, path)),
    "g.fst": Export("G.fst", lambda model, path, _: write_openfst(model, path, style="kaldi")),
    "aosp-combined": Export(
        "lm.combined", lambda model, path, o: write_combined(_pairs(model, o), path, locale=o.locale)
    ),
    "aosp-dict": Export("lm.dict", lambda model, path, o: write_dict(_pairs(model, o), path, locale=o.locale)),
    "onboard": Export("lm.onboard", lambda model, path, _: write_onboard(model, path)),
    "presage": Export("lm.presage.db", lambda model, path, _: write_presage(model, path)),
}


def export(model: NGramModel, path: str | Path, to: ExportFormat, options: ExportOptions | None = None) -> None:
    """Write a model in the format of another program."""
    EXPORTS[to].write(model, Path(path), options or ExportOptions())
