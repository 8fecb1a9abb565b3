"""The report: the paper's tables with our numbers, a self-contained page, and checked results."""

import base64
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedgram.core.errors import InputError
from fedgram.report.document import Block, Code, Figure, Heading, Paragraph, Table, to_html, to_markdown
from fedgram.report.figures import draw_likelihood
from fedgram.report.page import write_report
from fedgram.report.published import TABLE_3, TABLE_4
from fedgram.report.results import read_results

Command = Callable[..., Any]
_VOID = {"meta", "source", "img", "br", "hr", "link", "input"}


def figure(value: float, half: float = 0.5) -> dict[str, Any]:
    return {"value": value, "ci95": [value - half, value + half]}


def model(top1: float, change: float | None = None) -> dict[str, Any]:
    measures = {"top1": figure(top1), "top3": figure(2 * top1), "perplexity": {"value": 99.5, "ci95": None}}
    return measures if change is None else {**measures, "change": {"top1": figure(change, 0.25)}}


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Any]:
    draw_likelihood({"R_W": [(0, -40.0), (9, -30.0)]}, tmp_path / "words.png", dark=True)
    curves = {f"P_{i}": [(r, -40 + i + r / 100) for r in range(0, 300, 50)] for i in range(7)}
    draw_likelihood(curves, tmp_path / "sll.png", chosen=["P_3"])
    models = {
        "Baseline": model(11.5),
        "A_W_e": model(16.5, 43.5),
        "A_W_r": model(17.25, 50.0),
        "A_P_e": model(16.0, 39.1),
    }
    return {
        "title": "A run & its <results>",
        "about": {"users": 481, "seed": 7, "language": "en_us"},
        "languages": {"en_us": {"baseline": "Baseline", "models": models}},
        "clipping": {
            "baseline": {"top1": figure(8.0), "oov_rate": figure(1.5)},
            "rows": [
                {"clip": 1, "change": {"top1": figure(0.25), "oov_rate": figure(-1.0)}},
                {"clip": None, "change": {"top1": figure(0.1)}},
            ],
        },
        "sizes": [{"model": "A_W_r", "ngrams": 1_500_000, "bytes": 3_950_000}],
        "figures": [
            {"file": "words.png", "caption": "Words", "dark": "words-dark.png"},
            {"file": "sll.png", "caption": "SLL^e by round"},
        ],
        "examples": [{"context": "new <york>", "suggestions": {"Baseline": ["the", "and"], "A_W_r": ["is"]}}],
        "stages": [{"name": "unigrams", "seconds": 12.25, "peak_bytes": 5 * 10**8}, {"name": "x", "seconds": 1.0}],
        "privacy": {"noise_multiplier": 1.1},
        "config": "seed = 7\n",
    }


def write(folder: Path, content: object) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(content))
    return path


