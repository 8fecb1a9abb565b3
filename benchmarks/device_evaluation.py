"""Evaluation on devices: bytes and seconds for one device that scores models on 200 typed words.

    python -m benchmarks.device_evaluation

Two packed n-gram models of about 3.5 MB, trained on generated text, and a network of the shape W_30K with random
weights, whose time does not depend on them. A device's seconds are the processor time of a process that gets the bytes
of the broadcast, reads the models, scores the text and makes the bytes of its report; kernels are compiled before.
Masked bytes are those of a cohort of 20, both ways, without the models.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.generated_text import write_text
from benchmarks.measure import ROOT, save

from fedgram.automata.prune import prune_to_size
from fedgram.automata.training import NGramOptions, train
from fedgram.evaluate.on_devices import evaluate_on_devices
from fedgram.evaluate.scoring_task import ScoringTask
from fedgram.evaluate.sent_model import SentModel
from fedgram.federated.task import device_stream
from fedgram.federated.wire import record_from_bytes, record_to_bytes, update_to_bytes
from fedgram.fgram.pack import pack
from fedgram.neural.network import Network, write_network
from fedgram.text.corpus import read_corpus
from fedgram.text.population import Population, population_from_messages

WORDS, TYPED, COHORT, NGRAMS = 3_000_000, 200, 20, (1_290_000, 1_250_000)
SETS = {
    "one .fgram": ("a.fgram",),
    "two .fgram": ("a.fgram", "b.fgram"),
    "W_30K": ("W_30K.safetensors",),
    "two .fgram and W_30K": ("a.fgram", "b.fgram", "W_30K.safetensors"),
}


def write_models(folder: Path) -> None:
    """Two packed models and a network."""
    text = read_corpus([write_text(folder / "train.txt", WORDS)])
    whole = train(text, NGramOptions(smoothing="modified-kneser-ney"))
    for name, ngrams in zip(("a.fgram", "b.fgram"), NGRAMS, strict=True):
        pack(prune_to_size(whole, ngrams), folder / name)
    frequency = {word: float(30_000 - i) for i, word in enumerate(text.vocabulary.words[3:30_000])}
    write_network(folder / "W_30K.safetensors", Network.create("W_30K", frequency, seed=1))


def people(folder: Path) -> Population:
    """A cohort of devices with 200 words each."""
    lines = write_text(folder / "typed.txt", TYPED * COHORT, seed=2).read_text().split()
    rows = [
        (f"{d:03d}", " ".join(lines[i : i + 8])) for d in range(COHORT) for i in range(d * TYPED, (d + 1) * TYPED, 8)
    ]
    return population_from_messages((user, text, "test") for user, text in rows)


def task_of(folder: Path, names: tuple[str, ...]) -> ScoringTask:
    return ScoringTask.of([SentModel.of(folder / name) for name in names], cased=False, arm="test", clip=1e5)


def report(folder: Path, names: tuple[str, ...]) -> dict[str, float]:
    """What one device does, in this process."""
    here, own = task_of(folder, names), people(folder)
    sent, settings = record_to_bytes(here.broadcast(here.init())), here.settings()
    seconds = []
    for _ in range(2):  # the first time, kernels are compiled or loaded
        there, began = ScoringTask.from_settings(settings), time.process_time()
        data = own.load(0, there.encode(own.words))
        update = update_to_bytes(there.client_update(record_from_bytes(sent), data, device_stream(1, 1, 0)))
        seconds.append(time.process_time() - began)
    return {"down": len(sent), "up": len(update), "numbers": sum(here.size.values()), "seconds": seconds[-1]}


def in_a_process(folder: Path, kind: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.device_evaluation", str(folder), kind]
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **single}, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def masked_bytes(folder: Path) -> float:
    """Bytes of a device both ways in a masked round of one model, without the model."""
    found = evaluate_on_devices(
        folder / "a.fgram", people(folder).test, devices_per_round=COHORT, secure_aggregation=True, dropout=0.0,
        over_selection=1.0,
    )  # fmt: skip
    assert found.progress is not None
    tally = found.progress.tally
    return (tally.bytes_received + tally.bytes_sent) / tally.reports


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        masked, rows = masked_bytes(folder), list[dict[str, object]]()
        for kind in SETS:
            found = in_a_process(folder, kind)
            rows.append(
                {
                    "models": kind, "MB down": found["down"] / 1e6, "bytes up, plain": found["up"],
                    "numbers to mask": found["numbers"],
                    "kB both ways, masked": (masked + 7 * (found["numbers"] - 15)) / 1e3,
                    "seconds": found["seconds"],
                }
            )  # fmt: skip
    save("device_evaluation", rows)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(report(Path(sys.argv[1]), SETS[sys.argv[2]])))
    else:
        main()
