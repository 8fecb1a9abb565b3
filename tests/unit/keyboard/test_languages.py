"""Two languages in one keyboard: the posterior, exact predictions, and what is kept of each model alone."""

import math

import numpy as np
import pytest
from benchmarks.two_languages import in_turns, measure, open_language

from fedgram.core.errors import FedgramError
from fedgram.fgram.spelling import word_key
from fedgram.keyboard.decoder import Candidate
from fedgram.keyboard.languages import LanguageOptions, Languages, typed_history
from fedgram.keyboard.layout import load_layout, noisy_taps
from fedgram.keyboard.multilingual import MultilingualKeyboard, merge_readings
from fedgram.keyboard.personal import PersonalModel
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import UNK

ENGLISH = "I think the weather is good today".split()  # noqa: SIM905
PORTUGUESE = "eu acho que o tempo está bom".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def texts() -> list[tuple[list[list[str]], list[list[str]]]]:
    """Sentences to train on, and others, of English and Portuguese."""
    rows = [list(SyntheticPopulation(name, seed=6).clean_sentences(3300)) for name in ("en_us", "pt_br")]
    return [(each[:3000], each[3000:]) for each in rows]


@pytest.fixture(scope="module")
def both(texts: list[tuple[list[list[str]], list[list[str]]]], tmp_path_factory: pytest.TempPathFactory) -> Languages:
    folder = tmp_path_factory.mktemp("languages")
    return Languages([open_language(folder / f"{i}.fgram", train, 5000) for i, (train, _) in enumerate(texts)])


def test_mixed_text_keeps_what_the_right_model_has(
    both: Languages, texts: list[tuple[list[list[str]], list[list[str]]]]
) -> None:
    """At least 97 % of the top-1 of the right model alone, on the text of each language."""
    turns = in_turns([test for _, test in texts], 10, 300, np.random.default_rng(0))
    for tally in measure(both, turns):
        assert tally.alone > 50
        assert tally.kept >= 0.97


def test_the_posterior_is_bayes_rule(both: Languages) -> None:
    options, log_p = both.options, np.log([0.5, 0.5])
    for at, word in enumerate(ENGLISH):
        for n, model in enumerate(both.models):
            word_id = model.known_id(word)
            evidence = model.step(model.state(ENGLISH[:at]), word_id)[0]
            log_p[n] += evidence + (options.unknown if word_id == UNK else 0.0)
        p = np.exp(log_p - log_p.max())
        log_p = np.log((1 - options.switch) * p / p.sum() + options.switch / 2)
    assert both.posterior(ENGLISH).tolist() == pytest.approx(np.exp(log_p).tolist())
    assert both.posterior(ENGLISH)[0] > 0.95
    assert both.posterior(PORTUGUESE)[1] > 0.95
    assert both.posterior().tolist() == [0.5, 0.5]


def test_a_finished_sentence_is_remembered(both: Languages) -> None:
    after = both.posterior([*PORTUGUESE, "</s>"])
    assert 0.9 < after[1] < both.posterior(PORTUGUESE)[1]
    assert both.state([*PORTUGUESE, "</s>"]).states[0].tolist() == both.models[0].state().tolist()
    assert typed_history("Eu acho. Good") == ["Eu", "acho", "</s>", "Good"]
    assert both.posterior("Eu acho que sim.").tolist() == both.posterior(["Eu", "acho", "que", "sim", "</s>"]).tolist()
    assert both.models[0].predict([*PORTUGUESE, "</s>"]) == both.models[0].predict()


@pytest.mark.parametrize("context", [[], ENGLISH, [*PORTUGUESE, "</s>"], [*ENGLISH[:2], *PORTUGUESE[:2]]])
def test_predictions_are_exact(both: Languages, context: list[str]) -> None:
    words = sorted({word for model in both.models for word in model.words[3:]})
    p = both.probabilities(both.state(context), both.word_ids(words))
    assert 0.1 < p.sum() <= 1.0 + 1e-3  # the rest is that of </s> and <unk>
    for prefix in ("", "a", "co"):
        fit = [i for i, word in enumerate(words) if word_key(word).startswith(prefix)]
        best = sorted((-math.log(p[i]), words[i]) for i in fit)[:5]
        found = both.predict(context, 5, prefix)
        assert [row.log_p for row in found] == pytest.approx([-value for value, _ in best])