class Checker(HTMLParser):
    """Checks that all elements are closed in order, and that the page loads and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert tag not in {"script", "iframe", "object", "link"}
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "href":
                assert (value or "").startswith("#")
                self.links.append((value or "")[1:])
            elif name == "id":
                self.ids.append(value or "")
            elif name in ("src", "srcset"):
                assert (value or "").startswith("data:image/png;base64,")
                base64.b64decode((value or "").partition(",")[2], validate=True)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path, results: dict[str, Any]) -> None:
    page, _ = write_report(read_results(write(tmp_path, results)), tmp_path)
    text = page.read_text()
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert checker.seen.count("img") == 2
    assert checker.seen.count("source") == 1  # for dark pages
    assert checker.links
    assert set(checker.links) <= set(checker.ids)
    assert len(set(checker.ids)) == len(checker.ids)
    assert checker.seen.count("h1") == 1
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "url(" not in text
    for needed in ("prefers-color-scheme: dark", "width=device-width", "default-src &#x27;none&#x27;", "overflow-x"):
        assert needed in text
    assert "A run &amp; its &lt;results&gt;" in text
    assert "new &lt;york&gt; …" in text
    assert "<i>A</i><sub>W<sub>e</sub></sub>" in text


def rows_of(markdown: str, first: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith(f"| {first} ")
    ]


def test_capitals_experiments_and_the_final_model(tmp_path: Path, results: dict[str, Any]) -> None:
    cased = {"baseline": "Baseline", "models": {"Baseline": model(9.5), "A_W_e": model(14.5, 52.6)}}
    results["languages"]["en_us"]["final"] = "A_P_e"
    results |= {"cased": {"en_us": cased}, "sizes": [{"model": "R_W", "ngrams": None, "bytes": 600_000}]}
    results["experiment"] = {
        "users_per_arm": 240,
        "aa_coverage": 0.9525,
        "change": {"A_P_e": {"top1": figure(40.0, 9)}},
    }
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    row = ["A\\_W\\_e", "16.50 ± 0.50 (+43.50 ± 0.25)", "14.50 ± 0.50 (+52.60 ± 0.25)", "10.52 ± 0.03 (+4.9)"]
    assert row in rows_of(text, "A\\_W\\_e")
    assert "two arms of 240" in text
    assert "covers zero in 95.2 % of 2,000" in text
    assert "distilled onto the n-grams of the server's text" in text.replace("\\", "")
    assert "packed for phones" not in text
    assert ["A\\_P\\_e", "+40.00 ± 9.00", "–", "–"] in rows_of(text, "A\\_P\\_e")
    assert ["R\\_W", "–", "0.60"] in rows_of(text, "R\\_W")
    assert (
        "**A\\_P\\_e is better than the baseline: it predicts 16.0 ± 0.5 % of next words, against 11.5 ± 0.5 %." in text
    )
    for part, value, problem in (
        ("experiment", {"users_per_arm": -1}, "experiment.change must be an object"),
        ("cased", {"en_us": {**cased, "final": "none"}}, "cased.en_us.final must be the name of one of the models"),
    ):
        with pytest.raises(InputError, match=problem):
            read_results(write(tmp_path, {**results, part: value}))


def test_the_tables_have_the_papers_numbers_beside_ours(tmp_path: Path, results: dict[str, Any]) -> None:
    _, twin = write_report(read_results(write(tmp_path, results)), tmp_path)
    text = twin.read_text()
    assert ["Baseline", "11.50 ± 0.50", "10.03"] in rows_of(text, "Baseline")
    assert ["A\\_W\\_e", "16.50 ± 0.50 (+43.50 ± 0.25)", "10.52 ± 0.03 (+4.9)"] in rows_of(text, "A\\_W\\_e")
    assert ["A\\_W\\_m", "–", "10.27 ± 0.03 (+2.4)"] in rows_of(text, "A\\_W\\_m")
    assert ["A\\_P\\_r", "–", "10.53 ± 0.03 (+5.0)"] in rows_of(text, "A\\_P\\_r")
    assert rows_of(text, "baseline") == [["baseline", "8.00 ± 0.50", "8.14", "1.50 ± 0.50", "18.08"]]
    assert "Why the accuracy changes" not in text  # without a control
    assert rows_of(text, "λ = 1") == [["λ = 1", "+0.25 ± 0.50", "+0.19 ± 0.21", "-1.00 ± 0.50", "-1.33 ± 0.75"]]
    assert rows_of(text, "λ = ∞") == [["λ = ∞", "+0.10 ± 0.50", "–", "–", "–"]]
    assert "it predicts 17.2 ± 0.5 % of next words, against 11.5 ± 0.5 %. That is 50.0 ± 0.2 % more" in text
    assert rows_of(text, "total") == [["total", "13.2", "–"]]
    assert "![Words](words.png)" in text


def test_the_report_begins_with_the_result(tmp_path: Path, results: dict[str, Any]) -> None:
    """One sentence, one chart, the final model's row; then contents, how it was made, tables."""
    results["languages"]["en_us"]["final"], results["measured"] = "A_W_r", "481 test users"
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[0].read_text().split("</style>")[1]
    order = ['class="lead"', 'class="chart"', "<table", "<nav", "How it was made", "The models", "tables</h2>"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "on 481 test users." in text
    table = text[text.index("<table") : text.index("</table>")]
    assert table.count("<tr") == 3  # the header, the model, and its change
    assert table.count('<tr class="detail"><th scope="row">change') == table.count("<tbody>") == 1
    assert "17.25" in table
    assert text.count('<div class="ours"><dt>') == 1
    assert "Swipe to see all columns" in text


def test_the_chart_of_many_models_has_those_that_tell_the_story(tmp_path: Path, results: dict[str, Any]) -> None:
    models = results["languages"]["en_us"]["models"]
    models |= {name: model(15.0, 30.0) for name in ("A_W_i", "A_W_m", "Refit", "Final model", "R_W (network)")}
    models |= {"Pooled text": model(20.0, 70.0), "Pooled + supplement": model(20.0, 70.0)}
    results["languages"]["en_us"]["final"] = "Final model"
    page, twin = write_report(read_results(write(tmp_path, results)), tmp_path)
    names = re.findall("<dt>(.*?)</dt>", page.read_text())
    assert [name.partition(" <small>")[0] for name in names] == [
        "Baseline", "<i>A</i><sub>W<sub>r</sub></sub>", "Final model", "<i>R</i><sub>W</sub> (network)", "Pooled text",
    ]  # fmt: skip
    assert "| Baseline (from the server's text only) | 11.5 ± 0.5 % |" in twin.read_text()
    page = write_report(read_results(write(tmp_path, results)), tmp_path)[0]
    tables = page.read_text().split("</table>")
    whole = next(table for table in tables if table.count('class="detail"') == 10)
    assert whole.count("<tbody>") == 11  # each model with its change


def test_a_worse_model_is_called_worse(tmp_path: Path, results: dict[str, Any]) -> None:
    results["languages"]["en_us"]["models"]["A_W_r"]["change"]["top1"] = figure(-5.0, 2.0)
    results["languages"]["en_us"]["final"] = "A_W_r"
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert "A\\_W\\_r is worse than the baseline" in text
    assert "That is 5.0 ± 2.0 % less, on the held-out users." in text


def test_too_few_users_are_no_result(tmp_path: Path, results: dict[str, Any]) -> None:
    results["languages"]["en_us"]["models"]["A_W_r"]["change"]["top1"] = figure(53.0, 54.0)
    results["languages"]["en_us"]["final"], results["measured"] = "A_W_r", "3 test users"
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert "**No result: 3 test users are too few to tell A\\_W\\_r from the baseline; the change is between" in text
    assert "is better than" not in text


def test_a_result_that_is_given_takes_the_place_of_the_change(tmp_path: Path, results: dict[str, Any]) -> None:
    results["languages"]["en_us"]["final"], results["result"] = "A_W_r", "The final model is the baseline."
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert "**The final model is the baseline.**" in text
    assert "is better than" not in text


def test_warnings_stand_at_the_top(tmp_path: Path, results: dict[str, Any]) -> None:
    results["warnings"] = ["the baseline is <best>", "the final model is worse"]
    page, twin = write_report(read_results(write(tmp_path, results)), tmp_path)
    text = page.read_text()
    assert text.index("</h1>") < text.index('class="notice"') < text.index("The baseline is &lt;best&gt;.")
    assert text.index("The final model is worse.") < text.index("<h2 ")
    assert "> **Warning**\n>\n> The baseline is \\<best\\>.\n>\n> The final model is worse." in twin.read_text()
    assert 'class="notice"' not in write_report(read_results(write(tmp_path, {"title": "t"})), tmp_path)[0].read_text()


def test_table_1_says_why_accuracy_changes(tmp_path: Path, results: dict[str, Any]) -> None:
    clipping, change = results["clipping"], {"top1": figure(-0.25), "oov_rate": figure(-3.0)}
    clipping["control"] = {"replaced": {"top1": figure(-0.75)}, "interpolated": {"top1": figure(-0.125)}}
    clipping |= {"max_words": 5000, "devices": 1000, "words": 20_000}
    for row in clipping["rows"]:
        row |= {"interpolated": change, "against_first": change}
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert ["the server's text", "-0.75 ± 0.50", "-0.12 ± 0.50", "–"] in rows_of(text, "the server's text")
    assert ["λ = 1", "+0.25 ± 0.50", "-0.25 ± 0.50", "–"] in rows_of(text, "λ = 1")
    assert ["λ = ∞", "+0.10 ± 0.50", "-0.25 ± 0.50", "-3.00 ± 0.50"] in rows_of(text, "λ = ∞")
    assert "1,000 devices report once each, the same ones for every λ, and name 20,000 different words" in text
    assert "room for 5,000 words" in text
    for value, effect in ((-0.75, "predict worse"), (0.75, "predict better"), (0.1, "neither measurably better nor")):
        clipping["control"]["replaced"]["top1"] = figure(value)
        text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
        assert f"change of {value:+.2f} ± 0.50 % is due to the replacement alone" in text
        assert effect in text


def test_table_2_has_our_sizes_beside_the_papers(tmp_path: Path, results: dict[str, Any]) -> None:
    network = {
        "preset": "P_4K-G", "layers": 2, "hidden": 1080, "embedding": 280, "embedding_parameters": 1.12,
        "parameters": 2.734, "paper_embedding": 1.12, "paper_total": 2.71,
    }  # fmt: skip
    results["architectures"] = [network]
    page, twin = write_report(read_results(write(tmp_path, results)), tmp_path)
    row = ["P\\_4K-G", "2", "1,080", "280", "1.12M", "1.12M", "2.73M", "2.71M"]
    assert rows_of(twin.read_text(), "P\\_4K-G") == [row]
    assert "<i>S</i><sub>total</sub>, ours" in page.read_text()
    results["architectures"] = [
        {**network, "sll_e": -38.5, "trained_parameters": 2.7341},
        {**network, "preset": "W_30K"},
    ]
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert rows_of(text, "P\\_4K-G") == [[*row, "-38.50"]]
    assert rows_of(text, "W\\_30K")[0][-1] == "–"
    assert "was trained with" not in text
    results["architectures"][0]["trained_parameters"] = 2.5
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert "P\\_4K-G was trained with 2.50M parameters" in text
    with pytest.raises(InputError, match=r"architectures\[0\].layers must be an integer"):
        read_results(write(tmp_path, {**results, "architectures": [{**network, "layers": 1.5}]}))


def test_both_ways_of_algorithm_1_are_labelled(tmp_path: Path, results: dict[str, Any]) -> None:
    models = results["languages"]["en_us"]["models"]
    models |= {"A_W_e (paper)": model(15.5, 34.75), "A_P_r (paper)": model(14.25, 23.9)}
    results["ways"] = {"ours": "capitals come last, from A_W", "paper": "as printed, with p_cap"}
    page, twin = write_report(read_results(write(tmp_path, results)), tmp_path)
    text = twin.read_text().replace("\\", "")
    titles = [f"Table {n} ({way}" for n in (3, 4) for way in ("a), our way", "b), the paper's way")]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    rows = [" ".join(row) for row in rows_of(text, "A_W_e")]
    assert rows[1:3] == [  # the first one is in the chart
        "A_W_e 16.50 ± 0.50 (+43.50 ± 0.25) 10.52 ± 0.03 (+4.9)",
        "A_W_e 15.50 ± 0.50 (+34.75 ± 0.25) 10.52 ± 0.03 (+4.9)",
    ]
    assert text.index("Our way: capitals come last") < text.index("The paper's way: as printed") < places[0]
    assert "distilled the paper's own way, to compare with" in text
    html = page.read_text()
    assert "from <i>A</i><sub>W</sub>." in html
    assert "<i>p</i><sub>cap</sub>" in html


def test_one_vocabulary_is_stated(tmp_path: Path, results: dict[str, Any]) -> None:
    results["languages"]["en_us"] |= {"shared_words": 29_000, "outside": 3.25}
    text = write_report(read_results(write(tmp_path, results)), tmp_path)[1].read_text()
    assert "𝒱 has 29,000 words; 3.25 % of the typed words are outside it." in text
    assert "over the words of 𝒱" in text


def test_both_languages_stand_side_by_side(tmp_path: Path, results: dict[str, Any]) -> None:
    results["languages"]["pt_br"] = {"baseline": "b", "models": {"b": model(9.0), "A_W_i": model(11.0, 22.2)}}
    _, twin = write_report(read_results(write(tmp_path, results)), tmp_path)
    row = ["A\\_W\\_i", "–", "10.47 ± 0.02 (+4.4)", "11.00 ± 0.50 (+22.20 ± 0.25)", "9.67 ± 0.02 (+13.1)"]
    assert row in rows_of(twin.read_text(), "A\\_W\\_i")


def test_the_papers_gains_are_those_it_states() -> None:
    gains = [
        100 * (table[m][lang][0] / table["Baseline"][lang][0] - 1)
        for table, m, lang in ((TABLE_4, "A_P_r", "en_us"), (TABLE_3, "A_W_i", "pt_br"))
    ]
    assert gains == pytest.approx([5.0, 13.1], abs=0.05)


def test_a_title_is_enough(tmp_path: Path) -> None:
    page, twin = write_report(read_results(write(tmp_path, {"title": "Nothing yet"})), tmp_path)
    assert twin.read_text() == "# Nothing yet\n"
    assert "<title>Nothing yet</title>" in page.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"titel": "x"}, "unknown entry 'titel'"),
        ({"title": 3}, "title must be a string"),
        ({"sizes": [{"model": "m", "ngrams": -1, "bytes": 0}]}, r"sizes\[0\].ngrams must be an integer of at least 0"),
        ({"languages": {"en_us": {"models": {"a": {"top1": 5}}}}}, "languages.en_us.models.a.top1 must be an object"),
        (
            {"languages": {"en_us": {"models": {"a": {"top1": {"value": 5, "ci95": [1]}}}}}},
            r"languages.en_us.models.a.top1.ci95 must be null or \[low, high\]",
        ),
        ({"languages": {"x": {"baseline": "b", "models": {}}}}, "languages.x.baseline must be the name of one"),
        ({"examples": [{"context": "a", "suggestions": {"m": "b"}}]}, r"examples\[0\].suggestions.m must be an array"),
        ({"stages": [{"name": "s", "seconds": True}]}, r"stages\[0\].seconds must be a number"),
        ({"stages": [{"name": "s", "seconds": float("inf")}]}, r"stages\[0\].seconds must be a number"),
        ({"about": [1]}, "about must be an object"),
        ({"warnings": "x"}, "warnings must be an array"),
        ({"warnings": [3]}, r"warnings\[0\] must be a string"),
        ({"figures": {}}, "figures must be an array"),
        ({"figures": [{"file": "results.json", "caption": "c"}]}, "is not a PNG image"),
        ({"clipping": {"baseline": {}, "rows": [{"clip": "1"}]}}, r"clipping.rows\[0\].clip must be a number"),
    ],
)
def test_results_are_checked_by_place(
    tmp_path: Path, refused: Callable[..., str], change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, {"title": "t", **change})
    assert re.search(message, refused("report", path, "-o", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, results: dict[str, Any], fedgram: Command, refused: Callable[..., str]) -> None:
    path = write(tmp_path, results)
    made = fedgram("report", path, "-o", tmp_path / "out", "--json")
    assert Path(made["page"]).stat().st_size == made["bytes"] > 20_000
    assert "](../words.png)" in Path(made["markdown"]).read_text()
    (tmp_path / "run").mkdir()
    assert "run: has no report/results.json" in refused("report", tmp_path / "run", "-o", tmp_path / "again")
    shutil.copytree(tmp_path, tmp_path / "run" / "report", ignore=shutil.ignore_patterns("run", "out"))
    again = fedgram("report", tmp_path / "run", "-o", tmp_path / "again", "--json")
    assert Path(again["page"]).read_bytes() == Path(made["page"]).read_bytes()
    assert "no such file" in refused("report", tmp_path / "none.json", "-o", tmp_path / "out")
    assert "is not a folder" in refused("report", path, "-o", path)
    path.write_text("{")
    assert "is not JSON" in refused("report", path, "-o", tmp_path / "out")
    path.write_text("{}")
    assert "has no title" in refused("report", path, "-o", tmp_path / "out")


def test_blocks_in_both_forms(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"\x89PNG")
    blocks: list[Block] = [
        Heading("T", 1), Paragraph("a <b> & SLL^e"), Paragraph("n-grams: -2.5, 1-2, a-1, -x"),
        Code("x = ```", "Config"), Figure(tmp_path / "p.png", "P"),
        Table(("k", "a|b"), (("r", None), ("s", 1234567), ("t", 2.5)), "cap"),
    ]  # fmt: skip
    page, text = to_html(blocks), to_markdown(blocks, tmp_path)
    assert "<p>a &lt;b&gt; &amp; SLL<sup>e</sup></p>" in page
    assert "<p>n\u2011grams: \u22122.5, 1-2, a-1, -x</p>" in page
    assert "<td>1,234,567</td>" in page
    assert "````\nx = ```\n````" in text
    assert "| k | a\\|b |\n|:---|---:|\n| r | – |\n| s | 1,234,567 |\n| t | 2.50 |\n\n*cap*" in text
