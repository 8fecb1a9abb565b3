"""Text and people as targets: corpora, word lists, populations, and everything that is imported."""

import base64
import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.mutations import mutate_artefact, mutate_bytes, mutate_json, mutate_text
from tests.fuzz.registry import target

from fedgram.text.importers import ImportOptions, read_messages
from fedgram.text.population import open_population, population_from_messages, write_population
from fedgram.text.vocabulary import Vocabulary

HELLO = [("ann", "hello there, see you"), ("bob", "Hello é ok"), ("ann", "no")]


@target(".txt", mutate_text, ["the quick fox\njumps é over\n\n<unk> it\n"])
def corpus(path: Path) -> None:
    from fedgram.text.corpus import read_corpus

    read_corpus([path])


@target(".txt", mutate_text, ["Dr. Lee isn’t in New York... call 5pm! see http://x.org or a.b@c.de, @you :)\n"])
def message(path: Path) -> None:
    from fedgram.text.normalize import normalize, uncase

    for sentence in normalize(path.read_text("utf-8", errors="replace")):
        for word in sentence:
            uncase(word)


@target(".txt", mutate_text, ["the\nof\nand\n"])
def vocabulary(path: Path) -> None:
    from fedgram.text.vocabulary import read_vocabulary

    read_vocabulary(path)


@target(".txt", mutate_text, ["the\t10\nof\t5\nand 3\n"])
def unigram_list(path: Path) -> None:
    from fedgram.text.unigrams import read_unigrams

    read_unigrams(path)


def unigram_files(folder: Path) -> list[bytes]:
    from fedgram.text.unigrams import UnigramCounts, write_unigrams

    words = Vocabulary.of(["the", "of", "é"])
    write_unigrams(folder / "seed.unigrams", UnigramCounts(words, np.arange(6.0), 3, 1, 1.0))
    return [(folder / "seed.unigrams").read_bytes()]


@target(".unigrams", mutate_artefact, unigram_files)
def unigrams(path: Path) -> None:
    from fedgram.text.unigrams import read_unigrams

    read_unigrams(path)


def population_files(folder: Path) -> list[bytes]:
    write_population(folder / "seed.population", population_from_messages((u, t, None) for u, t in HELLO))
    return [(folder / "seed.population").read_bytes()]


@target(".population", mutate_artefact, population_files)
def population(path: Path) -> None:
    found = open_population(path)
    for client in range(len(found.client_ids)):
        found.sentences(client)


def parquet_files(folder: Path) -> list[bytes]:
    import pyarrow
    import pyarrow.parquet

    columns = {"user_id": [u for u, _ in HELLO] * 4, "text": [t for _, t in HELLO] * 4, "split": ["train"] * 12}
    found = []
    for options in ({"compression": "zstd"}, {"compression": "none", "use_dictionary": False}):
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "seed.parquet", **options)
        found.append((folder / "seed.parquet").read_bytes())
    return found


@target(".parquet", mutate_bytes, parquet_files, share=0.5, needs="pyarrow")
def parquet(path: Path) -> None:
    open_population(path)


def imported(path: Path, **options: Any) -> None:
    messages, _ = read_messages([path], ImportOptions(**options))
    population_from_messages((m.user, m.text, None) for m in messages)


@target(".parquet", mutate_bytes, parquet_files, share=0.3, needs="pyarrow")
def import_parquet(path: Path) -> None:
    imported(path)


WHATSAPP = """[12/03/2020, 10:00:01] Ann: hello there
[12/03/2020, 10:00:02] Bob: \u200eimage omitted
more lines
12/03/2020, 10:00 - Cid: <Media omitted>
12/03/2020, 10:00 - Ann changed the subject to "Lunch: today"
3/12/20, 9:15 PM - Dan: ok <This message was edited>
"""
TELEGRAM = json.dumps({
    "name": "x", "type": "personal_chat", "messages": [
        {"id": 1, "type": "message", "from": "Ann", "from_id": "user1", "text": "hello there", "date": "2020-01-01"},
        {"id": 2, "type": "message", "from": "B", "from_id": "user2", "text": ["see ", {"type": "link", "text": "x"}]},
        {"id": 3, "type": "service", "actor": "A"},
    ], "chats": {"list": [{"messages": []}]},
})  # fmt: skip
MBOX = f"""From ann@x.org Mon Jan  1 00:00:00 2020
From: Ann <ann@x.org>
Content-Type: multipart/mixed; boundary="b"
MIME-Version: 1.0

--b
Content-Type: text/plain; charset="utf-8"
Content-Transfer-Encoding: base64

{base64.b64encode(b"hello there").decode()}
--b
Content-Type: text/html

<b>x</b>
--b--

From bob@x.org Mon Jan  1 00:00:00 2020
From: =?utf-8?q?Bob?= <bob@x.org>
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

Hello =E9 there
On Monday Ann wrote:
> quoted
--\x20
signature
"""
CSV = ['user,text\nann,"hello, ""you"""\nbob,see\n', "user;id;text\r\na;1;b\r\n"]
JSONL = '{"user": "ann", "text": "hello"}\n{"user": 5, "text": "you"}\n{"user": "b", "text": null}\n'


@target(".txt", mutate_text, [WHATSAPP])
def whatsapp(path: Path) -> None:
    imported(path, format="whatsapp")


@target(".json", mutate_json, [TELEGRAM])
def telegram(path: Path) -> None:
    imported(path, format="telegram")


@target(".mbox", mutate_text, [MBOX])
def mbox(path: Path) -> None:
    imported(path, format="mbox")


@target(".csv", mutate_text, CSV)
def csv(path: Path) -> None:
    imported(path, format="csv")


@target(".jsonl", mutate_text, [JSONL])
def jsonl(path: Path) -> None:
    imported(path, format="jsonl")


@target("", mutate_text, [WHATSAPP, MBOX, TELEGRAM, JSONL, "PAR1"])
def any_format(path: Path) -> None:
    imported(path)


def zip_files(_: Path) -> list[bytes]:
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("ann.txt", "hello\nthere\n"), ("b/chat.txt", WHATSAPP), ("c.jsonl", JSONL), ("x.jpg", "x")):
            archive.writestr(name, text)
    return [content.getvalue()]


@target(".zip", mutate_bytes, zip_files, share=0.5)
def zipped(path: Path) -> None:
    imported(path)
