"""The stages that measure: all models on held-out users (§7.2), and the effect of clipping (Table 1)."""

from dataclasses import dataclass, field
from typing import Any

from fedgram.automata.model import NGramModel
from fedgram.distill.algorithm1 import Budget, final_models
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.evaluate.evaluation import Evaluation, evaluate
from fedgram.evaluate.models import open_predictor
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.predictor import Predictor
from fedgram.evaluate.summary import summarize, summarize_experiment
from fedgram.fgram.pack import unpack_model
from fedgram.fgram.reader import open_model
from fedgram.formats.artefact import read_ngram
from fedgram.pipeline.config import BudgetConfig, ClippingConfig, EvaluationConfig, UnigramsConfig
from fedgram.pipeline.model_stages import UNCASED, candidates
from fedgram.pipeline.text_stages import collect, write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Population, open_population
from fedgram.text.unigrams import read_unigram_counts
from fedgram.text.vocabulary import read_vocabulary

BASELINE, FINAL, PACKED, POOLED, MIXED = "Baseline", "Final model", "lm.fgram", "Pooled text", "Pooled + supplement"
NAMES = {
    "baseline.ngram": BASELINE, "final.ngram": FINAL, "lm.fgram": PACKED, "pooled.ngram": POOLED,
    "interpolated.ngram": MIXED, "R_W.safetensors": "R_W (network)",
}  # fmt: skip
EXAMPLES = {
    "en_us": ("how are", "see you", "i am so", "do you want", "what time is", "thank you", "can you", "i'll be"),
    "pt_br": ("tudo", "eu vou", "muito", "você quer", "que horas", "bom", "a gente se vê", "não sei"),
}  # fmt: skip


@dataclass(slots=True)
class _Results:
    """What was found, by whether capitals count."""

    by_case: dict[bool, dict[str, Evaluation]] = field(default_factory=lambda: {False: {}, True: {}})
    sizes: list[dict[str, Any]] = field(default_factory=list)
    suggestions: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def evaluation(work: Work, config: EvaluationConfig, language: str, seed: int) -> None:
    """Every model on the split's users, with and without regard to capitals."""
    people, found = open_population(work.read("users.arrow")), _Results()
    known = NAMES | candidates(work.inputs)
    models = {known[file]: file for file in work.inputs if file in known}
    for name, file in models.items():
        if file.endswith(".safetensors"):
            network = open_predictor(work.read(file), cased=False)
            found.by_case[False][name] = _judge(work, network, name, people, config.split)
            continue
        model = unpack_model(open_model(work.read(file))) if file == "lm.fgram" else read_ngram(work.read(file))
        size = work.read(file).stat().st_size
        found.sizes.append({"model": name, "ngrams": model.topology.arcs, "bytes": size})
        for cased in (False, True) if name != UNCASED else (False,):
            predictor = NGramPredictor(model, cased=cased)
            found.by_case[cased][name] = _judge(work, predictor, name, people, config.split)
        if name in (BASELINE, FINAL):
            found.suggestions[name] = _suggestions(model, language)
    write_json(work.write("evaluation.json"), _summary(found, config, seed))


def _judge(work: Work, predictor: Predictor, name: str, people: Population, split: str) -> Evaluation:
    clients = people.clients(split)
    return evaluate(predictor, people, clients, on_users=work.begin(f"Evaluating {name}", len(clients)))


def _suggestions(model: NGramModel, language: str) -> dict[str, list[str]]:
    predictor = NGramPredictor(model, cased=True)
    return {text: [word for word, _ in predictor.suggest(text.split())] for text in EXAMPLES[language]}


def _summary(found: _Results, config: EvaluationConfig, seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {"split": config.split, "sizes": found.sizes}
    for cased, evaluations in found.by_case.items():
        old = evaluations[BASELINE]
        result["users"], result["words"] = len(old.client_ids), old.words
        models = {
            name: summarize(e, None if e is old else old, buckets=config.buckets) for name, e in evaluations.items()
        }
        result["cased" if cased else "uncased"] = {"baseline": BASELINE, "final": FINAL, "models": models}
    if config.experiment:
        first = found.by_case[False]
        others = {name: e for name, e in first.items() if name != BASELINE}
        result["experiment"] = summarize_experiment(first[BASELINE], others, seed=seed, buckets=config.buckets)
    texts = found.suggestions[BASELINE]
    result["examples"] = [
        {"context": text, "suggestions": {name: by_text[text] for name, by_text in found.suggestions.items()}}
        for text in texts
    ]
    return result


def clipping(
    work: Work, config: ClippingConfig, unigrams: UnigramsConfig, budget: BudgetConfig,
    evaluating: EvaluationConfig, seed: int,
) -> None:  # fmt: skip
    """The baseline with the unigrams of devices in place of its own, by λ."""
    people, whitelist = open_population(work.read("users.arrow")), read_vocabulary(work.read("whitelist.txt"))
    baseline, capitalizer = read_ngram(work.read("baseline.ngram")), Capitalizer(read_ngram(work.read("A_W.ngram")))
    U, limit = read_unigram_counts(work.read("U.unigrams")), Budget(budget.ngrams, budget.words)
    old = _judge(work, NGramPredictor(baseline, cased=False), BASELINE, people, evaluating.split)
    rows = []
    for clip in config.thresholds:
        counts = U if U.clip == clip else collect(work, people, whitelist, unigrams, clip, seed)[0]
        model = final_models(baseline, counts.frequency(), capitalizer, limit)["replaced"]
        new = _judge(work, NGramPredictor(model, cased=False), f"λ = {clip:g}", people, evaluating.split)
        change = summarize(new, old, buckets=evaluating.buckets)["change"]
        rows.append({"clip": None if clip == float("inf") else clip, "change": change})
    write_json(work.write("clipping.json"), {"baseline": summarize(old, buckets=evaluating.buckets), "rows": rows})
