"""Models as targets: ARPA, OpenFst, `.ngram`, `.fgram` in Python and JavaScript, and personal words."""

import select
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.fuzz.mutations import mutate_artefact, mutate_bytes, mutate_fgram, mutate_json, mutate_text
from tests.fuzz.registry import target
from tests.reference.random_models import random_model

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.formats.models import read_model, write_model


def model_files(suffix: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        path = folder / f"seed{suffix}"
        write_model(random_model(np.random.default_rng(1), order=3), path)
        return [path.read_bytes()]

    return make


@target(".arpa", mutate_text, model_files(".arpa"))
def arpa(path: Path) -> None:
    read_model(path)


@target(".arpa.gz", mutate_bytes, model_files(".arpa.gz"))
def arpa_gz(path: Path) -> None:
    read_model(path)


@target(".ngram", mutate_artefact, model_files(".ngram"))
def ngram(path: Path) -> None:
    write_model(read_model(path), path.with_name("out.arpa"))


@target(".fst", mutate_bytes, model_files(".fst"), needs="pywrapfst")
def fst(path: Path) -> None:
    read_model(path)


def other_automata(folder: Path) -> list[bytes]:
    import pywrapfst

    model_files(".fst")(folder)
    automaton, found = pywrapfst.Fst.read(str(folder / "seed.fst")), []
    for kind in ("const", "compact_acceptor"):
        pywrapfst.convert(automaton, kind).write(str(folder / "other.fst"))
        found.append((folder / "other.fst").read_bytes())
    return found


@target(".fst", mutate_bytes, other_automata, share=0.001, needs="pywrapfst")
def other_fst(path: Path) -> None:
    read_model(path)


def packed_files(folder: Path) -> list[bytes]:
    from tests.conformance.fgram_vectors import models

    found = []
    for model in (random_model(np.random.default_rng(1), order=3), models()["en_us"]):
        pack(model, folder / "seed.fgram")
        found.append((folder / "seed.fgram").read_bytes())
    return found


@target(".fgram", mutate_fgram, packed_files)
def fgram(path: Path) -> None:
    model = open_model(path)
    _ = model.words, model.log_unigrams()
    for context, prefix in ((["i", "am"], ""), ([], "th")):
        model.predict(context, 5, prefix)
    model.word_id("hello")
    ids = np.random.default_rng(0).integers(0, len(model.words), 60).astype(np.int32)
    model.log_probs(Ragged(ids, np.arange(0, 61, 6)))
    _ = model.unpacked


def personal_seeds(folder: Path) -> list[bytes]:
    (folder / "base.fgram").write_bytes(packed_files(folder)[0])
    return [b'{"fedgram-personal": 1, "words": {"a": 1.0, "zorb": 2}, "pairs": {"<s>": {"a": 1}}}']


@target(".json", mutate_json, personal_seeds)
def personal_words(path: Path) -> None:
    from fedgram.keyboard.personal import PersonalModel

    personal = PersonalModel(open_model(path.with_name("base.fgram"), verify=False))
    personal.load_json(path.read_text("utf-8", errors="surrogateescape"))
    personal.predict(["a"], 3)
    personal.to_json()


class _Node:
    """The readers in JavaScript, in a process of Node that stays."""

    process: "subprocess.Popen[str] | None" = None

    def read(self, path: Path) -> None:
        if self.process is None or self.process.poll() is not None:
            script = Path(__file__).with_name("javascript_reader.mjs")
            command = ["node", "--max-old-space-size=1024", str(script), str(path.with_name("base.fgram"))]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = self.process
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], 10.0)
        answer = process.stdout.readline().strip() if ready else "hangs"
        if answer == "refused":
            raise FedgramError("refused")
        if answer != "read":
            process.kill()
            raise RuntimeError(f"JavaScript: {answer or 'the process ended'}")


_node = _Node()


def javascript_seeds(folder: Path) -> list[bytes]:
    seeds = packed_files(folder)
    (folder / "base.fgram").write_bytes(seeds[0])
    (folder / "first.fgram").write_bytes(seeds[0])
    _node.read(folder / "first.fgram")
    return seeds


@target(".fgram", mutate_fgram, javascript_seeds, share=0.3, needs="node")
def javascript_fgram(path: Path) -> None:
    _node.read(path)


def javascript_personal_seeds(folder: Path) -> list[bytes]:
    javascript_seeds(folder)
    return personal_seeds(folder)


@target(".json", mutate_json, javascript_personal_seeds, share=0.3, needs="node")
def javascript_personal_words(path: Path) -> None:
    _node.read(path)
