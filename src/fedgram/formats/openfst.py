"""OpenFst vector automata over the tropical semiring: weights are −log p, and final weights represent `</s>`.

There are three styles of backoff arcs:

- `epsilon`  label `<epsilon>`, as in models of OpenGrm NGram,
- `phi`      label `<phi>`, for matchers that follow it only if nothing else matches,
- `kaldi`    input `#0` and output `<eps>`: a G.fst for Kaldi and k2.

Word i of the vocabulary has label i + 1. `.fst.txt` is the text form that `fstcompile` reads, with the symbols in a
`.syms` file beside it; it needs no other package. `.fst` is the binary form, which includes the symbols; it is written
with pynini's pywrapfst.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedgram.automata.assemble import DuplicateNGramError, WeightedNGrams, assemble
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import END
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import BoolArray, ByteArray, FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError, InputError, InvariantError, MissingDependencyError
from fedgram.core.jit import kernel
from fedgram.core.storage import atomic_write
from fedgram.formats.convert_fst import as_vector
from fedgram.formats.decimal import MAX_NUMBER_BYTES, write_integer, write_number
from fedgram.formats.vector_fst import Automaton, automaton_type, read_vector_fst
from fedgram.text.vocabulary import BOS, EOS, Vocabulary

STYLES = ("epsilon", "phi", "kaldi")
_EPSILONS = ("<epsilon>", "<eps>")
_BACKOFFS = (*_EPSILONS, "<phi>", "#0")


def write_openfst(model: NGramModel, path: str | Path, *, style: str = "epsilon") -> None:
    """Write the model as an automaton: text if the name ends in `.txt`, binary otherwise."""
    if style not in STYLES:
        raise FedgramError(f"unknown automaton style {style!r}; choose one of {', '.join(STYLES)}")
    for word in _BACKOFFS:
        if word in model.vocabulary:
            raise FedgramError(f"the word {word} of the model means backoff in OpenFst; rename the word first")
    symbols = _symbols(model.vocabulary, style)
    text = _text(model, style)
    if str(path).endswith(".txt"):
        with atomic_write(path) as file:
            file.write(text)
        with atomic_write(symbols_path(path)) as file:
            file.write("".join(f"{name}\t{i}\n" for i, name in enumerate(symbols)).encode())
        return
    pywrapfst = _pywrapfst()
    compiler = pywrapfst.Compiler()
    compiler.write(text.decode())
    fst = compiler.compile()
    table = pywrapfst.SymbolTable()
    for i, name in enumerate(symbols):
        table.add_symbol(name, i)
    fst.set_input_symbols(table).set_output_symbols(table)
    fst.arcsort(sort_type="ilabel")
    with atomic_write(path) as file:
        file.write(fst.write_to_string())


def symbols_path(path: str | Path) -> Path:
    """The symbol file of a text automaton: `G.syms` beside `G.fst.txt`."""
    name = Path(path).name.removesuffix(".txt").removesuffix(".fst")
    return Path(path).with_name(name + ".syms")


def _symbols(vocabulary: Vocabulary, style: str) -> list[str]:
    names = ["<eps>" if style == "kaldi" else "<epsilon>", *vocabulary.words]
    return names + {"epsilon": [], "phi": ["<phi>"], "kaldi": ["#0"]}[style]


def _text(model: NGramModel, style: str) -> bytes:
    t = model.topology
    extra = len(model.vocabulary) + 1
    backoff_in, backoff_out = {"epsilon": (0, 0), "phi": (extra, extra), "kaldi": (extra, 0)}[style]
    order = np.concatenate([[t.start], np.delete(np.arange(t.states), t.start)]).astype(np.int64)
    size, out = _format_states(
        order, t.first_arc, t.label, t.dest, t.backoff, model.log_weight, model.log_backoff, backoff_in, backoff_out
    )
    return out[:size].tobytes()


@kernel
def _format_states(
    order: LongArray, first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray,
    log_weight: FloatArray, log_backoff: FloatArray, backoff_in: int, backoff_out: int,
) -> tuple[int, ByteArray]:  # fmt: skip
    out = np.empty((len(label) + len(order)) * (4 * 11 + MAX_NUMBER_BYTES + 2), np.uint8)
    p = 0
    for q in order:
        if backoff[q] >= 0:
            p = _format_arc(q, backoff[q], backoff_in, backoff_out, -log_backoff[q], out, p)
        for e in range(first_arc[q], first_arc[q + 1]):
            if label[e] == EOS:
                p = write_integer(q, out, p)
                out[p] = 9
                p = write_number(-log_weight[e], out, p + 1)
                out[p] = 10
                p += 1
            else:
                p = _format_arc(q, dest[e], label[e] + 1, label[e] + 1, -log_weight[e], out, p)
    return p, out


@kernel
def _format_arc(q: int, to: int, input_label: int, output_label: int, cost: float, out: ByteArray, p: int) -> int:
    for number in np.array([q, to, input_label, output_label]):
        p = write_integer(number, out, p)
        out[p] = 9
        p += 1
    p = write_number(cost, out, p)
    out[p] = 10
    return p + 1


def _pywrapfst() -> Any:
    try:
        import pywrapfst
    except ImportError:
        raise MissingDependencyError("writing .fst files", "fst") from None
    return pywrapfst


def read_openfst(path: str | Path) -> NGramModel:
    """Read an n-gram automaton in any of the three styles, also as OpenGrm writes it."""
    data = Path(path).read_bytes()
    kind, arcs = automaton_type(data, path)
    if arcs != "standard":
        raise InputError(path, f"has arcs of the type {arcs!r:.40}, not of the type 'standard'")
    if kind != "vector":
        data = as_vector(path, kind)
    automaton = read_vector_fst(data, path)
    if not automaton.names:
        raise InputError(path, "has no symbol table", remedy="attach one with fstsymbols")
    try:
        return assemble(_ngrams(automaton, path))
    except DuplicateNGramError:
        raise InputError(path, "is not an n-gram automaton: a state has two arcs with the same word") from None
    except InvariantError as error:
        raise InputError(path, f"is not an n-gram automaton: {error}") from None


def _ngrams(automaton: Automaton, path: str | Path) -> WeightedNGrams:
    a = automaton
    if np.isnan(a.weight).any() or np.isnan(a.final).any():
        raise InputError(path, "has a weight that is not a number")
    costs = np.concatenate([a.weight[~np.isin(a.label, _backoff_labels(a))], a.final])
    if costs.min(initial=0.0) < -1e-4:
        raise InputError(path, "has a probability greater than 1", remedy="if it has counts, normalise it first")
    backs_off = np.isin(a.label, _backoff_labels(a))
    used, place = np.unique(a.label[~backs_off], return_inverse=True)
    words = [a.names.get(label, f"<label-{label}>") for label in used.tolist()]
    vocabulary = Vocabulary.of(words)
    backoff, log_backoff = np.full(len(a.final), -1, np.int64), np.zeros(len(a.final))
    if len(np.unique(a.source[backs_off])) != int(backs_off.sum()):
        raise InputError(path, "is not an n-gram automaton: a state has two backoff arcs")
    backoff[a.source[backs_off]] = a.dest[backs_off]
    log_backoff[a.source[backs_off]] = -a.weight[backs_off]
    ends = np.flatnonzero(np.isfinite(a.final))
    source = np.concatenate([a.source[~backs_off], ends])
    word = np.concatenate([np.array(vocabulary.encode(words), np.int64)[place], np.full(len(ends), EOS)])
    dest = np.concatenate([a.dest[~backs_off], np.full(len(ends), END)])
    log_weight = -np.concatenate([a.weight[~backs_off], a.final[ends]])
    histories, depth = _recover_histories(source, word, dest, backoff, a.start, path)
    _refuse_other_destinations(histories, depth, source, word, dest, path)
    return _weighted(vocabulary, histories, depth, source, word, log_weight, log_backoff)


def _backoff_labels(automaton: Automaton) -> list[int]:
    return [0, *(label for label, name in automaton.names.items() if name in _BACKOFFS)]


def _refuse_other_destinations(
    histories: IntArray, depth: LongArray, source: LongArray, word: LongArray, dest: LongArray, path: str | Path
) -> None:
    """Check that each arc leads to a state whose history is a suffix of the arc's n-gram, and that histories differ."""
    problem = "is not an n-gram automaton: "
    if len(np.unique(histories, axis=0)) != len(histories):
        raise InputError(path, problem + "two states have the same history")
    for d in range(1, int(depth.max(initial=0)) + 1):
        arcs = np.flatnonzero((dest >= 0) & (depth[np.maximum(dest, 0)] == d))
        for back in range(d):  # the word `back` positions before the end of the n-gram
            column = depth[source[arcs]] - back
            ngram_word = word[arcs] if back == 0 else histories[source[arcs], np.maximum(column, 0)]
            if bool(np.any(column < 0)) or bool(np.any(ngram_word != histories[dest[arcs], d - 1 - back])):
                raise InputError(path, problem + "an arc leads to a state with another history")


