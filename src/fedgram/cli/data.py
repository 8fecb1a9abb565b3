"""`fedgram data`: populations of users and their text, imported, generated and described."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import bytes_of, json_option, output_path, seed_option, with_suffix
from fedgram.cli.parameters import output_option as file_option
from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.core.unpacking import packing
from fedgram.text.corpus import normalized_sentences
from fedgram.text.importers import FileReport, ImportOptions, ImportReport, read_messages
from fedgram.text.merging import merged_messages
from fedgram.text.messages import SPLITS, write_messages
from fedgram.text.normalize import uncase
from fedgram.text.population import Population, open_population, population_from_messages, write_population
from fedgram.text.pseudonyms import default_key_file, read_key
from fedgram.text.source_files import FORMATS
from fedgram.text.synthetic.grammar import LANGUAGES
from fedgram.text.synthetic.typists import SyntheticPopulation

Rows = Iterable[tuple[str, str, str | None]]


output_option = file_option(
    "Population to write: .parquet (messages as typed) or .population (normalised, mapped into memory)",
    with_suffix(".parquet", ".population", what="a population"),
)
text_output_option = file_option("Text to write, one sentence per line.")


@click.group(
    cls=Group,
    examples=[
        "fedgram data import chats -o users.parquet",
        "fedgram data synthesize --users 50 -o users.parquet --supplement supplement.txt --whitelist whitelist.txt",
    ],
)
def group() -> None:
    """Import, generate and describe users and their text.

    A population is a .parquet file with one message per row (user_id, seq, text, split), or a .population file, which
    is normalised into words and mapped into memory. A user is in exactly one of the splits train, dev and test.
    """


def _write(path: Path, rows: Rows, on_messages: Any) -> None:
    if path.suffix == ".parquet":
        write_messages(path, rows, on_messages=on_messages)
    else:
        write_population(path, population_from_messages(rows))


@group.command(
    "import",
    examples=[
        "fedgram data import chats -o users.parquet",
        "fedgram data import chats messages.csv --user-field who --text-field said -o users.parquet --json",
        "fedgram data import export.zip --only Ann -o ann.parquet",
    ],
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_option
@click.option(
    "--format", "kind", type=click.Choice(["auto", *FORMATS]), default="auto", show_default=True,
    help="Format of all files; auto recognises that of each.",
)  # fmt: skip
@click.option("--user-field", help="Column or field that names the user, if it has an unusual name.")
@click.option("--text-field", help="Column or field with the text, if it has an unusual name.")
@click.option("--only", multiple=True, metavar="NAME", help="Import only this user; may be given several times.")
@click.option("--exclude", multiple=True, metavar="NAME", help="Leave this user out; may be given several times.")
@click.option("--keep-names", is_flag=True, help="Keep the users' names, numbers and addresses; default: pseudonyms.")
@click.option(
    "--key-file", type=click.Path(path_type=Path, dir_okay=False),
    help="Key of the pseudonyms; made if it is not there. The default is one key for all imports of yours.",
)  # fmt: skip
@json_option
def import_command(
    sources: tuple[Path, ...], output: Path, kind: str, user_field: str | None, text_field: str | None,
    only: tuple[str, ...], exclude: tuple[str, ...], keep_names: bool, key_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Import text by user from chats, mail and tables.

    A SOURCE is a file, a folder or a .zip file. Every file in it is read by its own format: WhatsApp and Telegram
    exports, mbox, CSV, JSONL, Parquet, and plain text by user (a text file or a folder of text files per user).

    Files that cannot be read are listed with the reason, and entries that are not messages are counted. Users get
    pseudonyms: one key gives a name the same pseudonym in every import, so populations can be merged. --only and
    --exclude take the names that the source has. Text that would mix users is refused.
    """
    if keep_names and key_file:
        raise click.UsageError("--key-file is for pseudonyms; it does not go with --keep-names")
    key_path = None if keep_names else key_file or default_key_file()
    options = ImportOptions(kind, user_field, text_field, only, exclude, read_key(key_path) if key_path else None)
    with steps() as step:
        messages, report = read_messages(sources, options)
        rows = ((message.user, message.text, None) for message in messages)
        _write(output, rows, step.begin(f"Importing {' '.join(map(str, sources))}"))
    result: dict[str, Any] = {"population": str(output), "users": report.users, "messages": report.messages}
    result |= {"names": f"pseudonyms, key in {key_path}" if key_path else "kept"}
    result |= {"files_read": len(report.files) - len(report.unread), "files_not_read": len(report.unread)}
    result |= {"skipped": sum(report.skipped.values())}
    if as_json:
        files = [
            {"file": f.name, "format": f.format, "users": len(f.names), "messages": f.messages, "problem": f.problem}
            for f in report.files
        ]
        show({**result, "files": files, "reasons": report.skipped, "first_places": report.first_places}, as_json)
        return
    show(result, as_json)
    for line in import_lines(report):
        click.echo(line)


