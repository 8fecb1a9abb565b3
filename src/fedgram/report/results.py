"""The results of a run, read from a JSON file and checked.

    title                    a string
    measured                 who was measured, such as "481 test users"
    result                   the result in a sentence, in place of the one on the final model's change
    warnings                 sentences that must not be overlooked, shown at the top
    about                    names and values that describe the run
    languages.LANG.baseline  the name of the baseline among the models
    languages.LANG.final     the name of the final model, if there is one
    languages.LANG.models    by name, a model's results from `fedgram evaluate --json`: {measure: {value, ci95}, change}
    languages.LANG.shared_words, .outside  the size of 𝒱, and the share of typed words outside it, in per cent
    cased                    like languages, for case-sensitive evaluation
    ways                     {"ours": TEXT, "paper": TEXT}: how the models of Tables 3 and 4 were made
    experiment               A/B experiments from `fedgram evaluate --json`: users_per_arm, aa_coverage, change
    clipping                 Table 1: baseline {measure: {value, ci95}}, rows [{clip, change, interpolated,
                             against_first}], control {replaced, interpolated}, max_words, devices, words; clip null
                             means ∞, and all but baseline, clip and change may be left out
    architectures            Table 2: [{preset, layers, hidden, embedding, embedding_parameters, parameters,
                             paper_embedding, paper_total, sll_e, trained_parameters}], sizes in millions; the last
                             two are null if not trained
    sizes                    [{model, ngrams, bytes}]; ngrams null for a model without n-grams
    figures                  [{file, caption, dark}]: PNG files, with paths relative to the folder of the JSON file;
                             `dark` is the figure for dark pages, and may be left out
    examples                 [{context, suggestions: {model: [words]}}]
    stages                   [{name, seconds, peak_bytes}]
    privacy                  names and values
    config                   the configuration as text
    audits                   [{title, notes: [TEXT], header: [TEXT], rows: [[TEXT]]}]: what attacks on the models found
    files                    SHA-256 by file name

All entries except the title are optional. Models named Baseline, A_W_e … A_P_r appear in Tables 3 and 4, and so do
A_W_e (paper) … A_P_r (paper), which were made the paper's own way.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedgram.core.errors import InputError
from fedgram.evaluate.jackknife import Estimate

T = TypeVar("T")
Value = str | float | int
Estimates = Mapping[str, Estimate | None]
_MAX_BYTES = 64 << 20
_COUNTS = ("max_words", "devices", "words")
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The levels of a model, and its changes relative to the baseline."""

    levels: Estimates
    change: Estimates


@dataclass(frozen=True, slots=True)
class LanguageResult:
    """The results of all models of a language."""

    baseline: str | None
    models: Mapping[str, ModelResult]
    final: str | None = None
    shared_words: int | None = None
    outside: float | None = None


@dataclass(frozen=True, slots=True)
class ClippingRow:
    """Relative changes with the clipping threshold `clip`, against the baseline and against the first row."""

    clip: float
    change: Estimates
    interpolated: Estimates
    against_first: Estimates


@dataclass(frozen=True, slots=True)
class Clipping:
    """The unigram experiment. The control has the baseline's own words and text, with their plain frequencies."""

    baseline: Estimates
    rows: tuple[ClippingRow, ...]
    control: Mapping[str, Estimates]
    max_words: int | None
    devices: int | None
    words: int | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network of Table 2: its shape, its sizes here and in the paper in millions, and what was trained.

    Where the reported words have fewer pieces than the shape has room for, the trained network is smaller.
    """

    preset: str
    layers: int
    hidden: int
    embedding: int
    embedding_parameters: float
    parameters: float
    paper_embedding: float
    paper_total: float
    sll_e: float | None
    trained_parameters: float | None


@dataclass(frozen=True, slots=True)
class Experiment:
    """Simulated A/B experiments: changes by model, and the share of A/A experiments whose interval covers zero."""

    users_per_arm: int
    aa_coverage: float
    changes: Mapping[str, Estimates]


@dataclass(frozen=True, slots=True)
class AuditTable:
    """What an audit found: a table of text, whose first column names the row, and notes on it."""

    title: str
    notes: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The content of a report; see the module's description."""

    title: str
    measured: str | None = None
    result: str | None = None
    warnings: tuple[str, ...] = ()
    about: Mapping[str, Value] = field(default_factory=dict)
    languages: Mapping[str, LanguageResult] = field(default_factory=dict)
    cased: Mapping[str, LanguageResult] = field(default_factory=dict)
    ways: Mapping[str, Value] = field(default_factory=dict)
    experiment: Experiment | None = None
    clipping: Clipping | None = None
    architectures: tuple[Architecture, ...] = ()
    sizes: tuple[tuple[str, int | None, int], ...] = ()
    figures: tuple[tuple[Path, str, Path | None], ...] = ()
    examples: tuple[tuple[str, Mapping[str, tuple[str, ...]]], ...] = ()
    stages: tuple[tuple[str, float, int | None], ...] = ()
    privacy: Mapping[str, Value] = field(default_factory=dict)
    config: str | None = None
    audits: tuple[AuditTable, ...] = ()
    files: Mapping[str, Value] = field(default_factory=dict)


