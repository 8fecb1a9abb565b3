"""Writes the reference of the library from signatures and docstrings: `python docs/api.py > docs/api.md`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import fedgram
from fedgram.core.settings import Setting, Settings, settings_of

HEADING = """# API reference

Signatures and meanings of all public names, as the code has them; written by `scripts/docs`.
[Library](library.md) shows how they are used together. `fg` is `import fedgram as fg`. A function with `**settings`
takes the fields of its options as keywords.
"""
# Every public name, by what one does with it.
PUBLIC = {
    "Users and their text": ["Population", "collect_unigrams", "discover"],
    "N-gram models": ["NGramModel", "PackedModel", "load", "save", "pack", "merge"],
    "Networks": ["Network", "WordPieces", "train_pieces", "pretrain", "train_federated"],
    "From networks to n-gram models": ["distill", "distill_onto", "refit"],
    "Evaluation": ["evaluate", "evaluate_on_devices"],
    "Runs": ["run", "RunConfig"],
    "Federated tasks": ["run_task", "FederatedTask"],
    "Options": [
        *("UnigramOptions", "DiscoveryOptions", "PretrainingOptions", "FedAvgOptions", "DistillationOptions"),
        *("RefitOptions", "EvaluationOptions", "DeviceEvaluationOptions", "Budget", "Compute"),
    ],
    "Errors": ["FedgramError"],
}
# What these take or return, by the module to import it from.
OTHERS = {
    "text.population": ["Users"],
    "text.unigrams": ["UnigramCounts"],
    "federated.collect_unigrams": ["CollectedUnigrams"],
    "federated.discovery.discover": ["DiscoveredWords"],
    "fgram.reader": ["Prediction"],
    "training.train_federated": ["TrainedNetwork"],
    "distill.algorithm1": ["Approximations"],
    "distill.distillation": ["Distilled", "Running"],
    "distill.refit.refit": ["RefittedModel"],
    "evaluate.comparison": ["Comparison"],
    "evaluate.on_devices": ["DeviceComparison"],
    "federated.rounds": ["Run", "Checkpointing"],
    "federated.cohort": ["CohortOptions"],
    "automata.training": ["NGramOptions"],
    "privacy.options": ["PrivacyOptions"],
    "privacy.ledger": ["Ledger"],
}
# What a reader of the library needs of larger classes, and what they are.
ABOUT = {
    "Population": "Users and their text. Each user is in one of three splits: train, dev and test.",
    "NGramModel": "An n-gram model.",
    "PackedModel": "An open `lm.fgram`; `fg.load` opens one. A context is text as it was typed, of which only the last "
    "sentence counts, or the words since the beginning of the sentence.",
    "Network": "A recurrent network with its vocabulary, or with its word pieces.",
    "RunConfig": "A run's configuration, with one attribute per section. "
    "[Runs and settings](pipeline.md#all-settings) lists all of them.",
}
MEMBERS = {
    "Population": ["open", "from_messages", "train", "dev", "test", "users", "digest"],
    "NGramModel": ["train", "score", "perplexity", "sample", "prune", "has_unknown"],
    "PackedModel": ["predict", "score", "state", "step", "word", "word_id", "words"],
    "Network": ["create", "summary"],
    "Comparison": ["rows", "title", "scope"],
    "Ledger": ["open", "entries", "spent"],
    "Running": [],
}


def page() -> str:
    """The whole page."""
    parts = [HEADING]
    for title, names in PUBLIC.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            module = import_module(fedgram._PLACES[name], "fedgram")
            parts += section(f"fg.{name}", getattr(module, name))
    parts.append("\n## Other types\n\nWhat the functions above take or return.\n")
    for place, names in OTHERS.items():
        for name in names:
            module = import_module(f"fedgram.{place}")
            parts += section(name, getattr(module, name), f"\n`from fedgram.{place} import {name}`\n")
    return "".join(parts)


def section(name: str, thing: Any, note: str = "") -> Iterator[str]:
    """What is said of one name."""
    yield f"\n### {name}\n{note}"
    if not inspect.isclass(thing):
        yield signature(name, thing)
        yield explanation(inspect.getdoc(thing))
        return
    yield explanation(ABOUT.get(thing.__name__) or inspect.getdoc(thing))
    if issubclass(thing, Settings):
        yield options(settings_of(thing))
        return
    if is_dataclass(thing) and note:
        yield attributes(thing)
    for member in MEMBERS.get(thing.__name__, [known for known in vars(thing) if not known.startswith("_")]):
        value = vars(thing)[member]
        if is_property(value):
            yield f"\n`.{member}`: {sentence(inspect.getdoc(value))}\n"
        elif inspect.isfunction(value):
            yield signature(f".{member}", value) + explanation(inspect.getdoc(value))
        elif isinstance(value, classmethod | staticmethod):
            yield signature(f"{name}.{member}", value.__func__) + explanation(inspect.getdoc(value.__func__))


def is_property(value: Any) -> bool:
    """Whether a member of a class is computed."""
    return isinstance(value, property | cached_property)


def signature(name: str, function: Any) -> str:
    """The parameters as they are written, without the class or object itself."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    if node.args.args and node.args.args[0].arg in ("self", "cls"):
        del node.args.args[0]
    returned = f" -> {plain(node.returns)}" if node.returns and plain(node.returns) != "None" else ""
    words = parameters(ast.unparse(node.args))
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returned}"
    return f"\n```python\n{line}\n```\n"