_NAMED_FILES = 40


def import_lines(report: ImportReport) -> Iterator[str]:
    """What was read by format, every file that was not read by reason, and what was skipped."""
    read: dict[str, list[FileReport]] = {}
    unread: dict[str, list[FileReport]] = {}
    for file in report.files:
        group, name = (unread, file.problem) if file.problem else (read, file.format)
        group.setdefault(str(name), []).append(file)
    for format, files in read.items():
        people, messages = len(set().union(*(file.names for file in files))), sum(file.messages for file in files)
        counted = zip((len(files), people, messages), ("file", "user", "message"), strict=True)
        yield f"  read as {format}: " + ", ".join(f"{n:,} {what}{'s' * (n != 1)}" for n, what in counted)
    for problem, files in unread.items():
        yield f"  not read, {len(files):,} file{'s' * (len(files) != 1)}: {problem}"
        yield from (f"    {file.name}" for file in files[:_NAMED_FILES])
        if len(files) > _NAMED_FILES:
            yield f"    and {len(files) - _NAMED_FILES:,} more; --json lists them"
    for reason, count in report.skipped.items():
        yield f"  skipped, {count:,}: {reason} (first: {report.first_places[reason]})"


@group.command(
    "merge",
    examples=[
        "fedgram data merge users.parquet more.parquet -o all.parquet",
        "fedgram data merge users.parquet more.parquet -o all.population --json",
    ],
)
@click.argument("populations", metavar="POPULATION...", nargs=-1, required=True)
@output_option
@json_option
def merge_command(populations: tuple[str, ...], output: Path, as_json: bool) -> None:
    """Merge populations: one id is one user, with the messages of all files.

    Imports with the same key give a person the same id. Nothing is removed: to leave out what two exports of a chat
    have in common, import both in one command.
    """
    with steps() as step:
        rows, report = merged_messages(populations, typed=output.suffix == ".parquet")
        _write(output, rows, step.begin("Merging"))
    users = dict(zip(populations, report.users_by_file, strict=True))
    result: dict[str, Any] = {"population": str(output), "users": report.users, "users_again": report.shared}
    show({**result, "users_by_file": users if as_json else list(users.values())}, as_json)


