"""Arms that devices decide: shares, constancy, and the jobs that a device answers; and an evaluation by an arm."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployment.transports import (
    MASKING,
    ONCE,
    POPULATION,
    TEXTS,
    TRAINING,
    LocalLink,
    LocalTransport,
    fleet_of,
    make_devices,
)

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.arms import ArmShares, arm_of
from fedgram.deployment.device import Device
from fedgram.deployment.evaluation import evaluate_on_federation
from fedgram.deployment.federation_devices import Servers
from fedgram.deployment.folder import FederationConfig, RoundsConfig, make_folder
from fedgram.deployment.waiting import Timeouts
from fedgram.evaluate.comparison import evaluate
from fedgram.evaluate.on_devices import DeviceEvaluationOptions, evaluate_on_devices
from fedgram.evaluate.scoring_task import ScoringTask
from fedgram.evaluate.sent_model import SentModel
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.text.messages import SPLITS
from fedgram.text.population import Users

SHARES = ArmShares(dev=0.1, test=0.2)
LINES = ["see you there", "i am on my way", "are you there", "the train is late", "see you soon"]
MODELS = {"old": NGramModel.train(LINES, order=2), "new": NGramModel.train([*LINES, "it is late"], order=3)}


def evaluation(arm: str) -> Job[Any]:
    sent = [SentModel.of(model) for model in MODELS.values()]
    return Job(ScoringTask.of(sent, cased=False, arm=arm), 5, participations=1)


def test_arms_have_their_shares() -> None:
    """Of 10,000 devices with random secrets; four standard deviations are 1.6 points at most."""
    found = Counter(SHARES.arm(bytes([i % 256, i // 256]) * 16) for i in range(10_000))
    for arm, share in (("train", 0.7), ("dev", 0.1), ("test", 0.2)):
        assert found[arm] / 10_000 == pytest.approx(share, abs=0.016)
        assert SHARES.of(arm) == pytest.approx(share)
    assert {ArmShares(0, 1).arm(bytes([i]) * 32) for i in range(99)} == {"test"}
    assert {ArmShares().arm(bytes([i]) * 32) for i in range(99)} == {"train"}
    for dev, test in ((-0.1, 0.5), (0.6, 0.6), (0.0, 1.1)):
        with pytest.raises(FedgramError, match="together"):
            ArmShares(dev, test)
        with pytest.raises(FedgramError):
            FederationConfig(dev_share=dev, test_share=test)


def test_a_device_never_changes_its_arm(tmp_path: Path) -> None:
    """Neither with other shares, nor with another secret, nor with none."""
    arms = {}
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        arms[folder] = arm_of(folder, SHARES, is_new=True)
    assert set(arms.values()) == set(SPLITS)
    for folder, arm in arms.items():
        for shares in (ArmShares(), ArmShares(0, 1), ArmShares(1, 0), SHARES):
            assert arm_of(folder, shares, is_new=True) == arm
            (folder / "secret").unlink(missing_ok=True)
        assert (folder / "arm").read_text() == arm
    (folder / "arm").write_text("both")
    with pytest.raises(InputError, match="takes part in no job"):
        arm_of(folder, SHARES, is_new=True)


def test_a_device_of_before_there_were_arms_may_have_trained(tmp_path: Path) -> None:
    assert arm_of(tmp_path, ArmShares(0, 1), is_new=False) == "train"
    assert arm_of(tmp_path, ArmShares(0, 1), is_new=True) == "train"


def one_device(folder: Path, arm: str, masked: bool) -> Device:
    folder.mkdir(parents=True)
    (device,) = make_devices(folder, {0: TEXTS[0]}, MASKING if masked else None).values()
    return replace(device, arms={"train": ArmShares(), "dev": ArmShares(1, 0), "test": ArmShares(0, 1)}[arm])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("arm", SPLITS)
def test_a_device_answers_jobs_of_its_arm_only(tmp_path: Path, arm: str, masked: bool) -> None:
    """Whatever the server sends: dev and test devices never count or train, train devices never measure for them."""
    jobs: dict[str, Job[Any]] = {
        "unigrams": ONCE,
        "training": TRAINING,
        **{f"evaluate {a}": evaluation(a) for a in SPLITS},
    }
    right = {"train": {"unigrams", "training", "evaluate train"}}.get(arm, {f"evaluate {arm}"})
    device = one_device(tmp_path / arm, arm, masked)
    for name, job in jobs.items():
        ready = device.join({"job": job.content})["ready"]
        assert ready == (b"yes" if name in right else b"not ready"), name
        request = {"job": job.digest.encode(), "round": b"1", "broadcast": b"", "message": b"FGSA\4\1" + bytes(64)}
        if name not in right:
            assert device.report(request) == {"declined": b"not ready"}
            assert device.secure({**request, "broadcast_digest": b""}) == {"declined": b"not ready"}


def with_arms(folder: Path, arms: dict[int, str], masked: bool) -> LocalTransport:
    shares = {"train": ArmShares(), "dev": ArmShares(1, 0), "test": ArmShares(0, 1)}
    devices = make_devices(folder, TEXTS, MASKING if masked else None)
    return LocalTransport({node: replace(d, arms=shares[arms[d.store.number]]) for node, d in devices.items()})


@pytest.mark.parametrize("masked", [False, True])
def test_the_devices_of_an_arm_evaluate_and_the_others_do_not(tmp_path: Path, masked: bool) -> None:
    arms = {n: "test" if n % 2 else "train" for n in TEXTS}
    transport, job = with_arms(tmp_path, arms, masked), evaluation("test")
    plan, masking = RoundPlan(6, 1.0, 3, attempts=2), MASKING if masked else None
    fleet = fleet_of(transport, job, Timeouts(wait_for=6))
    done = run_rounds(job, fleet, RunOptions(None, plan, masking))
    assert done.progress.device.tolist() == [n for n in TEXTS if n % 2]
    here = evaluate(MODELS, Users(POPULATION, done.progress.device))
    assert isinstance(job.task, ScoringTask)
    for name, found in zip(MODELS, job.task.evaluations(done.state), strict=True):
        for measure, values in found.measures.items():
            scale = 100.0 if measure in ("top1", "top3", "oov_rate", "keystroke_savings") else 1.0
            assert scale * values.level == here.models[name][measure]["value"]
    sent = [request for request in transport.sent if request.action != "join"]
    assert {request.node - 100 for request in sent} == {n for n in TEXTS if n % 2}  # the others are not sent models


def test_a_federation_evaluates_and_adds_devices_that_were_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked, behind a server; repeated when more devices are there, and again when all have taken part."""
    rounds = RoundsConfig(wait_for=6, idle_seconds=2.0, wait_seconds=60.0, deadline=60.0)
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, masked_with=3, test_share=1.0, rounds=rounds))
    every = with_arms(tmp_path, dict.fromkeys(TEXTS, "test"), masked=True)
    some = LocalTransport({node: d for node, d in every.devices.items() if node < 106})
    link = LocalLink(monkeypatch, {home.path: some})

    def found(**settings: Any) -> Any:
        options = DeviceEvaluationOptions(over_selection=1.0, **settings)
        return evaluate_on_federation(Servers(home), MODELS, options, baseline=MODELS["old"])

    half = found()
    assert (half.users, half.buckets) == (6, 2)
    link.transports[home.path] = every
    whole = found()
    assert (whole.users, whole.buckets) == (12, 4)
    again = found()
    link.join()
    assert not link.errors
    assert again.models == whole.models
    here = evaluate(MODELS, Users(POPULATION, POPULATION.clients()), baseline=MODELS["old"])
    levels = [[cell.split(" ± ")[0] for row in c.rows() for cell in row] for c in (here, whole)]
    assert levels[0] == levels[1]
    simulated = evaluate_on_devices(
        MODELS, Users(POPULATION, POPULATION.clients()), baseline=MODELS["old"], devices_per_round=12, dropout=0.0
    )
    assert simulated.models["new"]["top1"]["value"] == whole.models["new"]["top1"]["value"]