def parameters(text: str) -> list[str]:
    """Parameters one by one; types that are written as strings lose their quotes."""
    found, depth = [""], 0
    for letter in re.sub(r": '([^']*)'", r": \1", text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [re.sub(r"(: [^=]*)=", r"\1 = ", word.strip()) for word in found if word.strip()]


def plain(node: ast.expr) -> str:
    """A type as it is written, without quotes."""
    return ast.unparse(node).strip("'\"")


def explanation(text: str | None) -> str:
    """A docstring as Markdown: its lists of arguments and attributes become lists; examples are left out."""
    parts = []
    for block in (text or "").split("\n\n"):
        title, _, rest = block.partition("\n")
        if title in ("Args:", "Attributes:"):
            parts.append("\n".join(named(item) for item in re.split(r"\n(?=\S)", textwrap.dedent(rest))))
        elif title == "Returns:":
            parts.append(f"Returns: {sentence(rest)}")
        elif block.startswith("- "):
            parts.append("\n".join(f"- {sentence(item)}" for item in re.split(r"(?:^|\n)- ", block)[1:]))
        elif not block.startswith(">>>"):
            parts.append(sentence(block))
    return "\n" + "\n\n".join(parts) + "\n"


def named(item: str) -> str:
    """An argument or attribute, as an item of a list."""
    name, _, meaning = item.partition(": ")
    return f"- `{name}`: {sentence(meaning)}"


def sentence(text: str | None) -> str:
    """Lines joined; what Markdown would take for HTML is quoted."""
    return re.sub(r"(?<!`)(<[a-z/]+>)(?!`)", r"`\1`", " ".join((text or "").split()))


def options(known: tuple[Setting, ...]) -> str:
    """The fields of settings, as a table."""
    rows = [f"| `{s.name}` | {default(s.default)} | {s.wanted} | {sentence(s.help)} |" for s in known]
    return "\n| field | default | values | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def default(value: Any) -> str:
    """A default value, as Python writes it."""
    return "none" if value is None else f"`{value!r}`"


def attributes(thing: Any) -> str:
    """The fields that a result has of its own, and the class whose fields it has too."""
    above = next((base for base in thing.__mro__[1:] if is_dataclass(base)), None)
    known = {field.name for field in fields(above)} if above else set()
    names = ", ".join(f"`{field.name}`" for field in fields(thing) if field.name not in known)
    return f"\nAttributes: {names}" + (f", and those of `{above.__name__}`" if above else "") + ".\n"


if __name__ == "__main__":
    print(page(), end="")