@group.command(
    "synthesize",
    examples=[
        "fedgram data synthesize --users 50 -o users.parquet",
        "fedgram data synthesize --users 50 -o users.population --supplement supplement.txt --whitelist whitelist.txt",
    ],
)
@click.option(
    "--language", type=click.Choice(LANGUAGES), default="en_us", show_default=True, help="Language to type in."
)
@click.option("--users", type=click.IntRange(1), default=1000, show_default=True, help="Number of typists.")
@seed_option
@output_option
@click.option(
    "--supplement",
    callback=output_path,
    help="Also write well-cased text with other topics, as a server may have.",
)
@click.option("--sentences", type=click.IntRange(1), default=50_000, show_default=True, help="Size of the supplement.")
@click.option("--whitelist", callback=output_path, help="Also write the language's words in lower case, one per line.")
@json_option
def synthesize_command(
    language: str, users: int, seed: int, output: Path, supplement: Path | None, sentences: int, whitelist: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Generate typists with topics, habits and typos; the same seed gives the same text."""
    source = SyntheticPopulation(language, seed=seed)
    with steps() as step:
        advance = step.begin(f"Typing as {users:,} users", users)

        def rows() -> Rows:
            for typist in range(users):
                yield from source.rows(1, typist)
                advance(1)

        _write(output, rows(), None)
        result: dict[str, Any] = {"population": str(output), "language": language, "users": users, "seed": str(seed)}
        if supplement:
            step.begin("Writing the supplement")
            other_topics = source.grammar.topic_share[::-1]
            _write_lines(supplement, map(" ".join, source.clean_sentences(sentences, topic_share=other_topics)))
            result["supplement"] = str(supplement)
        if whitelist:
            words = sorted({uncase(word) for word in source.grammar.words if word[0].isalpha()})
            _write_lines(whitelist, words)
            result["whitelist"] = str(whitelist)
    show(result, as_json)


def _write_lines(path: Path, lines: Iterable[str]) -> int:
    count = 0
    with atomic_write(path) as raw, packing(raw, path) as file:
        for line in lines:
            file.write(line.encode() + b"\n")
            count += 1
    return count


@group.command(
    "text",
    examples=[
        "fedgram data text users.parquet --split train -o train.txt",
        "fedgram data text users.parquet --split dev --uncased -o dev.txt --json",
    ],
)
@click.argument("population")
@click.option("--split", type=click.Choice(SPLITS), required=True, help="Whose text.")
@text_output_option
@click.option("--uncased", is_flag=True, help="Write lower case.")
@json_option
def text_command(population: str, split: str, output: Path, uncased: bool, as_json: bool) -> None:
    """Write the pooled sentences of a split, normalised: what a server would see if it collected text."""
    with steps() as step:
        people = open_population(population, on_rows=step.begin(f"Reading {population}"))
        words = [uncase(word) for word in people.words] if uncased else list(people.words)
        step.begin("Writing")
        lines = (
            " ".join(words[i] for i in sentence)
            for client in people.clients(split).tolist()
            for sentence in people.sentences(client)
        )
        count = _write_lines(output, lines)
    show({"text": str(output), "users": len(people.clients(split)), "sentences": count}, as_json)


@group.command(
    "normalize",
    examples=[
        "fedgram data normalize book.txt -o corpus.txt",
        "fedgram data normalize book.txt --uncased -o corpus.txt",
    ],
)
@click.argument("text")
@text_output_option
@click.option("--uncased", is_flag=True, help="Write lower case.")
@json_option
def normalize_command(text: str, output: Path, uncased: bool, as_json: bool) -> None:
    """Normalise running text in the same way as users' text.

    TEXT is UTF-8 with punctuation. Packed files are unpacked, and - is standard input. The result is what
    `fedgram ngram train` reads: one sentence per line, split and cleaned as messages are.
    """
    with steps() as step:
        sentences = normalized_sentences(text, step.begin(f"Normalising {text}", bytes_of((text,))))
        count = _write_lines(output, (" ".join(map(uncase, words) if uncased else words) for words in sentences))
    show({"text": str(output), "sentences": count}, as_json)


@group.command(
    "info",
    examples=[
        "fedgram data info users.parquet",
        "fedgram data info users.parquet --json",
    ],
)
@click.argument("population")
@json_option
def info_command(population: str, as_json: bool) -> None:
    """Show the size and the SHA-256 digest of a population. No text is shown."""
    with steps() as step:
        people = open_population(population, on_rows=step.begin(f"Reading {population}"))
    show(describe(people), as_json)


def describe(people: Population) -> dict[str, Any]:
    """The sizes and the digest of a population."""
    if len(people) == 0:
        raise FedgramError("the population has no users")
    words = people.first_token[people.first_sentence[1:]] - people.first_token[people.first_sentence[:-1]]
    used = np.flatnonzero(np.diff(people.first_token))
    first_words = people.token[people.first_token[used]]
    lower = np.array([word[:1].islower() for word in people.words], bool)
    result: dict[str, Any] = {
        "users": len(people),
        "sentences": len(people.first_token) - 1,
        "words": len(people.token),
        "distinct_words": len(people.words),
        "words_per_user_p10_p50_p90_max": [int(v) for v in np.percentile(words, [10, 50, 90, 100])],
        "sentences_starting_lower_case": float(lower[first_words].mean()) if len(used) else 0.0,
    }
    for split in SPLITS:
        result[f"users_{split}"] = len(people.clients(split))
    result["digest"] = people.digest
    return result
