"""What `fedgram evaluate` explains below its table."""

import pytest

from fedgram.automata.model import NGramModel
from fedgram.cli.evaluate import print_comparison
from fedgram.cli.federated_evaluate import show_on_devices
from fedgram.evaluate.on_devices import DeviceComparison, evaluate_on_devices
from fedgram.text.population import population_from_messages

PEOPLE = population_from_messages((f"user{n}", "hello you are here", "train") for n in range(4))
OLD, NEW = (NGramModel.train(["hello you are here", "are you"][:n], order=n) for n in (1, 2))


def on_devices(size: int, *, baseline: bool) -> DeviceComparison:
    return evaluate_on_devices(
        {"new": NEW}, PEOPLE.train, baseline=OLD if baseline else None, devices_per_round=size, dropout=0.0,
        over_selection=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize(("size", "buckets"), [(4, 1), (2, 2)])
def test_the_footnote_explains_what_the_table_has(
    size: int, buckets: int, baseline: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = on_devices(size, baseline=baseline)
    print_comparison(found, found.title)
    text = " ".join(capsys.readouterr().out.split())
    assert ("± is half of a 95 % interval" in text) == (buckets > 1)
    assert ("changes are relative" in text) == baseline
    assert "perplexity and SLLᵉ over" in text


@pytest.mark.parametrize(
    ("size", "title"), [(4, "4 train devices in 1 bucket, "), (2, "4 train devices in 2 buckets, ")]
)
def test_one_bucket_is_no_plural(size: int, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_on_devices(on_devices(size, baseline=False), "train", as_json=False)
    assert capsys.readouterr().out.startswith(title)
