"""The comparisons with other programs on a tiny model, whether these are installed or not."""

from typing import Any

import numpy as np
import pytest
from benchmarks import automata_peers, keyboard_peers, ngram_peers, training_peers
from benchmarks.ngram_peers import Material, arpa_size, make_material
from benchmarks.presage_queries import library
from benchmarks.side_by_side import Missing, Row

from fedgram.automata.model import NGramModel
from fedgram.automata.training import train
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.formats.models import write_model
from fedgram.text.corpus import read_corpus


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(tmp_path_factory.mktemp("peers"), 3_000)


@pytest.fixture(scope="module")
def model(material: Material) -> NGramModel:
    trained = train(read_corpus([material.text]), order=3, smoothing="modified-kneser-ney")
    write_model(trained, material.middle)
    pack(trained, material.packed)
    return trained


def missing(*_: Any) -> Any:
    raise Missing("install it")


def figures(rows: list[Row]) -> dict[tuple[object, object], object]:
    return {(row["task"], row["peer"]): row["its figure"] for row in rows}


def test_without_kenlm_its_rows_say_so(material: Material, model: NGramModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_peers, "kenlm", missing)
    notes: list[str] = []
    rows = [
        *ngram_peers.reading(material, model), *ngram_peers.packing(material, model),
        *ngram_peers.scoring(material, model, notes),
    ]  # fmt: skip
    assert len(rows) == 8
    assert {row["its figure"] for row in rows} == {"missing: install it"}
    assert all(row["fedgram"] and row["ratio"] is None for row in rows)
    assert not notes


def test_kenlm_reads_and_scores_the_same_model(
    material: Material, model: NGramModel, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kenlm", reason="needs a compiler to install")
    (row,) = ngram_peers.reading(material, model)
    assert str(row["ratio"]).endswith("times as fast")
    assert capfd.readouterr().err == ""


def test_programs_that_are_not_there_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_peers, "program", lambda _: None)
    with pytest.raises(Missing, match="benchmarks/build_peers"):
        ngram_peers.needed("lmplz", ngram_peers.BUILD)


def test_the_size_of_an_arpa_file(material: Material, model: NGramModel) -> None:
    assert arpa_size(material.middle) == model.topology.arcs + 1  # <s> is a unigram of the file


def test_openfst_agrees(material: Material) -> None:
    pytest.importorskip("pywrapfst", reason="pynini is not installed")
    notes: list[str] = []
    rows = automata_peers.rows(material, notes)
    assert [str(row["ratio"]).endswith("times as fast") for row in rows] == [True, True]
    score, visits = notes
    least, most = (float(number) for number in score.removesuffix(" nats.").split("by ")[1].split(" to "))
    assert -1e-3 < least <= most
    difference, largest = (float(found.split()[0].rstrip(".")) for found in visits.split("up to ")[1:])
    assert difference < 1e-4 * largest


def test_contexts_are_followed_by_the_expected_words(material: Material) -> None:
    contexts, expected = keyboard_peers.queries(material.other, 50)
    assert len(contexts) == len(expected) == 50
    lines = material.other.read_text().splitlines()
    for words, following in zip(contexts, expected, strict=True):
        assert words
        assert any(
            line == begin or line.startswith(f"{begin} ") for begin in [" ".join([*words, following])] for line in lines
        )


@pytest.mark.usefixtures("model")
def test_our_predictions_are_those_of_the_packed_model(material: Material) -> None:
    packed = open_model(material.packed)
    times, predicted = keyboard_peers.own_answers(packed, [[], ["ba"]])
    assert len(times) == 2
    assert predicted[0] == [p.word for p in packed.predict([], 3)]


def test_without_keyboards_their_rows_say_so(
    material: Material, model: NGramModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyboard_peers, "library", str)
    monkeypatch.setattr(keyboard_peers, "has_onboard", bool)
    rows = keyboard_peers.rows(material, model)
    assert len(rows) == 6
    assert {row["its figure"] for row in rows} == {f"missing: {keyboard_peers.PROGRAMS}"}


@pytest.mark.parametrize("peer", ["presage", "Onboard"])
def test_keyboards_predict_from_the_same_model(material: Material, model: NGramModel, peer: str) -> None:
    if not (library() if peer == "presage" else keyboard_peers.has_onboard()):
        pytest.skip(f"{peer} is not installed")
    rows = {row["task"]: row for row in keyboard_peers.rows(material, model) if row["peer"] == peer}
    assert all("times as" in str(row["ratio"]) for row in rows.values())
    share = rows["… the word that was typed is among them"]
    ours, theirs = (float(str(share[name]).split()[0]) for name in ("fedgram", "its figure"))
    assert ours > 0.0
    assert theirs > ours / 4  # it has understood the model and the contexts


def test_without_ray_flowers_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_peers, "has_ray", bool)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    (row,) = training_peers.whole_rounds("W_demo", 2, 3, "cpu")
    assert row["its figure"] == f"missing: {training_peers.RAY}"
    assert float(str(row["fedgram"]).split()[0].replace(",", "")) > 0
    assert np.isfinite(float(str(row["fedgram"]).split()[0].replace(",", "")))


def test_the_engine_beside_a_loop_and_vmap() -> None:
    rows = training_peers.one_process("W_demo", 2, "cpu")
    assert [row["peer"] for row in rows] == ["plain PyTorch loop", "torch.func.vmap"]
    assert all(str(row["ratio"]).endswith("times as fast") for row in rows)
