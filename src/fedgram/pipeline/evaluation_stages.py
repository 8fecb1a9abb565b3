"""The stage that measures all models on held-out users or devices (§7.2), with and without regard to capitals.

Perplexity and SLL^e are over one list of words for all models, 𝒱: those that every model has. There is one list for
each regard to capitals. `clipping_stage` measures Table 1.
"""

from collections.abc import Mapping
from typing import Any

from fedgram.automata.model import NGramModel
from fedgram.evaluate.comparison import Comparison
from fedgram.evaluate.models import in_memory
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.pipeline.config import EvaluationSection
from fedgram.pipeline.judges import ByUsers, Judges
from fedgram.pipeline.model_names import BASELINE, FINAL, NETWORK, evaluated
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work

EXAMPLES = {
    "en_us": ("how are", "see you", "i am so", "do you want", "what time is", "thank you", "can you", "i'll be"),
    "pt_br": ("tudo", "eu vou", "muito", "você quer", "que horas", "bom", "a gente se vê", "não sei"),
}  # fmt: skip


def evaluation(
    work: Work, config: EvaluationSection, language: str, seed: int, *, judges: Judges | None = None
) -> None:
    """Every model on the split's users, or on the devices of this arm, with and without regard to capitals."""
    judges = judges or ByUsers()
    files = {name: work.read(file) for file, name in evaluated(work.inputs).items()}
    sizes, suggestions = [], dict[str, dict[str, list[str]]]()
    for name, path in files.items():
        if name != NETWORK:
            model = in_memory(path)
            sizes.append({"model": name, "ngrams": model.topology.arcs, "bytes": path.stat().st_size})
            if name in (BASELINE, FINAL):
                suggestions[name] = _suggestions(model, language)
    compared = judges.evaluate(work, files, config, seed)
    told = {"split": config.split, "measured": work.measured + 1, "measured_on": judges.whom, "sizes": sizes}
    write_json(work.write("evaluation.json"), {**told, **_summary(compared), "examples": _examples(suggestions)})


def _suggestions(model: NGramModel, language: str) -> dict[str, list[str]]:
    predictor = NGramPredictor(model, cased=True)
    return {text: [word for word, _ in predictor.suggest(text.split())] for text in EXAMPLES[language]}


def _summary(compared: Mapping[bool, Comparison]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for cased, found in compared.items():
        result["users"], result["words"] = found.users, found.words
        result["cased" if cased else "uncased"] = {
            "baseline": BASELINE, "final": FINAL, "shared_words": found.shared_words, "outside": found.outside,
            "models": found.models,
        }  # fmt: skip
        if found.experiment is not None:
            result["experiment"] = found.experiment
    return result


def _examples(suggestions: Mapping[str, Mapping[str, list[str]]]) -> list[dict[str, Any]]:
    return [
        {"context": text, "suggestions": {name: by_text[text] for name, by_text in suggestions.items()}}
        for text in suggestions[BASELINE]
    ]
