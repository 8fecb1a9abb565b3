"""A tiny Hugging Face model with random weights and a tokenizer that is trained here, as a source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgram.automata.build import topology_from_ngrams
from fedgram.automata.counting import unvisited_ngrams
from fedgram.automata.properties import normalization_error
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.distill.inferred_topology import InferenceOptions, infer_word_model
from fedgram.distill.nn2wfa import count_by_pieces
from fedgram.distill.sample_approx import CountingOptions, PlainCounting, count_samples, fit
from fedgram.distill.spelling import spellable_words
from fedgram.formats.models import read_model, write_model
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = ["the", "then", "other", "hen", "he", "on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = tmp_path_factory.mktemp("hf")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = ["the other hen then on he . the hen\n"] * 20
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=26, special_tokens=["<|end|>"]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
    fast.save_pretrained(path)
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=len(fast), n_positions=24, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        initializer_range=0.4,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def source(folder: Path) -> Any:
    from fedgram.distill.hf_source import HFSource

    return HFSource(folder, max_length=12)


def test_labels_make_up_the_probabilities_of_tokens(source: Any) -> None:
    """For every sample, the product over its labels is the model's own probability of its tokens."""
    model, log_p, label_log_p = source.decoder.model, np.zeros(30), np.zeros(30)
    tokens: list[list[int]] = [[0] for _ in range(30)]
    from fedgram.neural.sampling import walk

    for tile in walk(source.decoder, range(30), seed=2, max_length=12):
        for sample, token in zip(tile.sample.tolist(), tile.label.tolist(), strict=True):
            with torch.no_grad():
                p = model(torch.tensor([tokens[sample]])).logits[0, -1].softmax(0).numpy()
            allowed = p[source.token_ends].sum() if token == 0 else p[token]
            if tile.position[0] == 0:  # with or without the mark
                allowed = p[source.first_label == source.first_label[token]].sum()
            log_p[sample] += np.log(allowed) if tile.position[0] < 12 else 0.0
            tokens[sample].append(token)
    for step in source.walk(range(30), seed=2):
        np.testing.assert_allclose(step.p.sum(axis=1), 1.0, atol=1e-6)
        assert (step.p[:, BOS] == 0.0).all()
        label_log_p[step.sample] += np.log(step.p[step.row, step.word])
    short = np.array([len(t) < 14 for t in tokens])
    assert short.sum() > 5
    np.testing.assert_allclose(label_log_p[short], log_p[short], atol=1e-4)


def test_words_are_coded_prefix_free_and_samples_read_as_words(source: Any) -> None:
    words = Vocabulary.of(WORDS)
    lexicon = source.spell(words)
    assert len(lexicon.order) == len(WORDS)
    assert (lexicon.word_piece[3:] == source.end_label).all()
    for sentence in source.sample(range(40), seed=5):
        assert EOS not in sentence.tolist()
        assert np.all(np.diff(np.flatnonzero(sentence == source.end_label)) > 1)


def test_words_are_spelled_without_characters_that_the_tokenizer_lacks(tmp_path: Path, folder: Path) -> None:
    """Words were once looked up after a full stop; if the tokenizer lacked it, no word had a code, without an error."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from fedgram.distill.hf_source import HFSource

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = ["the other hen then on he the hen"] * 20
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=24, special_tokens=["<|end|>"]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
    fast.save_pretrained(tmp_path)
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path)
    source = HFSource(tmp_path, max_length=12)
    assert spellable_words(source, None, Vocabulary.of([*WORDS, "жук"])).words[3:] == tuple(WORDS)
    with pytest.raises(FedgramError, match="none of the topology's words"):
        spellable_words(source, None, Vocabulary.of(["жук"]))


def test_codes_read_as_the_words_they_spell(source: Any) -> None:
    words = Vocabulary.of(WORDS)
    lexicon = source.spell(words)
    for y in range(3, len(words)):
        assert source.read_word(lexicon.code(y)) == words.words[y]
    assert source.read_word([source.end_label]) == ""


def test_samples_infer_a_topology_of_words(source: Any) -> None:
    inferred = infer_word_model(source, None, InferenceOptions(samples=300, order=2, max_ngrams=200), seed=2)
    assert inferred.topology.arcs <= 200
    lexicon = source.spell(inferred.vocabulary)
    assert (lexicon.word_node[3:] >= 0).all()
    assert all(source.read_word(lexicon.code(y)) == inferred.vocabulary.words[y] for y in range(3, lexicon.words))


def test_no_word_is_impossible(source: Any) -> None:
    """Words that occurred in no sample once had a weight of e⁻³⁵."""
    words = Vocabulary.of([*WORDS, "thenthenother", "nohen", "onheon"])
    assert spellable_words(source, None, words) == words
    rows = Ragged.from_rows([[3, 4], [BOS, 9], [9, 10], [9, 10, 11], [3, EOS], [8, 8]])
    topology = topology_from_ngrams(rows, len(words), open_vocabulary=True).topology
    counts = count_by_pieces(source, None, topology, words, samples=40, seed=1)
    assert unvisited_ngrams(counts)[words["thenthenother"] - 1]  # <s> is no unigram
    model = fit(counts, words).model
    assert model.log_weight.min() > -20
    assert normalization_error(model) < 1e-9


def test_counts_on_words_are_conserved_and_the_same_in_any_batches(source: Any) -> None:
    words = Vocabulary.of(WORDS)
    rows = [[3], [3, 4], [BOS, 3], [5, EOS]]
    topology = topology_from_ngrams(Ragged.from_rows(rows), len(words), open_vocabulary=True).topology
    one, other = (
        count_by_pieces(source, None, topology, words, samples=150, seed=1, options=CountingOptions(batch=batch))
        for batch in (150, 40)
    )
    np.testing.assert_array_equal(one.arc, other.arc)
    model = fit(one, words).model
    assert np.isfinite(model.log_weight).all()
    assert one.arc[topology.label == EOS].sum() > 0
    assert one.arc[UNK] > 0
    assert count_samples(PlainCounting(source, _unigrams(len(source.vocabulary)), 1), 20).samples == 20


def _unigrams(labels: int) -> Any:
    return topology_from_ngrams(Ragged.from_rows([[3]]), labels, open_vocabulary=True).topology


def test_a_folder_becomes_an_arpa_file(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    text = Ragged.from_rows([[3, 4, 5], [6, 3, 7], [3, 8, 4]] * 4)
    write_model(train(Corpus(text, Vocabulary.of(WORDS)), NGramOptions(order=2)), tmp_path / "A.arpa")
    (tmp_path / "test.txt").write_text("the hen\nthe other cat\n")
    few = ("--samples", 60, "--device", "cpu", "--test", tmp_path / "test.txt", "-o", tmp_path / "out.arpa", "--json")
    told = fedgram("distill", "model", f"hf:{folder}", "--topology", tmp_path / "A.arpa", *few)
    assert told["samples"] == 60
    for name in ("A.arpa", "out.arpa"):
        assert told[f"test_perplexity {tmp_path / name}"] > 1
        assert told[f"test_oov {tmp_path / name}"] == pytest.approx(1 / 5)
    assert set(WORDS) <= set(read_model(tmp_path / "out.arpa").vocabulary.words)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    from fedgram.distill.hf_source import HFSource

    with pytest.raises(InputError, match=r"config\.json is missing"):
        HFSource(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        HFSource(tmp_path)
