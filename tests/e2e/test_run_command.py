"""`fedgram run`: one command for the whole paper, that can be killed, resumed, shared out and refused."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chromium import CHROMIUM, Chromium

from fedgram.automata.build import ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.cli.main import run as run_command
from fedgram.core.compute import Compute
from fedgram.distill.distillation import Running, prepare_nn2wfa
from fedgram.distill.nn2wfa import NN2WFA, UncasedWordNN2WFA
from fedgram.distill.refit import refit as operation
from fedgram.distill.sources import as_source, pieces_of
from fedgram.formats.artefact import read_ngram
from fedgram.pipeline import refit_stage
from fedgram.pipeline.config import read_run_config
from fedgram.pipeline.stages import run_stages
from fedgram.pipeline.workspace import Work, open_workspace
from fedgram.privacy.accounting import compose
from fedgram.privacy.ledger import Entry
from fedgram.text.normalize import uncase

Command = Callable[..., Any]
pytestmark = pytest.mark.timeout(1200)  # the first run compiles

ONE = Compute("cpu", 1)
TINY = """
seed = 3
[population]
typists = 100
supplement_sentences = 600
[privacy]
min_devices = 2
[unigrams]
devices_per_round = 20
rounds = 4
[words]
preset = "W_demo"
[pieces]
size = 150
preset = "P_demo"
[words.pretraining]
epochs = 1
learning_rate = 0.01
rows = 16
[words.training]
rounds = 3
devices_per_round = 8
evaluate_every = 1
dev_users = 4
[pieces.pretraining]
epochs = 1
learning_rate = 0.01
rows = 16
[pieces.training]
rounds = 3
devices_per_round = 8
evaluate_every = 1
dev_users = 4
[external]
order = 2
[budget]
max_ngrams = 8000
max_words = 5000
[distillation]
samples = 200
infer_samples = 400
order = 3
[baselines]
order = 2
shares = [0.3, 0.5]
[evaluation]
buckets = 4
[clipping]
thresholds = [1, 1000]
"""
STAGES = [
    "population", "unigrams", "external", "pretrain_words", "train_words", "pieces", "pretrain_pieces",
    "train_pieces", "distill_words", "distill_pieces", "refit", "baselines", "final", "pack", "paper_words",
    "paper_pieces", "evaluation", "clipping", "report",
]  # fmt: skip


def digests(workspace: Path) -> dict[str, str]:
    """Of every file but the report, which says how long things took."""
    manifest = json.loads((workspace / "manifest.json").read_text())["artefacts"]
    return {
        name: about["sha256"]
        for stage, noted in manifest.items()
        if stage != "report"
        for name, about in noted["files"].items()
    }


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def done(config: Path) -> Path:
    """The workspace of a whole run with one worker; tests leave it as it is."""
    workspace = config.parent / "done"
    assert run_command(["run", str(config), "-w", str(workspace), "--workers", "1", "--json"]) == 0
    return workspace


def changed(config: Path, folder: Path, old: str, new: str) -> Path:
    text = config.read_text()
    assert old in text
    path = folder / "changed.toml"
    path.write_text(text.replace(old, new))
    return path


def copy(workspace: Path, folder: Path) -> Path:
    target = folder / "copy"
    subprocess.run(["cp", "-r", str(workspace), str(target)], check=True)
    return target


def test_a_run_makes_everything_and_a_second_one_nothing(done: Path, config: Path, fedgram: Command) -> None:
    manifest = json.loads((done / "manifest.json").read_text())["artefacts"]
    assert set(manifest) == set(STAGES)
    assert all((done / name).is_file() for noted in manifest.values() for name in noted["files"])
    assert (done / "lm.arpa").read_text("utf-8").startswith("\\data\\\n")
    again = fedgram("run", config, "-w", done, "--json")
    assert again["ran"] == []
    found = json.loads((done / "evaluation.json").read_text())
    names = {f"A_{by}_{letter}" for by in "WP" for letter in "eimr"}
    models = names | {"Refit", "Baseline", "Final model", "lm.fgram", "Pooled text", "Pooled + supplement"}
    models |= {f"{name} (paper)" for name in names}
    assert set(found["cased"]["models"]) == models
    assert set(found["uncased"]["models"]) == models | {"R_W (network)", "Refit (uncased)"}
    for by_case in ("uncased", "cased"):
        packed, full = (found[by_case]["models"][name]["top1"]["value"] for name in ("lm.fgram", "Final model"))
        assert packed == pytest.approx(full, abs=0.5)
    chosen = json.loads((done / "final.json").read_text())
    assert chosen["dev_top1"][chosen["chosen"]] == max(chosen["dev_top1"].values())
    assert {*names, "Refit", "Baseline"} <= set(chosen["dev_top1"])
    assert not chosen["baseline_is_best"]
    assert not any("(paper)" in name for name in chosen["dev_top1"])
    ours, printed = ((done / folder / "A_W_r.ngram").read_bytes() for folder in ("", "paper"))
    assert ours != printed
    assert again["better"] is (found["uncased"]["models"]["Final model"]["change"]["top1"]["ci95"][0] > 0)
    assert json.loads((done / "refit.json").read_text())["passes"][-1]["reports"] > 70
    for name in ("report.html", "report.md"):
        text = (done / "report" / name).read_text("utf-8")
        tables = "Table 1", "Table 2", "Table 3 (a)", "Table 3 (b)", "Table 4 (a)", "Table 4 (b)", "Privacy"
        figures = "Figure 2 (a)", "Figure 2 (b)", "Figure 4", "measured once by the stage evaluation and once by"
        for title in (*tables, *figures, "Refit (uncased)", " passes, each device sends marks in a sketch"):
            assert title in text
    assert not list((done / ".work").iterdir())


def test_the_report_of_a_run_elsewhere_needs_its_small_files_only(
    done: Path, tmp_path: Path, fedgram: Command, refused: Command
) -> None:
    for path in (*done.glob("*.json"), done / "run.toml"):
        shutil.copy(path, tmp_path)
    fedgram("report", tmp_path, "-o", tmp_path / "page")
    assert (tmp_path / "report" / "report.md").read_bytes() == (done / "report" / "report.md").read_bytes()
    assert (tmp_path / "page" / "report.md").is_file()
    shutil.rmtree(tmp_path / "report")
    (tmp_path / "evaluation.json").unlink()
    assert "evaluation.json: is missing" in refused("report", tmp_path, "-o", tmp_path / "page")


def test_a_small_change_runs_little(done: Path, config: Path, tmp_path: Path, fedgram: Command) -> None:
    workspace = copy(done, tmp_path)
    other = changed(config, tmp_path, "buckets = 4", "buckets = 5")
    plan = fedgram("run", other, "-w", workspace, "--dry-run", "--json")["stages"]
    assert [row["stage"] for row in plan] == STAGES
    assert [row["stage"] for row in plan if row["runs"]] == ["evaluation", "clipping", "report"]
    assert fedgram("run", other, "-w", workspace, "--json")["ran"] == ["evaluation", "clipping", "report"]
    assert json.loads((workspace / "evaluation.json").read_text())["measured"] == 2
    report = (workspace / "report" / "report.md").read_text("utf-8")
    assert "test users were measured 2 times by the stage evaluation and 2 times by the stage clipping" in report
    assert "its configuration changed" in fedgram("run", config, "-w", workspace, "--dry-run")


def test_without_the_papers_way(done: Path, config: Path, tmp_path: Path, fedgram: Command) -> None:
    workspace = copy(done, tmp_path)
    path = changed(config, tmp_path, "[baselines]", "[paper_way]\nrun = false\n[baselines]")
    assert fedgram("run", path, "-w", workspace, "--json")["ran"] == ["evaluation", "report"]
    assert digests(workspace)["final.ngram"] == digests(done)["final.ngram"]
    report = (workspace / "report" / "report.md").read_text("utf-8")
    assert "Table 3:" in report
    assert "(paper)" not in report


def test_a_dry_run_writes_nothing(config: Path, tmp_path: Path, fedgram: Command, refused: Command) -> None:
    plan = fedgram("run", config, "-w", tmp_path / "none", "--dry-run", "--until", "pieces", "--json")["stages"]
    assert [row["stage"] for row in plan] == STAGES[:6]
    assert not (tmp_path / "none").exists()
    assert {row["stage"] for row in plan if row["estimate"]} == {"pretrain_words", "train_words"}
    assert "about" in fedgram("run", config, "-w", tmp_path / "none", "--dry-run")
    assert "there is no stage 'last'" in refused("run", config, "-w", tmp_path / "none", "--dry-run", "--until", "last")


@pytest.mark.slow
def test_two_workers_make_the_same_bytes(done: Path, config: Path, tmp_path: Path, fedgram: Command) -> None:
    fedgram("run", config, "-w", tmp_path / "two", "--workers", 2, "--json")
    assert digests(tmp_path / "two") == digests(done)


@pytest.mark.parametrize("until", ["external", pytest.param("clipping", marks=pytest.mark.slow)])
def test_stages_side_by_side_make_the_same_bytes(
    done: Path, config: Path, tmp_path: Path, fedgram: Command, until: str
) -> None:
    fedgram("run", config, "-w", tmp_path / "w", "--stages-at-once", 3, "--until", until, "--json")
    assert digests(tmp_path / "w").items() <= digests(done).items()
    assert digests(tmp_path / "w").keys() >= {"users.population", "U.unigrams", "A_W.ngram"}


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_model(done: Path, config: Path, tmp_path: Path, kills: int) -> None:
    """Killed at random moments of random stages, then left to finish."""
    command = [sys.executable, "-m", "fedgram", "run", str(config), "-w", str(tmp_path / "w"), "--workers", "1"]
    moments = random.Random(5)
    for last in sorted(moments.sample(range(10), kills)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        while STAGES[last] not in (line := process.stderr.readline()):
            assert line, "the run ended by itself"
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()
    subprocess.run(command, check=True, capture_output=True)
    assert digests(tmp_path / "w") == digests(done)
    assert not list((tmp_path / "w" / ".work").iterdir())


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (1100, True), (390, False)])
def test_the_report_in_a_browser(done: Path, tmp_path: Path, width: int, dark: bool) -> None:
    page = (done / "report" / "report.html").resolve().as_uri()
    browser = Chromium(tmp_path / "profile", width=width, height=844, dark=dark)
    try:
        browser.open(page)
        browser.wait_for("document.images.length >= 3 && [...document.images].every(i => i.naturalWidth > 0)")
        browser.drain()
        assert browser.complaints == []
        assert [url for url in browser.requests if not url.startswith("data:")] == [page]
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
        headings = {name for role, name in browser.named() if role == "heading"}
        assert {"The paper's tables", "Figures", "Example predictions", "Privacy"} <= headings
        browser.screenshot(tmp_path / "report.png", whole=True)
        assert (tmp_path / "report.png").stat().st_size > 100_000
    finally:
        browser.close()


def test_without_a_refit_the_baseline_is_best(
    done: Path, config: Path, tmp_path: Path, fedgram: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Networks that were hardly trained give poor models; the run says so wherever people look."""
    workspace = copy(done, tmp_path)
    path = changed(config, tmp_path, "[baselines]", "[refit]\nrun = false\n[baselines]")
    result = fedgram("run", path, "-w", workspace, "--json")
    assert result["ran"][0] == "final"
    assert not result["better"]
    told = json.loads((workspace / "final.json").read_text())
    assert "Refit" not in told["dev_top1"]
    assert told["baseline_is_best"]
    assert told["chosen"].startswith("Baseline")
    assert "Refit" not in json.loads((workspace / "evaluation.json").read_text())["uncased"]["models"]
    report = (workspace / "report" / "report.md").read_text("utf-8").replace("\\", "")
    assert "devices send nothing more" in report
    assert run_command(["run", str(path), "-w", str(workspace)]) == 0
    printed = capsys.readouterr().err
    is_itself = told["chosen"] == "Baseline"
    expected = ("the baseline is the best model",) if is_itself else ("the baseline is the best model", "95 % interval")
    assert ("The final model is the baseline: no model from devices was better on" in report) == is_itself
    for warning, words in zip(result["warnings"], expected, strict=True):
        assert words in warning
        assert f"fedgram: WARNING: {warning}\n" in printed
        assert report.index(warning[1:]) < report.index("## How it was made")


