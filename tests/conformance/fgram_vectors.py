"""Conformance vectors for readers of `lm.fgram`: models and, in JSON, what a reader must answer.

python -m tests.conformance.fgram_vectors FOLDER

writes `<name>.fgram` and `<name>.json` for every model, and `refused/*.fgram`, which a reader must not open.
Log-probabilities agree within 1e-6; words and states exactly.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.reference.random_models import random_model, random_sentences, vocabulary

from fedgram.automata.build import count_ngrams
from fedgram.automata.model import NGramModel
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.fgram.frame import HEADER_BYTES
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary


def models() -> dict[str, NGramModel]:
    """Generated English and Portuguese, a wide one with three tiers and blocks, and small odd ones."""
    result = {}
    for language in ("en_us", "pt_br"):
        sentences = list(SyntheticPopulation(language, seed=5).clean_sentences(3000))
        names = Vocabulary.of(word for sentence in sentences for word in sentence)
        text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
        result[language] = smooth(count_ngrams(text, names, order=3), "modified-kneser-ney")
    rng = np.random.default_rng(1)
    text = random_sentences(rng, words=6000, sentences=6000, length=20)
    text = Ragged(np.where(rng.random(len(text.values)) < 0.3, 3, text.values).astype(np.int32), text.offsets)
    result["wide"] = smooth(count_ngrams(text, vocabulary(6000), order=3), "kneser-ney")
    for order in (1, 2, 4):
        result[f"order_{order}"] = random_model(np.random.default_rng(order), order=order)
    return result


def vectors(ours: PackedModel, rng: np.random.Generator) -> dict[str, Any]:
    """What a reader must answer of this model."""
    words = ours.words
    contexts = [
        [words[i] for i in np.minimum(rng.geometric(0.01, rng.integers(0, 5)) + 2, len(words) - 1)] for _ in range(40)
    ]
    contexts += [["unheard-of", words[3]], [words[3].upper(), words[-1]]]
    steps = []
    for context in contexts:
        state, rows = ours.state(), []
        for word in [*context, "</s>"]:
            log_p, state = ours.step(state, ours.word_id(word))
            rows.append([word, log_p if np.isfinite(log_p) else None, state[1 : 1 + 2 * state[0] : 2].tolist()])
        steps.append(rows)
    typed = ["", "a", "th", "nao", "w1", "I", "don", "ZZZ", "☃"]
    predictions = [
        [context, prefix, 5, [[p.word, p.log_p] for p in ours.predict(context, 5, prefix)]]
        for context in contexts[::4]
        for prefix in typed
    ]
    sampled = sorted({*range(3), *rng.integers(0, len(words), 50).tolist(), len(words) - 1})
    return {"words": [[i, words[i]] for i in sampled], "steps": steps, "predictions": predictions}


def write_vectors(folder: Path) -> None:
    """Write all models, vectors and files to refuse."""
    for name, model in models().items():
        pack(model, folder / f"{name}.fgram")
        content = vectors(open_model(folder / f"{name}.fgram"), np.random.default_rng(0))
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False))
    (folder / "refused").mkdir(exist_ok=True)
    whole, rng = (folder / "order_2.fgram").read_bytes(), np.random.default_rng(0)
    for place in [*range(0, HEADER_BYTES, 5), *rng.integers(HEADER_BYTES, len(whole), 50).tolist()]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (folder / "refused" / f"flipped-{place}.fgram").write_bytes(flipped)
    for size in (0, 4, 7, 8, 400, HEADER_BYTES, len(whole) // 16 * 8, len(whole) - 8, len(whole) - 1):
        (folder / "refused" / f"cut-{size}.fgram").write_bytes(whole[:size])


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write_vectors(Path(sys.argv[1]))
