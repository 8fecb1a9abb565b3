"""Logs of limited size, whatever writes to them."""

import subprocess
import sys
from pathlib import Path

from fedgram.deployment.rotating_log import RotatingLog, rotating_log


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_log_is_rotated_and_its_oldest_part_is_dropped(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", max_bytes=100, kept=2)
    for k in range(40):
        log.write(b"%09d\n" % k)
    log.close()
    assert sizes(tmp_path) == {"log": 100, "log.1": 100, "log.2": 100}
    kept = [int(line) for name in ("log.2", "log.1", "log") for line in (tmp_path / name).read_text().split()]
    assert kept == list(range(10, 40))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    again = RotatingLog(tmp_path / "log", max_bytes=100, kept=2)  # a later process goes on with the same file
    again.write(b"x")
    again.close()
    assert sizes(tmp_path) == {"log": 1, "log.1": 100, "log.2": 100}


def test_processes_write_to_a_log_without_knowing(tmp_path: Path) -> None:
    says = "import os\nfor k in range(5000): os.write(1, b'refused\\n')\nos.write(2, b'the end\\n')"
    with rotating_log(tmp_path / "log", max_bytes=10_000, kept=1) as log:
        subprocess.run([sys.executable, "-c", says], stdout=log, stderr=log, check=True)
    assert (tmp_path / "log").read_text().endswith("the end\n")
    assert all(size <= 10_000 + (1 << 16) for size in sizes(tmp_path).values())
    assert sizes(tmp_path).keys() == {"log", "log.1"}
