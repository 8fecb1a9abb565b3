"""The folder of a federation: one part for everybody, one for the server only, and one for each device.

    federation.toml, ca.crt, app/     for everybody: address, settings, authority, the Flower app
    ca.crl                            for everybody, if there is one: certificates of the server that were revoked
    release.pub                       for everybody: the key that verifies published models
    server/                           for the server: keys, certificate, admitted devices, releases, logs, status
    nodes/device-N/                   for a device: its key, its secret, the jobs it was sent, its models

A device on another machine gets only the first part, and creates its key there.
"""

import ipaddress
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.settings import AtLeastOne, Between, Positive, Settings, Share, setting
from fedgram.core.toml_config import read_config, to_toml
from fedgram.deployment.arms import ArmShares
from fedgram.deployment.flower.internals import VERSION
from fedgram.federated.secure.settings import MAJORITY, VALUE_BITS

CONFIG = "federation.toml"
MASKED_WITH = 20  # docs/secure-aggregation.md says why


@dataclass(frozen=True, slots=True)
class RoundsConfig(Settings):
    """How rounds are run."""

    deadline: Positive = setting(600.0, "Time limit of a round, in seconds.")
    minimum: Share = setting(0.5, "Share of a round's devices that must report.")
    attempts: AtLeastOne = setting(5, "Maximum number of attempts per round.")
    wait_seconds: Positive = setting(3600.0, "How long to wait for devices, in seconds.")
    wait_for: Annotated[int, Between(0)] = setting(
        0, "Number of devices to wait for before a round; 0 means as many as a round needs."
    )
    idle_seconds: Annotated[float, Between(0)] = setting(
        60.0, "How long a job that counts waits for further devices once all others have taken part, in seconds."
    )
    batch: Annotated[int, Between(1, 1000)] = setting(32, "Number of replies fetched at a time.")


@dataclass(frozen=True, slots=True)
class FederationConfig(Settings):
    """A federation: its name, where its server is, whether connections are encrypted, and how sums are masked.

    `participations`, `pins`, `dev_share` and `test_share` are settings of a device, which it enforces against the
    server.
    """

    name: str = setting("federation", "Name of the federation.")
    host: str = setting("127.0.0.1", "Name or address of the server, as devices reach it.")
    port: Annotated[int, Between(1, 65535)] = setting(8765, "Port of the server.")
    tls: bool = setting(True, "Encrypt connections, and admit registered devices only.")
    masked_with: Annotated[int, Between(0, 65536)] = setting(
        MASKED_WITH,
        "Minimum number of devices whose sum the server may learn; 0 means that it sees every device's update.",
    )
    neighbours: Annotated[int, Between(1, 65535)] | None = setting(
        None, "Number of devices with which a device shares masks and secrets in a masked round; by default it grows "
        "with the logarithm of the cohort.",
    )  # fmt: skip
    majority: Annotated[float, Between(0.5, 0.99)] = setting(
        MAJORITY, "Share of a masked round's devices of which more must sign the same list of survivors."
    )
    value_bits: Annotated[int, Between(1, 62)] = setting(
        VALUE_BITS, "Bits of the largest number that can be masked, without its sign."
    )
    poll: Annotated[float, Between(0.05, 3600)] = setting(1.0, "Polling interval of a device, in seconds.")
    in_memory: bool = setting(True, "Keep messages in memory; a database on disk takes seven times the processor time.")
    reply_mb: Annotated[int, Between(1, 65536)] = setting(
        128, "Size limit of a device's reply to one message, in megabytes of 2^20 bytes."
    )
    metrics_port: Annotated[int, Between(0, 65535)] = setting(0, "Port for Prometheus metrics; 0 means none.")
    participations: AtLeastOne = setting(1, "Maximum number of rounds of a counting job that a device takes part in.")
    dev_share: Share = setting(0.0, "Share of the devices that only evaluate models for choices: the dev arm.")
    test_share: Share = setting(0.0, "Share of the devices that only evaluate results: the test arm.")
    pins: tuple[str, ...] | None = setting(
        None,
        "Settings that a job must have, as NAME=DIGEST, such as unigrams.words; a device refuses other jobs. "
        "`federation status --json` shows those of the running job.",
    )
    rounds: RoundsConfig = field(default_factory=RoundsConfig)

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.masked_with == 1:
            raise FedgramError("masked_with must be 0 or at least 2: the sum of one device is its update")
        if wrong := [pin for pin in self.pins or () if not re.fullmatch(r"[\w.-]+=[0-9a-f]{64}", pin)]:
            raise FedgramError(f"a pin must be NAME=DIGEST, with a SHA-256 digest in hexadecimal, not {wrong[0]!r:.80}")
        check_host(self.host)
        ArmShares(self.dev_share, self.test_share)


