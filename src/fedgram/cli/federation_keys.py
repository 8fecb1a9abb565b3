"""`fedgram federation admit`, `revoke` and `renew`: who belongs to a federation, and the server's certificate."""

from pathlib import Path

import click

from fedgram.cli.commands import Command
from fedgram.core.errors import FedgramError, InputError

folder_argument = click.argument("folder", metavar="DIR")
number_argument = click.argument("number", type=click.IntRange(0))


@click.command(
    "admit",
    cls=Command,
    examples=[
        "fedgram federation admit fed 7 device-7.pub",
        "fedgram federation admit fed 8 fed/nodes/device-8/key.pub",
    ],
)
@folder_argument
@number_argument
@click.argument("key", metavar="KEY.pub", type=click.Path(path_type=Path))
def admit_command(folder: str, number: int, key: Path) -> None:
    """Admit a device by its number and the public key that it made when it first joined."""
    from fedgram.deployment.flower.control import admit
    from fedgram.deployment.folder import open_folder
    from fedgram.deployment.keys import read_public_key

    if not admit(open_folder(folder), read_public_key(key), f"device-{number}"):
        raise InputError(key, "was admitted before")
    click.echo(f"device {number} is admitted", err=True)


@click.command(
    "revoke",
    cls=Command,
    examples=["fedgram federation revoke fed 7", "fedgram federation revoke fed 8"],
)
@folder_argument
@number_argument
def revoke_command(folder: str, number: int) -> None:
    """Remove a device from a federation, at once and without a restart of the server.

    The server refuses the device's requests from then on, and the next version of the signed list of admitted keys does
    not have its key, so other devices no longer count it. A new device needs a new key.
    """
    from fedgram.deployment.flower.control import revoke
    from fedgram.deployment.folder import open_folder

    if not revoke(open_folder(folder), f"device-{number}"):
        raise FedgramError(f"device {number} is not admitted")
    click.echo(f"device {number} is revoked", err=True)


@click.command(
    "renew",
    cls=Command,
    examples=["fedgram federation renew fed", "fedgram federation renew fed --revoke --also 10.0.0.5"],
)
@folder_argument
@click.option("--also", multiple=True, help="Another name or address of the server, for its certificate.")
@click.option(
    "--ca-key", type=click.Path(path_type=Path),
    help="The authority's key, if it is kept elsewhere than in DIR/server/ca.key.",
)  # fmt: skip
@click.option(
    "--revoke", is_flag=True, help="Put the certificate that is replaced on the list of revoked ones, DIR/ca.crl."
)
def renew_command(folder: str, also: tuple[str, ...], ca_key: Path | None, revoke: bool) -> None:
    """Make a new certificate and key for the server, which a running server uses at once.

    Devices need nothing new, except the list of revoked certificates (--revoke): give them DIR/ca.crl, beside ca.crt.
    They then refuse a server that still has the earlier key, for instance because it was stolen.
    """
    from fedgram.deployment.folder import open_folder, renew_certificate

    renewed = renew_certificate(open_folder(folder), also, ca_key=ca_key, revoke=revoke)
    click.echo("the server has a new certificate" + (f"; give devices {renewed}" if renewed else ""), err=True)
