"""Other programs read our exports, if they are installed: presage, Onboard and KenLM."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedgram.automata.build import count_ngrams
from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import sentence_log_probs
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.formats.kenlm import write_kenlm
from fedgram.formats.onboard import write_onboard
from fedgram.formats.presage import write_presage
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

_PRESAGE = """<Presage>
<PredictorRegistry><LOGGER>ERROR</LOGGER><PREDICTORS>DefaultSmoothedNgramPredictor</PREDICTORS></PredictorRegistry>
<ContextTracker><LOGGER>ERROR</LOGGER><SLIDING_WINDOW_SIZE>80</SLIDING_WINDOW_SIZE>
<LOWERCASE_MODE>no</LOWERCASE_MODE><ONLINE_LEARNING>no</ONLINE_LEARNING></ContextTracker>
<Selector><LOGGER>ERROR</LOGGER><SUGGESTIONS>3</SUGGESTIONS><REPEAT_SUGGESTIONS>yes</REPEAT_SUGGESTIONS>
<GREEDY_SUGGESTION_THRESHOLD>0</GREEDY_SUGGESTION_THRESHOLD></Selector>
<PredictorActivator><LOGGER>ERROR</LOGGER><PREDICT_TIME>1000</PREDICT_TIME>
<MAX_PARTIAL_PREDICTION_SIZE>60</MAX_PARTIAL_PREDICTION_SIZE><COMBINATION_POLICY>Meritocracy</COMBINATION_POLICY>
</PredictorActivator><ProfileManager><LOGGER>ERROR</LOGGER><AUTOPERSIST>no</AUTOPERSIST></ProfileManager>
<Predictors><DefaultSmoothedNgramPredictor><PREDICTOR>SmoothedNgramPredictor</PREDICTOR><LOGGER>ERROR</LOGGER>
<DBFILENAME>{database}</DBFILENAME><DELTAS>0.01 0.1 0.89</DELTAS><LEARN>no</LEARN>
<DatabaseConnector><LOGGER>ERROR</LOGGER></DatabaseConnector></DefaultSmoothedNgramPredictor></Predictors>
</Presage>
"""
_ONBOARD = """
import json, sys
from Onboard.pypredict import DynamicModelKN
model = DynamicModelKN()
model.load(sys.argv[1])
print(json.dumps([model.order, list(model.get_counts()[0]), model.predict(["the", "weather", "is", ""], 5)]))
"""


@pytest.fixture(scope="module")
def model() -> NGramModel:
    sentences = [*SyntheticPopulation("en_us", seed=2).clean_sentences(3000), ["d'água", "Łódź", "<url>", "😀"]]
    sentences += [["the", "weather", "is", "nice"], ["I", "don't", "know"]] * 200
    names = Vocabulary.of(word for sentence in sentences for word in sentence)
    text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
    return smooth(count_ngrams(text, names, order=3), "modified-kneser-ney")


@pytest.mark.skipif(not shutil.which("presage_demo_text"), reason="presage is not installed")
def test_presage_suggests_from_our_database(model: NGramModel, tmp_path: Path) -> None:
    database, settings = tmp_path / "en.db", tmp_path / "presage.xml"
    write_presage(model, database)
    settings.write_text(_PRESAGE.format(database=database))
    for typed, expected in (("the weather is ", "nice"), ("I don", "don’t"), ("I don’t ", "know")):
        assert expected in _suggested(settings, typed)


def _suggested(settings: Path, typed: str) -> list[str]:
    """The suggestions of the demonstration program; it never ends by itself, so it is terminated."""
    command = ["timeout", "30", "presage_demo_text", "-c", str(settings), "-s", "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{typed}\n")
        process.stdin.close()
        lines = []
        for line in process.stdout:
            if line.startswith("-- Context"):
                break
            lines.append(line)
        process.kill()
    return "".join(lines).split("> ", 1)[1].split()


def _has_onboard() -> bool:
    command = ["/usr/bin/python3", "-c", "import Onboard.pypredict"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _has_onboard(), reason="Onboard is not installed")
def test_onboard_predicts_from_our_model(model: NGramModel, tmp_path: Path) -> None:
    write_onboard(model, tmp_path / "en.lm")
    done = subprocess.run(
        ["/usr/bin/python3", "-c", _ONBOARD, tmp_path / "en.lm"], capture_output=True, text=True, check=True
    )
    order, counts, words = json.loads(done.stdout)
    assert order == 3
    declared = [line.split("=")[1] for line in (tmp_path / "en.lm").read_text().splitlines()[1:4]]
    assert [str(n) for n in counts[1:]] == declared[1:]
    assert counts[0] == int(declared[0]) + 1  # Onboard adds its own mark
    assert words[0] == "nice"


@pytest.mark.parametrize(("structure", "tolerance"), [("probing", 1e-4), ("trie", 0.2)])
def test_kenlm_reads_the_binary_that_its_tool_made(
    structure: str, tolerance: float, model: NGramModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kenlm = pytest.importorskip("kenlm", reason="needs a compiler to install")
    if not shutil.which("build_binary"):
        pytest.skip("KenLM's build_binary is not on the PATH")
    write_kenlm(model, tmp_path / "lm.binary", structure=structure)
    theirs = kenlm.Model(str(tmp_path / "lm.binary"))
    sentences = [["the", "weather", "is", "nice"], ["I", "don't", "know"]]
    rows = Ragged.from_rows([model.vocabulary.encode(sentence) for sentence in sentences])
    ours = sentence_log_probs(model, rows) / np.log(10.0)
    assert np.abs(ours - [theirs.score(" ".join(sentence)) for sentence in sentences]).max() < tolerance
    capfd.readouterr()
