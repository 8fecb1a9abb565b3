"""Debates of the Brazilian Chamber of Deputies in 2019: CSV files with `data`, `autor` and `discurso` per turn.

This is transcribed speech. The user is the speaker. Remarks of the stenographers, which are in brackets, and the
formulas of the chair are left out.
"""

import csv
import io
import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import NamedTuple

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import Message, split_sentences

REPOSITORY = "ivynasantino/extrator-camara-discursos"
_FOLDER = "processamento-analise-dados/data/process-data"
_REMARK = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_CHAIR = re.compile(
    r"(?:Concedo|Passo a palavra|Passa-se|Tem a palavra|Com a palavra|Tem V\.Exa|Como (?:vota|orienta)|Em votação|"
    r"Em discussão|Está (?:aberta|encerrada|suspensa|reaberta|iniciada)|Declaro|Havendo número|Aprovad[oa]|"
    r"Rejeitad[oa]|Os Srs\. Deputados que|A lista de presença|Fica dispensada|Para orientar|Encerrad[oa])\b"
)


class Turn(NamedTuple):
    """A speech in a debate."""

    day: date
    speaker: str
    text: str


def messages(checkout: Checkout) -> Iterator[Message]:
    """The sentences of all turns, in the order of days."""
    files = list(checkout.read(checkout.paths(_FOLDER, ".csv")))
    found = [turn for _, content in files for turn in turns(content.decode("utf-8-sig"))]
    for turn in sorted(found, key=lambda turn: turn.day):
        for sentence in split_sentences(turn.text):
            if not _CHAIR.match(sentence):
                yield Message(turn.speaker, sentence)


def turns(content: str) -> Iterator[Turn]:
    """The turns of a CSV file without remarks in brackets. Rows without a speaker or a day are left out."""
    for row in csv.DictReader(io.StringIO(content, newline="")):
        speaker, day = (row.get("autor") or "").strip(), row.get("data") or ""
        if speaker not in ("", "NA") and re.fullmatch(r"\d\d/\d\d/\d{4}", day):
            text = _REMARK.sub(" ", row.get("discurso") or "")
            yield Turn(datetime.strptime(day, "%d/%m/%Y").date(), speaker, text)