def read_results(path: str | Path) -> Results:
    """Read and check a results file. Errors name the place inside the file."""
    path = Path(path)
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(path, "has more than 64 MiB, the limit of a results file")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(path, f"is not JSON: {error}") from None
    return _Reader(path).results(content)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def results(self, content: Any) -> Results:
        known = Results.__dataclass_fields__
        top = self.table(content, "the file")
        for name in top:
            if name not in known:
                raise InputError(self.path, f"unknown entry {name!r}; the entries are {', '.join(known)}")
        if "title" not in top:
            raise InputError(self.path, "has no title", remedy="add the entry 'title'")
        readers: dict[str, Callable[[Any, str], Any]] = {
            "title": self.text,
            "measured": self.text,
            "result": self.text,
            "config": self.text,
            "warnings": self.texts,
            "about": self.values,
            "ways": self.values,
            "privacy": self.values,
            "files": self.values,
            "languages": self.languages,
            "cased": self.languages,
            "experiment": self.experiment,
            "clipping": self.clipping,
            "architectures": lambda v, p: self.each(v, p, self.architecture),
            "sizes": lambda v, p: self.each(v, p, self.size),
            "figures": lambda v, p: self.each(v, p, self.figure),
            "examples": lambda v, p: self.each(v, p, self.example),
            "stages": lambda v, p: self.each(v, p, self.stage),
            "audits": lambda v, p: self.each(v, p, self.audit),
        }
        return Results(**{name: readers[name](value, name) for name, value in top.items() if value is not None})

    def wrong(self, place: str, wanted: str) -> InputError:
        return InputError(self.path, f"{place} must be {wanted}")

    def table(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(place, "an object")
        return value

    def each(self, value: Any, place: str, read: Callable[[dict[str, Any], str], T]) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise self.wrong(place, "an array")
        places = [f"{place}[{i}]" for i in range(len(value))]
        return tuple(read(self.table(item, where), where) for item, where in zip(value, places, strict=True))

    def text(self, value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise self.wrong(place, "a string")
        return value

    def texts(self, value: Any, place: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self.wrong(place, "an array")
        return tuple(self.text(item, f"{place}[{i}]") for i, item in enumerate(value))

    def number(self, value: Any, place: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(place, "a number")
        return value

    def whole(self, value: Any, place: str) -> int:
        if type(value) is not int or value < 0:
            raise self.wrong(place, "an integer of at least 0")
        return value

    def values(self, value: Any, place: str) -> dict[str, Value]:
        table = self.table(value, place)
        return {k: v if isinstance(v, str) else self.number(v, f"{place}.{k}") for k, v in table.items()}

    def estimates(self, value: Any, place: str) -> dict[str, Estimate | None]:
        return {name: self.estimate(item, f"{place}.{name}") for name, item in self.table(value, place).items()}

    def estimate(self, value: Any, place: str) -> Estimate | None:
        table = self.table(value, place)
        if table.get("value") is None:
            return None
        level, ends = self.number(table["value"], f"{place}.value"), table.get("ci95")
        if ends is None:
            return Estimate(level, None)
        if not isinstance(ends, list) or len(ends) != 2:
            raise self.wrong(f"{place}.ci95", "null or [low, high]")
        return Estimate(level, (self.number(ends[0], f"{place}.ci95"), self.number(ends[1], f"{place}.ci95")))

    def languages(self, value: Any, place: str) -> dict[str, LanguageResult]:
        return {name: self.language(item, f"{place}.{name}") for name, item in self.table(value, place).items()}

    def language(self, value: Any, place: str) -> LanguageResult:
        table = self.table(value, place)
        models = {}
        for name, item in self.table(table.get("models"), f"{place}.models").items():
            entry = self.table(item, f"{place}.models.{name}")
            levels = {k: v for k, v in entry.items() if k not in ("change", "model")}
            change = self.estimates(entry.get("change", {}), f"{place}.models.{name}.change")
            models[name] = ModelResult(self.estimates(levels, f"{place}.models.{name}"), change)
        for key in ("baseline", "final"):
            if table.get(key) is not None and self.text(table[key], f"{place}.{key}") not in models:
                raise self.wrong(f"{place}.{key}", "the name of one of the models")
        shared, outside = (self.maybe(table, key, place) for key in ("shared_words", "outside"))
        return LanguageResult(
            table.get("baseline"), models, table.get("final"), None if shared is None else int(shared), outside
        )

    def experiment(self, value: Any, place: str) -> Experiment:
        table = self.table(value, place)
        changes = self.table(table.get("change"), f"{place}.change")
        return Experiment(
            self.whole(table.get("users_per_arm"), f"{place}.users_per_arm"),
            self.number(table.get("aa_coverage"), f"{place}.aa_coverage"),
            {name: self.estimates(item, f"{place}.change.{name}") for name, item in changes.items()},
        )

    def clipping(self, value: Any, place: str) -> Clipping:
        table = self.table(value, place)

        def row(item: dict[str, Any], where: str) -> ClippingRow:
            clip = self.maybe(item, "clip", where)
            others = (self.estimates(item.get(key, {}), f"{where}.{key}") for key in ("interpolated", "against_first"))
            change = self.estimates(item.get("change"), f"{where}.change")
            return ClippingRow(math.inf if clip is None else clip, change, *others)

        control = self.table(table.get("control", {}), f"{place}.control")
        counts = (None if table.get(key) is None else self.whole(table[key], f"{place}.{key}") for key in _COUNTS)
        return Clipping(
            self.estimates(table.get("baseline"), f"{place}.baseline"),
            self.each(table.get("rows"), f"{place}.rows", row),
            {way: self.estimates(item, f"{place}.control.{way}") for way, item in control.items()},
            *counts,
        )

    def architecture(self, item: dict[str, Any], place: str) -> Architecture:
        layers, hidden, embedding = (
            self.whole(item.get(key), f"{place}.{key}") for key in ("layers", "hidden", "embedding")
        )
        ours, total, paper, paper_total = (
            self.number(item.get(key), f"{place}.{key}")
            for key in ("embedding_parameters", "parameters", "paper_embedding", "paper_total")
        )
        preset = self.text(item.get("preset"), f"{place}.preset")
        trained = (self.maybe(item, key, place) for key in ("sll_e", "trained_parameters"))
        return Architecture(preset, layers, hidden, embedding, ours, total, paper, paper_total, *trained)

    def maybe(self, table: dict[str, Any], key: str, place: str) -> float | None:
        return None if table.get(key) is None else self.number(table[key], f"{place}.{key}")

    def size(self, item: dict[str, Any], place: str) -> tuple[str, int | None, int]:
        name, ngrams = self.text(item.get("model"), f"{place}.model"), item.get("ngrams")
        count = None if ngrams is None else self.whole(ngrams, f"{place}.ngrams")
        return name, count, self.whole(item.get("bytes"), f"{place}.bytes")

    def figure(self, item: dict[str, Any], place: str) -> tuple[Path, str, Path | None]:
        dark = None if item.get("dark") is None else self.image(item["dark"], f"{place}.dark")
        return self.image(item.get("file"), f"{place}.file"), self.text(item.get("caption"), f"{place}.caption"), dark

    def image(self, value: Any, place: str) -> Path:
        file = self.path.parent / self.text(value, place)
        with file.open("rb") as opened:
            if opened.read(len(_PNG)) != _PNG or file.stat().st_size > _MAX_BYTES:
                raise InputError(file, "is not a PNG image of at most 64 MiB")
        return file

    def example(self, item: dict[str, Any], place: str) -> tuple[str, dict[str, tuple[str, ...]]]:
        suggestions = {}
        for model, words in self.table(item.get("suggestions"), f"{place}.suggestions").items():
            if not isinstance(words, list):
                raise self.wrong(f"{place}.suggestions.{model}", "an array")
            suggestions[model] = tuple(self.text(word, f"{place}.suggestions.{model}") for word in words)
        return self.text(item.get("context"), f"{place}.context"), suggestions

    def audit(self, item: dict[str, Any], place: str) -> AuditTable:
        rows = item.get("rows")
        if not isinstance(rows, list):
            raise self.wrong(f"{place}.rows", "an array")
        header = self.texts(item.get("header"), f"{place}.header")
        found = tuple(self.texts(row, f"{place}.rows[{i}]") for i, row in enumerate(rows))
        if any(len(row) != len(header) for row in found):
            raise self.wrong(f"{place}.rows", "as wide as the header")
        notes = self.texts(item.get("notes", []), f"{place}.notes")
        return AuditTable(self.text(item.get("title"), f"{place}.title"), notes, header, found)

    def stage(self, item: dict[str, Any], place: str) -> tuple[str, float, int | None]:
        peak = item.get("peak_bytes")
        return (
            self.text(item.get("name"), f"{place}.name"),
            self.number(item.get("seconds"), f"{place}.seconds"),
            None if peak is None else self.whole(peak, f"{place}.peak_bytes"),
        )