def test_a_private_run_says_what_it_spent(
    done: Path, config: Path, tmp_path: Path, fedgram: Command, refused: Command
) -> None:
    """Word counts, the network and the counts of n-grams share the budget, and the report has the account."""
    private = '[privacy]\nprotection = "dp"\nepsilon = 2.0\ndelta = 1e-6\nsimulated = 10_000_000\nnoise_seed = 1\n'
    path = changed(config, tmp_path, "[privacy]\nmin_devices = 2\n", private)
    text = path.read_text().replace("size = 150", "size = 150\nuse = false") + "[paper_way]\nrun = false\n"
    path.write_text(text.replace("[words.training]", "[words.training]\nupdate_norm = inf"))
    assert "words.training.update_norm must be finite" in refused("run", path, "-w", tmp_path / "w")
    path.write_text(text)
    workspace = copy(done, tmp_path)
    ran = fedgram("run", path, "-w", workspace, "--json")["ran"]
    assert {"unigrams", "train_words", "refit", "report"} <= set(ran)
    told = [json.loads((workspace / f"{name}.json").read_text()) for name in ("unigrams", "R_W", "refit")]
    entries = [Entry.from_json(entry) for stage in told for entry in stage["ledger"]]
    assert [e.name for e in entries] == ["unigrams", "training of R_W", "n-gram counts"]
    assert all(e.spent == e.rounds and e.is_simulated for e in entries)
    assert compose([e.event for e in entries], 1e-6).epsilon == pytest.approx(2.0, rel=1e-6)
    assert "z" not in told[0]  # no convergence by rounds, whose sums have no noise
    assert told[1]["loss"] == [None] * 3
    report = (workspace / "report" / "report.md").read_text("utf-8").replace("\\", "")
    assert "ε = 2 at δ = 1e-06" in report
    assert "simulated population" in report
    assert "every count gets noise" in report
    assert "outside the account" in report
    assert not any("bytes_received" in told_of_pass for told_of_pass in told[2]["passes"])


