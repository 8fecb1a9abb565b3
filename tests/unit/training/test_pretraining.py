"""Training on a server's text: the network gets better on it, and says how it was trained."""

import numpy as np
from tests.reference.tiny_networks import network_over

from fedgram.core.compute import Compute
from fedgram.neural.network import as_tensors
from fedgram.neural.scoring import score, text_to_score
from fedgram.text.corpus import corpus_of
from fedgram.text.population import population_from_messages
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.central_training import pretrain

SENTENCES = ["see you soon", "see you there", "you see"] * 20
WORDS = Vocabulary.of(["see", "you", "soon", "there"])


def test_a_warm_start_is_better_on_similar_text() -> None:
    network = network_over(WORDS, seed=3)
    corpus = corpus_of(SENTENCES)
    warm = pretrain(network, corpus, epochs=4, learning_rate=0.02, rows=8, compute=Compute("cpu", 1))
    people = population_from_messages([("a", "see you soon", "dev"), ("b", "you see", "dev")])
    text = text_to_score(network.coding, people, people.clients())
    before, after = (score(n.shape, as_tensors(n.weights), text, pieces=False).sll for n in (network, warm))
    assert after > before + 1.0
    assert warm.about["epochs"] == 4
    again = pretrain(network, corpus, epochs=4, learning_rate=0.02, rows=8, compute=Compute("cpu", 1))
    assert all(np.array_equal(w, again.weights[name]) for name, w in warm.weights.items())


def test_no_epochs_leave_the_network_as_it_is() -> None:
    network = network_over(WORDS, seed=3)
    same = pretrain(network, corpus_of(SENTENCES), epochs=0)
    assert all(np.array_equal(w, same.weights[name]) for name, w in network.weights.items())
