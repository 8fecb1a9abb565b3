"""SLL and SLL^e of networks, against the losses of their words."""

import numpy as np
import pytest
import torch
from tests.reference.tiny_networks import network_over

from fedgram.neural.model import word_losses
from fedgram.neural.network import Coding, as_tensors
from fedgram.neural.scoring import score, text_to_score
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import BOS, EOS, Vocabulary

WORDS = Vocabulary.of(["see", "you", "soon", "there"])


@pytest.fixture
def people() -> Population:
    rows = [("a", "See you zebra", "dev"), ("a", "you soon", "dev"), ("b", "there", "dev")]
    return population_from_messages(rows)


def test_sll_is_the_sum_of_log_probabilities_by_sentence(people: Population) -> None:
    network = network_over(WORDS, seed=3)
    weights = as_tensors(network.weights)
    found = score(network.shape, weights, text_to_score(network.coding, people, people.clients()), pieces=False)
    sll, sll_e = 0.0, 0.0
    for sentence in (["see", "you", "zebra"], ["you", "soon"], ["there"]):
        ids = WORDS.encode(sentence)
        losses = word_losses(network.shape, weights, torch.tensor([[BOS, *ids]]), torch.tensor([[*ids, EOS]]))[0]
        sll -= float(losses[:-1].sum())
        sll_e -= sum(float(loss) for loss, word in zip(losses[:-1], sentence, strict=True) if word in WORDS)
    assert found.sll == pytest.approx(sll / 3, rel=1e-5)
    assert found.sll_e == pytest.approx(sll_e / 3, rel=1e-5)
    assert (found.sentences, found.words) == (3, 6)


def test_words_outside_the_shared_list_are_left_out(people: Population) -> None:
    """𝒱 may be smaller than the vocabulary: then fewer words are scored, with the same probabilities."""
    network = network_over(WORDS, seed=3)
    weights, known = as_tensors(network.weights), Vocabulary.of(["you"])
    texts = [
        text_to_score(coding, people, people.clients()) for coding in (network.coding, Coding(WORDS, known))
    ]  # fmt: skip
    whole, few = (score(network.shape, weights, text, pieces=False) for text in texts)
    assert few.sll == whole.sll
    assert few.sll_e > whole.sll_e
    assert np.count_nonzero(texts[1].known) == 2


def test_perplexity_and_accuracy_are_those_of_every_single_word() -> None:
    """Against the loss of every word at every position: unknown words are wrong, placeholders are not typed words.

    Sentence marks and `<unk>` are never proposed, and of two words with the same score neither is above the other.
    """
    words = Vocabulary.of(["see", "you", "soon", "there", "<number>", "twin", "other"])
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice([*words.words[3:7], "7", "zebra", "twin"], 5)) for _ in range(30)]
    people = population_from_messages([("a", text, "dev") for text in texts])
    network = network_over(words, seed=4)
    start = {name: weight.copy() for name, weight in network.weights.items()}
    start["embedding"][words["other"]] = start["embedding"][words["twin"]]
    weights = as_tensors(start)
    found = score(network.shape, weights, text_to_score(network.coding, people, people.clients()), pieces=False)
    nats, symbols, ranks = 0.0, 0, []
    for text in texts:
        sentence = [("<number>" if word == "7" else word) for word in text.split()]
        ids = words.encode(sentence)
        read = torch.tensor([[BOS, *ids]])
        loss = np.stack(
            [word_losses(network.shape, weights, read, torch.full_like(read, x))[0].numpy() for x in range(len(words))]
        )
        for place, x in enumerate([*ids, EOS]):
            nats, symbols = nats + float(loss[x, place]), symbols + 1
            if place < len(ids) and sentence[place] != "<number>":
                above = int(np.sum(loss[3:, place] < loss[x, place]))
                ranks.append(above if x >= 3 else 99)
    assert found.perplexity == pytest.approx(np.exp(nats / symbols), rel=1e-5)
    assert found.top1 == pytest.approx(100.0 * np.mean(np.array(ranks) < 1))
    assert found.top3 == pytest.approx(100.0 * np.mean(np.array(ranks) < 3))
    assert 0.0 < (found.top1 or 0.0) < (found.top3 or 0.0) < 100.0
    assert found.words == len(ranks)