def test_devices_are_asked_once(done: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refit that was interrupted goes on from the devices' counts."""
    c = read_run_config(config)
    inputs = {name: done / name for name in ("users.population", "A_W.ngram", "A_W_wide.ngram")}
    work = Work(None, tmp_path, inputs)
    refit_stage.refit(work, c.refit, c.privacy.of_ngrams, c.budget, c.seed)
    (tmp_path / "refit.ngram").unlink()
    monkeypatch.setattr(operation, "count_on_devices", None)
    refit_stage.refit(work, c.refit, c.privacy.of_ngrams, c.budget, c.seed)
    assert (tmp_path / "refit.ngram").read_bytes() == (done / "refit.ngram").read_bytes()
    cased, uncased = (read_ngram(done / name) for name in ("refit.ngram", "refit_uncased.ngram"))
    assert max(cased.topology.arcs, uncased.topology.arcs) <= c.budget.max_ngrams
    assert all(uncase(word) == word for word in uncased.vocabulary.words)
    assert {uncase(word) for word in cased.vocabulary.words} == set(uncased.vocabulary.words)


def test_artefacts_from_elsewhere(done: Path, config: Path, tmp_path: Path, fedgram: Command, refused: Command) -> None:
    given = f"""
[unigrams]
counts = "{done}/U.unigrams"
[words]
network = "{done}/R_W.safetensors"
[pieces]
model = "{done}/pieces.model"
network = "{done}/R_P.safetensors"
"""
    old = TINY[TINY.index("[unigrams]") : TINY.index("[words.pretraining]")]
    path, workspace = changed(config, tmp_path, old, given), tmp_path / "w"
    ran = fedgram("run", path, "-w", workspace, "--until", "final", "--json")["ran"]
    assert not [name for name in ran if name.startswith("pretrain")]
    assert digests(workspace)["final.ngram"] == digests(done)["final.ngram"]
    other = path.read_text().replace(f'counts = "{done}/U.unigrams"', "rounds = 1\ndevices_per_round = 3")
    path.write_text(other)
    line = refused("run", path, "-w", workspace, "--json")
    assert "R_W.safetensors: " in line
    assert "among the run's most frequent unigrams; name the ones it was trained with: unigrams.counts" in line
    assert digests(workspace)["final.ngram"] == digests(done)["final.ngram"]
    path.write_text(other.replace("R_W.safetensors", "R_P.safetensors"))
    assert "is a network of word pieces, not of words" in refused("run", path, "-w", workspace, "--json")


def test_counting_elsewhere_and_before(done: Path, config: Path, tmp_path: Path, fedgram: Command) -> None:
    """Counts of both networks by a script; those by word pieces need the inferred n-grams, and no fitted model."""
    workspace = copy(done, tmp_path)
    path = changed(config, tmp_path, "infer_samples = 400", "infer_samples = 400\nuncased_first = true")
    c = read_run_config(path)
    stages = {stage.name: stage for stage in run_stages(c)}
    words, pieces = stages["distill_words"], stages["distill_pieces"]
    with open_workspace(workspace) as space:
        work = Work(None, space.place(words), {name: workspace / name for name in (*words.inputs, *pieces.inputs)})
    work.folder.mkdir(parents=True)
    A_W = read_ngram(workspace / "A_W.ngram")

    def prepared(network: str, folder: Path, inferred: NGramModel | None) -> tuple[NN2WFA, NGramModel]:
        source = as_source(workspace / network, ONE)
        return prepare_nn2wfa(
            source, A_W, c.distillation, inferred=inferred, budget=c.budget, pieces=pieces_of(source, None),
            seed=c.seed, running=Running(ONE, folder=folder),
        )  # fmt: skip

    nn2wfa, inferred = prepared("R_W.safetensors", work.folder, None)
    assert isinstance(nn2wfa, UncasedWordNN2WFA)
    assert nn2wfa.counts
    before = prepared("R_P.safetensors", tmp_path, read_ngram(work.write("inferred.ngram")))[0].counts
    assert fedgram("run", path, "-w", workspace, "--until", "distill_words", "--json")["ran"] == ["distill_words"]
    A_W_i = read_ngram(workspace / "A_W_i.ngram")
    assert np.array_equal(ngrams_of(A_W_i.topology).values, ngrams_of(inferred.topology).values)
    assert A_W_i.vocabulary.digest == inferred.vocabulary.digest
    assert {uncase(word) for word in A_W_i.vocabulary.words} != set(A_W_i.vocabulary.words)
    after = prepared("R_P.safetensors", tmp_path, A_W_i)[0].counts  # resumes from the same checkpoint, or is refused
    assert np.array_equal(after.counts.arc, before.counts.arc)
    with open_workspace(workspace) as space:
        (place := space.place(pieces)).mkdir(parents=True)
    (tmp_path / "counts").rename(place / "counts")
    ran = fedgram("run", path, "-w", workspace, "--until", "distill_pieces", "--json")["ran"]
    assert ran == ["distill_pieces"]
    assert not place.exists()


def test_a_full_disk_leaves_a_workspace_to_go_on_with(done: Path, config: Path, tmp_path: Path) -> None:
    workspace, size = copy(done, tmp_path), (done / "R_P_start.safetensors").stat().st_size
    for name in ("R_P_start.safetensors", "R_P.safetensors"):
        (workspace / name).unlink()
    before = (workspace / "manifest.json").read_bytes()
    command = [sys.executable, "-m", "fedgram", "run", str(config), "-w", str(workspace)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, size - 1000))

    failed = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert [line for line in failed.stderr.splitlines() if line.startswith("fedgram: ")] == [
        failed.stderr.splitlines()[-1]
    ]
    assert "R_P_start.safetensors: file too large; in the stage " in failed.stderr
    assert "Traceback" not in failed.stderr
    assert (workspace / "manifest.json").read_bytes() == before
    subprocess.run(command, check=True, capture_output=True)
    assert digests(workspace) == digests(done)