def _recover_histories(
    source: LongArray, word: LongArray, dest: LongArray, backoff: LongArray, start: int, path: str | Path
) -> tuple[IntArray, LongArray]:
    """The history of each state: an arc to a state one level deeper appends its word to the history of its source."""
    depth = np.zeros(len(backoff), np.int64)
    at = backoff.copy()
    while (live := at >= 0).any():
        depth[live] += 1
        at[live] = backoff[at[live]]
        if depth.max() >= MAX_ORDER:
            problem = f"its backoff arcs form a cycle, or its order is greater than {MAX_ORDER}"
            raise InputError(path, f"is not an n-gram automaton: {problem}")
    if np.sum(depth == 0) != 1:
        raise InputError(path, "is not an n-gram automaton: exactly one state must have no backoff arc")
    histories = np.full((len(backoff), int(depth.max()) + 1), -1, np.int32)
    known: BoolArray = depth == 0
    if depth[start] == 1:
        histories[start, 0], known[start] = BOS, True
    for level in range(1, int(depth.max()) + 1):
        deeper = (dest >= 0) & (depth[np.maximum(dest, 0)] == level) & (depth[source] == level - 1) & (dest != start)
        histories[dest[deeper], : level - 1] = histories[source[deeper], : level - 1]
        histories[dest[deeper], level - 1] = word[deeper]
        known[dest[deeper]] = True
    if not known.all():
        raise InputError(path, "is not an n-gram automaton: a state cannot be reached by its history")
    return histories, depth


def _weighted(
    vocabulary: Vocabulary, histories: IntArray, depth: LongArray, source: LongArray, word: LongArray,
    log_weight: FloatArray, log_backoff: FloatArray,
) -> WeightedNGrams:  # fmt: skip
    """One n-gram per arc, and one for `<s>`. A state's backoff weight belongs to the n-gram that is its history."""
    rows = np.concatenate([histories[source], np.full((len(source), 1), -1, np.int32)], axis=1)
    lengths = depth[source] + 1
    rows[np.arange(len(source)), lengths - 1] = word
    rows = np.concatenate([rows, np.full((1, rows.shape[1]), -1, np.int32)])
    rows[-1, 0] = BOS
    lengths = np.append(lengths, 1)
    by_history = {tuple(h[:n].tolist()): b for h, n, b in zip(histories, depth, log_backoff, strict=True) if n}
    bow = np.array([by_history.get(tuple(r[:n].tolist()), 0.0) for r, n in zip(rows, lengths, strict=True)])
    ngrams = Ragged(rows[rows >= 0], np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return WeightedNGrams(vocabulary, ngrams, np.minimum(np.append(log_weight, 0.0), 0.0), bow)
