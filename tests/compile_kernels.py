"""Compiles the kernels that most tests need, before many processes would each do it: a tiny run, if none is there."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import fedgram
from fedgram.core.kernel_cache import prepare_cache


def main() -> int:
    cache = prepare_cache(Path(fedgram.__file__).parent)
    if cache is None or any(cache.iterdir()):
        return 0
    from tests.e2e.test_run_command import TINY  # imports kernels, and so fills the cache

    from fedgram.cli.main import run

    with TemporaryDirectory() as folder:
        config = Path(folder, "tiny.toml")
        config.write_text(TINY)
        return run(["run", str(config), "-w", str(Path(folder, "run")), "--workers", "1", "--json"])


if __name__ == "__main__":
    sys.exit(main())
