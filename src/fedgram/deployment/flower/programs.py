"""Flower's programs, by their public names, and the environment they run in.

Telemetry and update checks are off, nothing is installed at run time, and Flower's home is in the federation's folder.
What the environment of the caller says about whom a server believes, which interfaces it opens or where secrets of TLS
are written is not passed on.
"""

import os
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import fedgram
from fedgram.core.errors import FedgramError, MissingDependencyError

SCRUBBED = (
    "FLWR_",
    "UVICORN_",
    "FORWARDED_ALLOW_IPS",
    "WEB_CONCURRENCY",
    "ROOT_PATH",
    "SSLKEYLOGFILE",
    "GRPC_",
    "OTEL_",
)
KEPT = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL",)


def require_flower() -> None:
    """Say in one line what to install if Flower is missing."""
    if find_spec("flwr") is None:
        raise MissingDependencyError("a federation", "flower")


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes."""
    programs, sources = str(Path(sys.executable).parent), str(Path(fedgram.__file__).parents[1])
    passed_on = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(SCRUBBED)}
    return {
        **passed_on,
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [sources, os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip


def module_command(module: str) -> list[str]:
    """The command that runs a module of ours, which imports nothing from the folder that it is started in.

    Python would look there first (`-P`): for a user with a file `random.py`, every module would import that one.
    """
    return [sys.executable, "-P", "-m", module]


def run_program(name: str) -> None:
    """Run one of Flower's programs in this process, with the arguments in `sys.argv`."""
    found = [script for script in entry_points(group="console_scripts", name=name) if script.value.startswith("flwr.")]
    if not found:
        raise FedgramError(f"the installed Flower has no program {name}; install it again with: pip install flwr")
    found[0].load()()