def check_host(host: str) -> None:
    """Refuse a host that is neither an IP address nor a valid host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*\.?", host):
            example = "such as fed.example.org or 10.0.0.7; write international names as xn--…"
            raise FedgramError(f"{host!r:.80} is not a host name or IP address, {example}") from None


@dataclass(frozen=True, slots=True)
class Folder:
    """A federation's folder and its configuration."""

    path: Path
    config: FederationConfig

    @property
    def server(self) -> Path:
        """The server's part."""
        return self.path / "server"

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.path / "app"

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the server's certificate."""
        return self.path / "ca.crt"

    @property
    def revoked(self) -> Path:
        """The authority's list of revoked certificates, if there is one."""
        return self.path / "ca.crl"

    @property
    def server_pair(self) -> Path:
        """The server's key and its certificate: one file, so that both are replaced at once."""
        return self.server / "server.pem"

    @property
    def token(self) -> Path:
        """The secret that commands on the server's machine must know; a new one whenever the server starts."""
        return self.server / "control.token"

    @property
    def release_key(self) -> Path:
        """The public key that verifies published models."""
        return self.path / "release.pub"

    @property
    def address(self) -> str:
        """The server's address for devices."""
        host = self.config.host
        return f"[{host}]:{self.config.port}" if ":" in host else f"{host}:{self.config.port}"

    @property
    def heartbeat(self) -> float:
        """Seconds between a device's heartbeats; a device without one for twice as long counts as gone."""
        return min(30.0, max(12.0, 15 * self.config.poll))

    @property
    def local_address(self) -> str:
        """The server's address for commands on its own machine."""
        return f"127.0.0.1:{self.config.port}"

    def node(self, number: int) -> Path:
        """A device's part."""
        return self.path / "nodes" / f"device-{number}"


_APP = """\
# The app of a fedgram federation. Its code is fedgram's own, as it is installed on the server and on each device.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Federated learning of n-gram language models"
license = "Apache-2.0"
dependencies = ["flwr=={flower}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedgram"

[tool.flwr.app.components]
serverapp = "fedgram.deployment.flower.server_app:app"
clientapp = "fedgram.deployment.flower.client_app:app"

[tool.flwr.app.config]
work = ""
"""


def make_folder(path: Path, config: FederationConfig, extra_hosts: tuple[str, ...] = ()) -> Folder:
    """Create a federation's folder, with keys and certificates if it uses TLS."""
    from fedgram.deployment.keys import write_authority, write_release_key, write_server_certificate

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,30}", config.name):
        raise FedgramError(f"a federation's name may have letters, digits and hyphens only, not {config.name!r:.80}")
    if (path / CONFIG).exists():
        raise InputError(path, "already holds a federation", remedy="choose another folder")
    for host in extra_hosts:
        check_host(host)
    folder = Folder(path, config)
    for taken in (folder.app, folder.server, folder.authority):
        if taken.exists():
            raise InputError(taken, "already exists", remedy="choose another folder, or delete it")
    folder.app.mkdir(parents=True)
    folder.server.mkdir(mode=0o700)
    (folder.app / "pyproject.toml").write_text(_APP.format(name=config.name, flower=VERSION), "utf-8")
    (folder.app / "README.md").write_text("The app of a fedgram federation.\n", "utf-8")
    if config.tls:
        write_authority(folder.server, config.name)
        write_server_certificate(folder.server_pair, config.name, [config.host, *extra_hosts])
        folder.authority.write_bytes((folder.server / "ca.crt").read_bytes())
    write_release_key(folder.server / "release.key", folder.release_key)
    _write_flower_config(folder)
    (path / CONFIG).write_text(to_toml(config), "utf-8")  # last: it marks the folder as complete
    return folder


def renew_certificate(
    folder: Folder, extra_hosts: tuple[str, ...], *, ca_key: Path | None, revoke: bool
) -> Path | None:
    """Replace the server's key and certificate at once; returns the list of revoked ones if the old one is on it."""
    from fedgram.deployment.keys import revoke_certificate, write_server_certificate

    if not folder.config.tls or not folder.server_pair.is_file():
        raise InputError(folder.path, "has no server's certificate", remedy="run this on the server's machine")
    for host in extra_hosts:
        check_host(host)
    if revoke:
        revoke_certificate(folder.server_pair, folder.revoked, ca_key)
    hosts = [folder.config.host, *extra_hosts]
    write_server_certificate(folder.server_pair, folder.config.name, hosts, ca_key)
    return folder.revoked if revoke else None


def _write_flower_config(folder: Folder) -> None:
    """Write what Flower's own commands read on the server's machine, with FLWR_HOME set to this folder."""
    home = folder.server / "flwr"
    home.mkdir(mode=0o700, exist_ok=True)
    authority = str(folder.authority.resolve())
    safety = f"root-certificates = {json.dumps(authority)}" if folder.config.tls else "insecure = true"
    name = folder.config.name
    text = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{folder.local_address}"\n{safety}\n'
    (home / "config.toml").write_text(text, "utf-8")


def open_folder(path: str | Path) -> Folder:
    """Open a federation's folder."""
    if not (Path(path) / CONFIG).is_file():
        raise InputError(path, "is not a federation's folder", remedy="create one with `fedgram federation init`")
    return Folder(Path(path).resolve(), read_config(Path(path) / CONFIG, FederationConfig))
