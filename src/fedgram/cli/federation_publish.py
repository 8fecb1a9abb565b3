"""`fedgram federation publish`: a model for the devices of a federation, signed, in stages, and back again."""

from typing import TYPE_CHECKING, Any

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option
from fedgram.core.errors import FedgramError

if TYPE_CHECKING:
    from fedgram.deployment.folder import Folder
    from fedgram.deployment.published import Published


@click.command(
    "publish",
    cls=Command,
    examples=[
        "fedgram federation publish fed lm.fgram --share 0.01 --wait 1",
        "fedgram federation publish fed other.fgram --wait 1",
        "fedgram federation publish fed --rollback --wait 1 --json",
    ],
)
@click.argument("folder", metavar="DIR")
@click.argument("model", metavar="MODEL.fgram", required=False)
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
    help="Share of the devices that install the model. A larger share later includes the devices of this one.",
)  # fmt: skip
@click.option("--rollback", is_flag=True, help="Go back to the model that was published before the present one.")
@click.option(
    "--wait", type=click.FloatRange(0, min_open=True),
    help="Seconds without any change after which the command ends; by default, the federation's `idle_seconds`.",
)  # fmt: skip
@json_option
def publish_command(
    folder: str, model: str | None, share: float, rollback: bool, wait: float | None, as_json: bool
) -> None:
    """Publish a packed model to the federation's devices.

    The release is signed and has the next version. Devices fetch the model in pieces, verify it, keep the one before it
    and install it at once or not at all. Devices that are away get it later, from this command without MODEL or between
    the rounds of a run.
    """
    from fedgram.deployment.folder import open_folder

    home = open_folder(folder)
    if rollback and (model or share != 1.0):
        raise FedgramError("--rollback goes back to the earlier model on all devices; give neither MODEL nor --share")
    release = _release(home, model, share, rollback)
    show({**_about(release), **_sent(home, wait)}, as_json)


def _release(home: "Folder", model: str | None, share: float, rollback: bool) -> "Published":
    """The release to send: a new one, one that goes back, or the latest one again."""
    from pathlib import Path

    from fedgram.deployment.published import Releases, publish, read_publishable

    releases = Releases(home.server)
    if rollback:
        before = releases.before()
        return publish(home, [(releases.name_of(before), releases.model(before))], (1.0,), "rollback")
    if model is not None:
        return publish(home, [(Path(model).name, read_publishable(model))], (share,), "publish")
    latest = releases.latest()
    if latest is None:
        raise FedgramError("nothing was published yet; name a packed model: lm.fgram")
    return latest


def _about(release: "Published") -> dict[str, Any]:
    return {"version": release.version, "kind": release.kind, "model": release.names[0], "share": release.shares[0]}


def _sent(home: "Folder", wait: float | None) -> dict[str, Any]:
    """Send the latest release, with progress on the terminal; returns how many devices are in which state."""
    from fedgram.deployment.flower.processes import wait_until_served
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.publishing import is_in_use, roll_out
    from fedgram.deployment.rollout import RolloutProgress

    require_flower()
    if is_in_use(home):
        click.echo("fedgram: a run is using the devices, and sends the release between its rounds", err=True)
        return {"sent": "between the rounds of the run"}
    wait_until_served(home, seconds=30)
    with steps() as step:
        step.begin("Waiting for devices")

        def on_progress(now: RolloutProgress) -> None:
            step.begin(f"Publishing version {now.version}", now.online)(now.settled)

        found = roll_out(home, wait=home.config.rounds.idle_seconds if wait is None else wait, on_progress=on_progress)
    return {
        "online": found.online, "installed": found.installed, "outside": found.outside, "waiting": found.waiting,
        "not_ready": found.not_ready, "refused": dict(found.refused) if found.refused else "none",
        "bytes_sent": found.bytes_sent,
    }  # fmt: skip
