"""The stage that measures all models on held-out users (§7.2), with and without regard to capitals.

Perplexity and SLL^e are over one list of words for all models, 𝒱: those that every model has. There is one list for
each regard to capitals. `clipping_stage` measures Table 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedgram.automata.model import NGramModel
from fedgram.evaluate.comparison import Comparison, shared_words
from fedgram.evaluate.evaluation import Evaluation, evaluate_model
from fedgram.evaluate.models import as_predictor, in_memory, vocabulary_of
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.pipeline.config import EvaluationSection
from fedgram.pipeline.model_names import BASELINE, FINAL, NETWORK, UNCASED, evaluated
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Users, open_population

EXAMPLES = {
    "en_us": ("how are", "see you", "i am so", "do you want", "what time is", "thank you", "can you", "i'll be"),
    "pt_br": ("tudo", "eu vou", "muito", "você quer", "que horas", "bom", "a gente se vê", "não sei"),
}  # fmt: skip


@dataclass(slots=True)
class _Results:
    """What was found, by whether capitals count."""

    shared: Mapping[bool, frozenset[str]]
    by_case: dict[bool, dict[str, Evaluation]] = field(default_factory=lambda: {False: {}, True: {}})
    sizes: list[dict[str, Any]] = field(default_factory=list)
    suggestions: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def evaluation(work: Work, config: EvaluationSection, language: str, seed: int) -> None:
    """Every model on the split's users, with and without regard to capitals."""
    users = open_population(work.read("users.population")).users(config.split)
    found = _Results(_shared(work))
    for name, file, model in _models(work):
        for cased in _cases(name):
            found.by_case[cased][name] = _judge(work, model, name, users, found.shared[cased], cased=cased)
        if isinstance(model, NGramModel):
            size = work.read(file).stat().st_size
            found.sizes.append({"model": name, "ngrams": model.topology.arcs, "bytes": size})
        if name in (BASELINE, FINAL):
            found.suggestions[name] = _suggestions(model, language)
    told = {"split": config.split, "measured": work.measured + 1, **_summary(found, config, seed)}
    write_json(work.write("evaluation.json"), told)


def _models(work: Work) -> Iterator[tuple[str, str, Any]]:
    """Names, files and models, one model in memory at a time."""
    for file, name in evaluated(work.inputs).items():
        yield name, file, in_memory(work.read(file))


def _cases(name: str) -> tuple[bool, ...]:
    """Whether a model is measured without and with regard to capitals; one in lower case only without."""
    return (False,) if name in (UNCASED, NETWORK) else (False, True)


def _shared(work: Work) -> dict[bool, frozenset[str]]:
    """𝒱, by whether capitals count."""
    work.begin("Reading all vocabularies", None)
    words = {name: vocabulary_of(model) for name, _, model in _models(work)}
    return {
        cased: shared_words((v for name, v in words.items() if cased in _cases(name)), cased=cased)
        for cased in (False, True)
    }


def _judge(work: Work, model: Any, name: str, users: Users, shared: frozenset[str], *, cased: bool) -> Evaluation:
    advance, predictor = work.begin(f"Evaluating {name}", len(users)), as_predictor(model, cased=cased)
    return evaluate_model(predictor, users.population, users.clients, shared=shared, on_users=advance)


def _suggestions(model: NGramModel, language: str) -> dict[str, list[str]]:
    predictor = NGramPredictor(model, cased=True)
    return {text: [word for word, _ in predictor.suggest(text.split())] for text in EXAMPLES[language]}


def _summary(found: _Results, config: EvaluationSection, seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {"sizes": found.sizes}
    for cased, evaluations in found.by_case.items():
        options = config if not cased else replace(config, experiment=False)
        compared = Comparison.of(
            evaluations, options, shared=found.shared[cased], cased=cased, baseline=BASELINE, seed=seed
        )
        result["users"], result["words"] = compared.users, compared.words
        result["cased" if cased else "uncased"] = {
            "baseline": BASELINE, "final": FINAL, "shared_words": compared.shared_words, "outside": compared.outside,
            "models": compared.models,
        }  # fmt: skip
        if compared.experiment is not None:
            result["experiment"] = compared.experiment
    texts = found.suggestions[BASELINE]
    result["examples"] = [
        {"context": text, "suggestions": {name: by_text[text] for name, by_text in found.suggestions.items()}}
        for text in texts
    ]
    return result