def test_two_runs_at_once_and_no_room_to_write(done: Path, config: Path, tmp_path: Path, refused: Command) -> None:
    with open_workspace(done):
        assert "is in use by another run" in refused("run", config, "-w", done)
    assert "/sys/fedgram" in refused("run", config, "-w", "/sys/fedgram")
    (tmp_path / "file").touch()
    assert "is not a folder" in refused("run", config, "-w", tmp_path / "file")


@contextmanager
def _as_somebody(*folders: Path) -> Iterator[None]:
    """Root may write anywhere, so it is somebody else for a while, who may look into these folders."""
    root = os.geteuid() == 0
    for folder in {parent for path in folders for parent in (path, *path.parents)} if root else ():
        if folder.owner() == "root" and folder.is_relative_to(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o005)
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_read_only_workspace(done: Path, config: Path, tmp_path: Path, refused: Command) -> None:
    workspace = copy(done, tmp_path)
    workspace.chmod(0o555)
    refused("run", config, "--until", "none", "-w", tmp_path / "other")  # imports what it needs, as itself
    with _as_somebody(workspace, config.parent):
        told = refused("run", config, "-w", workspace)
    workspace.chmod(0o755)
    assert "permission denied" in told
    assert digests(workspace) == digests(done)


def test_configurations_that_are_refused(config: Path, tmp_path: Path, refused: Command) -> None:
    workspace = tmp_path / "w"
    wrong = changed(config, tmp_path, "rounds = 3", "round = 3")
    line = f"{wrong}: unknown key words.training.round; did you mean words.training.rounds?"
    assert refused("run", wrong, "-w", workspace) == line
    assert "names a file that is not there: users.parquet; give it with --users" in refused(
        "run", "en_us", "-w", workspace
    )
    assert "no such file or preset" in refused("run", tmp_path / "none.toml", "-w", workspace)
    assert refused("run", "enus", "-w", workspace) == "enus: no such file or preset; presets are demo, en_us, pt_br"
    wrong = changed(config, tmp_path, 'preset = "W_demo"', 'preset = "P_demo"')
    assert "words.preset must be one of 'W_30K', 'W_8K', 'W_demo', not" in refused("run", wrong, "-w", workspace)
    wrong = changed(config, tmp_path, "typists = 100", "typists = 2")
    assert "has no users in the split" in refused("run", wrong, "-w", workspace)
    assert not (workspace / "users.population").exists()


def test_too_few_users_for_an_experiment(config: Path, tmp_path: Path, fedgram: Command, refused: Command) -> None:
    few, workspace = changed(config, tmp_path, "typists = 100", "typists = 40"), tmp_path / "w"
    line = refused("run", few, "-w", workspace, "--workers", 1, "--json")  # without a line per stage
    assert "needs at least 4 users, and the split test has 3; add users, or set evaluation.experiment = false" in line
    assert not (workspace / "U.unigrams").exists()
    assert fedgram("run", few, "-w", workspace, "--until", "unigrams", "--json")["ran"] == ["unigrams"]


def test_presets_are_shown(fedgram: Command) -> None:
    assert "[population]" in fedgram("run", "--print-preset", "pt_br")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_portuguese_demo(tmp_path: Path, fedgram: Command) -> None:
    began = time.monotonic()
    fedgram("demo", "--language", "pt_br", "-w", tmp_path / "w", "--json")
    found = json.loads((tmp_path / "w" / "evaluation.json").read_text())["uncased"]["models"]
    assert found["Final model"]["change"]["top1"]["ci95"][0] > 0
    assert time.monotonic() - began < 1500
