"""The folder of a federation: what all know, what the server keeps to itself, and what each device does.

    federation.toml, ca.crt, app/     for everybody: address, settings, authority, the app that `flwr run` takes
    server/                           the server's: keys, certificate, devices admitted, logs, status
    nodes/device-N/                   a device's: key, the jobs it was sent

A device on another machine is given the first line alone, and makes its key there.
"""

import ipaddress
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fedgram.core.errors import FedgramError, InputError
from fedgram.pipeline.strict_toml import Between, read_config, to_toml

CONFIG = "federation.toml"


@dataclass(frozen=True, slots=True)
class RoundsConfig:
    """How rounds are run: seconds until a round ends, the share of its devices that must report, attempts at a round;
    how long to wait for devices, and for how many (0: as many as a round asks); how long a job that counts waits for
    further devices when all others have taken part; replies fetched at a time.
    """

    deadline: Annotated[float, Between(above=0)] = 600.0
    minimum: Annotated[float, Between(0, 1)] = 0.5
    attempts: Annotated[int, Between(1)] = 5
    wait_seconds: Annotated[float, Between(above=0)] = 3600.0
    wait_for: Annotated[int, Between(0)] = 0
    idle_seconds: Annotated[float, Between(0)] = 60.0
    batch: Annotated[int, Between(1, 1000)] = 32


@dataclass(frozen=True, slots=True)
class FederationConfig:
    """A federation: its name, where its server is, and whether the way there is encrypted and devices known.

    `masked_with` is the fewest devices whose sum the server may learn; 0: it sees every device's update. `poll` is how
    many seconds a device that has nothing to do lets pass before it asks the server again. `in_memory` says where the
    server keeps what is on its way: in memory, or in a database on the disk at seven times the processor time.

    Two settings are a device's own. It takes part in at most `participations` rounds of a job that counts; and `pins`
    are `NAME=DIGEST`, settings that a job must have, such as `unigrams.words`, or the device takes no part in it
    (`federation status --json` shows those of the job that runs).
    """

    name: str = "federation"
    host: str = "127.0.0.1"
    port: Annotated[int, Between(1, 65535)] = 8765
    tls: bool = True
    masked_with: Annotated[int, Between(0, 65536)] = 3
    poll: Annotated[float, Between(0.05, 3600)] = 1.0
    in_memory: bool = True
    metrics_port: Annotated[int, Between(0, 65535)] = 0
    participations: Annotated[int, Between(1)] = 1
    pins: tuple[str, ...] | None = None
    rounds: RoundsConfig = field(default_factory=RoundsConfig)

    def __post_init__(self) -> None:
        if self.masked_with == 1:
            raise FedgramError("masked_with is 0 or at least 2: the sum of one device is its update")
        if wrong := [pin for pin in self.pins or () if not re.fullmatch(r"[\w.-]+=[0-9a-f]{64}", pin)]:
            raise FedgramError(f"a pin is NAME=DIGEST, with a SHA-256 in hexadecimal, not {wrong[0]!r}")
        check_host(self.host)


def check_host(host: str) -> None:
    """Refuse what is neither an address nor a name that certificates know."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*\.?", host):
            example = "such as fed.example.org or 10.0.0.7; names in other letters as xn--…"
            raise FedgramError(f"{host!r} is no name or address of a server, {example}") from None


@dataclass(frozen=True, slots=True)
class Folder:
    """A federation's folder and what its configuration says."""

    path: Path
    config: FederationConfig

    @property
    def server(self) -> Path:
        """The server's part."""
        return self.path / "server"

    @property
    def app(self) -> Path:
        """What `flwr run` is given."""
        return self.path / "app"

    @property
    def authority(self) -> Path:
        """The certificate that the server's is signed with."""
        return self.path / "ca.crt"

    @property
    def address(self) -> str:
        """Where devices find the server."""
        host = self.config.host
        return f"[{host}]:{self.config.port}" if ":" in host else f"{host}:{self.config.port}"

    @property
    def heartbeat(self) -> float:
        """Seconds between a device's signs of life; without one for twice as long it is taken to be gone."""
        return min(30.0, max(12.0, 15 * self.config.poll))

    @property
    def local_address(self) -> str:
        """Where commands on the server's machine find it."""
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
dependencies = ["flwr==1.41.0"]

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
    """Make a federation's folder, with keys and certificates if it uses TLS."""
    from fedgram.deployment.keys import write_authority, write_server_certificate

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,30}", config.name):
        raise FedgramError(f"a federation's name has letters, digits and hyphens only, not {config.name!r}")
    if (path / CONFIG).exists():
        raise InputError(path, "holds a federation already", remedy="choose another folder")
    for host in extra_hosts:
        check_host(host)
    folder = Folder(path, config)
    for taken in (folder.app, folder.server, folder.authority):
        if taken.exists():
            raise InputError(taken, "is there already", remedy="choose another folder, or remove it")
    folder.app.mkdir(parents=True)
    folder.server.mkdir(mode=0o700)
    (folder.app / "pyproject.toml").write_text(_APP.format(name=config.name), "utf-8")
    (folder.app / "README.md").write_text("The app of a fedgram federation.\n", "utf-8")
    if config.tls:
        write_authority(folder.server, config.name)
        write_server_certificate(folder.server, config.name, [config.host, *extra_hosts])
        folder.authority.write_bytes((folder.server / "ca.crt").read_bytes())
    _write_flower_config(folder)
    (path / CONFIG).write_text(to_toml(config), "utf-8")  # last: its presence says that the folder is whole
    return folder


def _write_flower_config(folder: Folder) -> None:
    """What Flower's own commands read on the server's machine, with FLWR_HOME set to this folder."""
    home = folder.server / "flwr"
    home.mkdir(exist_ok=True)
    authority = str(folder.authority.resolve())
    safety = f"root-certificates = {json.dumps(authority)}" if folder.config.tls else "insecure = true"
    name = folder.config.name
    text = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{folder.local_address}"\n{safety}\n'
    (home / "config.toml").write_text(text, "utf-8")


def open_folder(path: str | Path) -> Folder:
    """The federation of a folder."""
    if not (Path(path) / CONFIG).is_file():
        raise InputError(path, "is not a federation's folder", remedy="make one with `fedgram federation init`")
    return Folder(Path(path).resolve(), read_config(Path(path) / CONFIG, FederationConfig))
