"""The Python and the JavaScript reader pass the same vectors."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conformance.fgram_vectors import write_vectors

from fedgram.core.errors import InputError
from fedgram.fgram.reader import open_model

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    write_vectors(path)
    return path


def test_the_python_reader_passes(folder: Path) -> None:
    """… files that are opened anew; what made the vectors might have kept something."""
    for path in folder.glob("*.json"):
        content, model = json.loads(path.read_text()), open_model(path.with_suffix(".fgram"))
        assert [[i, model.word(i)] for i, _ in content["words"]] == content["words"]
        for context, prefix, k, expected in content["predictions"]:
            assert [[p.word, pytest.approx(p.log_p)] for p in model.predict(context, k, prefix)] == expected
    for path in (folder / "refused").iterdir():
        with pytest.raises(InputError):
            open_model(path)


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
def test_the_javascript_reader_passes(folder: Path) -> None:
    done = subprocess.run(
        ["node", HERE / "check_fgram.mjs", folder, "300"], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 1000