def test_one_model_is_that_model(both: Languages) -> None:
    alone = Languages(both.models[:1])
    assert alone.posterior(ENGLISH).tolist() == [1.0]
    assert alone.predict(ENGLISH, 4) == both.models[0].predict(ENGLISH, 4)
    board = MultilingualKeyboard(alone, load_layout("en_us"))
    taps = noisy_taps(board.layout, "weather", 0.3, np.random.default_rng(0))
    assert board.decode(taps, ["the"]) == board.boards[0].decode(taps, ["the"])
    with pytest.raises(FedgramError, match="at least one model"):
        Languages([])


def test_taps_and_trails_are_read_in_the_language_of_the_sentence(both: Languages) -> None:
    board, rng = MultilingualKeyboard(both, load_layout("pt_br")), np.random.default_rng(1)
    for context, word in ((ENGLISH[:3], "weather"), (PORTUGUESE[:4], "tempo")):
        key = word_key(word)
        taps = [noisy_taps(board.layout, key, 0.3, rng) for _ in range(10)]
        assert sum(board.decode(tap, context, 1)[0].word == word for tap in taps) >= 9
        assert board.glide(board.layout.typed(key), context, 1)[0].word == word
    assert board.glide(np.zeros((1, 2))) == []
    typing = board.typing(ENGLISH)
    for x, y in board.layout.typed("zulexa").tolist():
        typing.tap(x, y)
    assert typing.literal == "zulexa"
    typing.backspace()
    assert (typing.literal, len(typing.taps)) == ("zulex", 5)


def test_what_was_hit_is_no_word_only_if_no_model_knows_it() -> None:
    literal, known = Candidate("zulexa", -30.0, is_literal=True), Candidate("zulexa", -9.0)
    even = np.log([0.5, 0.5])
    (both_lack_it,) = merge_readings([[literal], [literal]], even, 0.5)
    assert both_lack_it.is_literal
    assert both_lack_it.worth == pytest.approx(-30.0)
    (found,) = merge_readings([[literal], [known]], even, 0.5)
    assert not found.is_literal
    assert found.worth == pytest.approx(-9.0 + 0.5 * math.log(0.5))
    assert merge_readings([[literal], []], even, 0.5) == []


def test_own_words_belong_to_both_languages(both: Languages) -> None:
    board, personal = MultilingualKeyboard(both, load_layout("pt_br")), PersonalModel(both)
    personal.learn(["Zulexa"], after="the")
    personal.learn(["weather", "tempo"])
    assert personal.unknown_words() == ["Zulexa"]
    assert personal.probability("the", "Zulexa") > personal.probability("is", "Zulexa")
    for context in (ENGLISH, PORTUGUESE):
        assert board.decode(board.layout.typed("zulexa"), context, 1, personal)[0].word == "Zulexa"
        assert board.glide(board.layout.typed("zulexa"), context, 1, personal)[0].word == "Zulexa"
    other = PersonalModel(both)
    other.learn(["Zulexa", "tempo"])
    other.add_json(personal.to_json())
    assert dict(other.learned())["Zulexa"] == pytest.approx(2, abs=0.01)
    assert [word for word, _ in personal.learned()] != [word for word, _ in other.learned()]


def test_a_language_that_never_changes(both: Languages) -> None:
    firm = Languages(both.models, LanguageOptions(switch=0.0, sentence_switch=0.0))
    assert firm.posterior([*ENGLISH, "</s>"] * 3)[0] > both.posterior([*ENGLISH, "</s>"] * 3)[0]
