"""Build users.parquet, supplement.txt and whitelist.txt of a language from public checkouts; see the package."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.real_text import supplement, users, whitelist, word_frequencies
from benchmarks.real_text.checkouts import Checkout, open_checkout
from benchmarks.real_text.cleaning import Message, words

from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.text.messages import SPLITS, write_messages
from fedgram.text.pseudonyms import read_key


def main() -> int:
    """Build the files and print their statistics as JSON."""
    given = _arguments()
    try:
        given.output.mkdir(parents=True, exist_ok=True)
        result = {part: PARTS[part](given) for part in given.parts}
    except (FedgramError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_text", description=__doc__)
    parser.add_argument("language", choices=sorted(users.SOURCES))
    parser.add_argument("--mirror", type=Path, required=True, help="Folder with a checkout per repository.")
    parser.add_argument("--debs", type=Path, help="Folder with the unpacked Debian packages, for the whitelist.")
    parser.add_argument("--key-file", type=Path, help="Secret key of the pseudonyms; written if it is not there.")
    parser.add_argument("--output", type=Path, required=True, help="Folder to write.")
    parser.add_argument("--sources", nargs="+", help="Sources of users' text to use; all if none is given.")
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=sorted(PARTS), help="What to build.")
    given = parser.parse_args()
    known = [source.name for source in users.SOURCES[given.language]]
    if unknown := set(given.sources or []) - set(known):
        parser.error(f"unknown source {sorted(unknown)[0]}; choose from {', '.join(known)}")
    if "whitelist" in given.parts and given.debs is None:
        parser.error("the whitelist needs --debs; or choose other --parts")
    if "users" in given.parts and given.key_file is None:
        parser.error("the users need --key-file; or choose other --parts")
    return given


def _build_users(given: argparse.Namespace) -> dict[str, Any]:
    sources = [s for s in users.SOURCES[given.language] if not given.sources or s.name in given.sources]
    checkouts = {source.name: open_checkout(given.mirror, source.repository) for source in sources}
    frequencies = open_checkout(given.mirror, word_frequencies.REPOSITORY)
    languages = word_frequencies.read_languages(frequencies)

    def read(source: users.Source) -> Iterator[Message]:
        return source.read(checkouts[source.name], languages)

    people = users.build(given.language, sources, read, read_key(given.key_file))
    rows = ((user.pseudonym, row, user.split) for user in people for row in user.rows)
    write_messages(given.output / "users.parquet", rows)
    return {
        "commits": _commits([*checkouts.values(), frequencies]),
        "by_source": {s.name: _sizes(user for user in people if user.source == s.name) for s in sources},
        "by_split": {split: _sizes(user for user in people if user.split == split) for split in SPLITS},
    }


def _sizes(people: Iterable[users.User]) -> dict[str, int]:
    rows = [user.rows for user in people]
    count = sum(len(words(row)) for text in rows for row in text)
    return {"users": len(rows), "rows": sum(map(len, rows)), "words": count}


def _commits(checkouts: list[Checkout]) -> dict[str, str]:
    return {checkout.name: checkout.commit for checkout in checkouts}


def _build_supplement(given: argparse.Namespace) -> dict[str, Any]:
    corpora = supplement.CORPORA[given.language]
    checkouts = [open_checkout(given.mirror, corpus.repository) for corpus in corpora]
    sizes: dict[str, int] = {}
    seen: set[str] = set()
    with atomic_write(given.output / "supplement.txt") as file:
        for corpus, checkout in zip(corpora, checkouts, strict=True):
            for sentence in supplement.well_cased(corpus.read(checkout), corpus.min_words, seen):
                file.write(sentence.encode() + b"\n")
                sizes[corpus.name] = sizes.get(corpus.name, 0) + 1
    return {"commits": _commits(checkouts), "sentences": sizes}


def _build_whitelist(given: argparse.Namespace) -> dict[str, Any]:
    checkout = open_checkout(given.mirror, word_frequencies.REPOSITORY)
    found = whitelist.build(given.language, checkout, given.debs)
    with atomic_write(given.output / "whitelist.txt") as file:
        file.writelines(word.encode() + b"\n" for word in found)
    return {"commits": _commits([checkout]), "words": len(found)}


PARTS = {"users": _build_users, "supplement": _build_supplement, "whitelist": _build_whitelist}

if __name__ == "__main__":
    sys.exit(main())
