"""The stages that measure: all models on held-out users (§7.2), and the effect of clipping (Table 1)."""

from dataclasses import dataclass, field, replace
from typing import Any

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.distill.algorithm1 import final_models
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.evaluate.comparison import Comparison
from fedgram.evaluate.evaluation import Evaluation, evaluate_model
from fedgram.evaluate.models import as_predictor, load_model
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.predictor import Predictor
from fedgram.evaluate.summary import summarize
from fedgram.federated.collect_unigrams import UnigramOptions, collect_unigrams
from fedgram.fgram.pack import unpack_model
from fedgram.fgram.reader import PackedModel
from fedgram.formats.artefact import read_ngram
from fedgram.pipeline.config import ClippingSection, EvaluationSection
from fedgram.pipeline.model_stages import UNCASED, candidates
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Users, open_population
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


def evaluation(work: Work, config: EvaluationSection, language: str, seed: int) -> None:
    """Every model on the split's users, with and without regard to capitals."""
    users, found = open_population(work.read("users.arrow")).users(config.split), _Results()
    known = NAMES | candidates(work.inputs)
    models = {known[file]: file for file in work.inputs if file in known}
    for name, file in models.items():
        model = load_model(work.read(file))
        if file.endswith(".safetensors"):
            found.by_case[False][name] = _judge(work, as_predictor(model, cased=False), name, users)
            continue
        model = unpack_model(model) if isinstance(model, PackedModel) else model
        size = work.read(file).stat().st_size
        found.sizes.append({"model": name, "ngrams": model.topology.arcs, "bytes": size})
        for cased in (False, True) if name != UNCASED else (False,):
            found.by_case[cased][name] = _judge(work, as_predictor(model, cased=cased), name, users)
        if name in (BASELINE, FINAL):
            found.suggestions[name] = _suggestions(model, language)
    write_json(work.write("evaluation.json"), _summary(found, config, seed))


def _judge(work: Work, predictor: Predictor, name: str, users: Users) -> Evaluation:
    advance = work.begin(f"Evaluating {name}", len(users))
    return evaluate_model(predictor, users.population, users.clients, on_users=advance)


def _suggestions(model: NGramModel, language: str) -> dict[str, list[str]]:
    predictor = NGramPredictor(model, cased=True)
    return {text: [word for word, _ in predictor.suggest(text.split())] for text in EXAMPLES[language]}


def _summary(found: _Results, config: EvaluationSection, seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {"split": config.split, "sizes": found.sizes}
    for cased, evaluations in found.by_case.items():
        options = config if not cased else replace(config, experiment=False)
        compared = Comparison.of(evaluations, options, cased=cased, baseline=BASELINE, seed=seed)
        result["users"], result["words"] = compared.users, compared.words
        result["cased" if cased else "uncased"] = {"baseline": BASELINE, "final": FINAL, "models": compared.models}
        if compared.experiment is not None:
            result["experiment"] = compared.experiment
    texts = found.suggestions[BASELINE]
    result["examples"] = [
        {"context": text, "suggestions": {name: by_text[text] for name, by_text in found.suggestions.items()}}
        for text in texts
    ]
    return result


def clipping(
    work: Work, config: ClippingSection, unigrams: UnigramOptions, budget: Budget, evaluating: EvaluationSection,
    seed: int,
) -> None:  # fmt: skip
    """The baseline with the unigrams of devices in place of its own, by λ."""
    people, whitelist = open_population(work.read("users.arrow")), read_vocabulary(work.read("whitelist.txt"))
    users = people.users(evaluating.split)
    baseline, capitalizer = read_ngram(work.read("baseline.ngram")), Capitalizer(read_ngram(work.read("A_W.ngram")))
    U = read_unigram_counts(work.read("U.unigrams"))
    old = _judge(work, as_predictor(baseline, cased=False), BASELINE, users)
    rows = []
    for clip in config.thresholds:
        options = replace(unigrams, clip=clip)
        counts = (
            U if U.clip == clip else collect_unigrams(people.train, whitelist, options, seed=seed, begin=work.begin)
        )
        model = final_models(baseline, counts.frequency(), capitalizer, budget)["replaced"]
        new = _judge(work, as_predictor(model, cased=False), f"λ = {clip:g}", users)
        change = summarize(new, old, buckets=evaluating.buckets)["change"]
        rows.append({"clip": None if clip == float("inf") else clip, "change": change})
    write_json(work.write("clipping.json"), {"baseline": summarize(old, buckets=evaluating.buckets), "rows": rows})
