"""Smoothing methods spelled out over dictionaries, straight from their definitions."""

from collections import Counter, defaultdict

NGram = tuple[str, ...]


def count(sentences: list[list[str]], order: int) -> Counter[NGram]:
    counts: Counter[NGram] = Counter()
    for sentence in sentences:
        marked = ["<s>", *sentence, "</s>"]
        for n in range(1, order + 1):
            counts.update(tuple(marked[i : i + n]) for i in range(len(marked) - n + 1))
    del counts[("<s>",)]
    return counts


def successors(counts: Counter[NGram]) -> dict[NGram, dict[str, int]]:
    after: dict[NGram, dict[str, int]] = defaultdict(dict)
    for ngram, c in counts.items():
        after[ngram[:-1]][ngram[-1]] = c
    return after


def witten_bell(counts: Counter[NGram], history: NGram, word: str) -> float:
    after = successors(counts)[history]
    total, types = sum(after.values()), len(after)
    if not history:
        return after[word] / total
    return (after.get(word, 0) + types * witten_bell(counts, history[1:], word)) / (total + types)


def kneser_ney_counts(counts: Counter[NGram], order: int) -> Counter[NGram]:
    """Number of words in front of each n-gram; counts where nothing can stand in front."""
    adjusted: Counter[NGram] = Counter()
    for ngram, c in counts.items():
        if len(ngram) == order or ngram[0] == "<s>":
            adjusted[ngram] = c
        else:
            adjusted[ngram] = sum(1 for longer in counts if longer[1:] == ngram)
    return adjusted


def absolute(counts: Counter[NGram], history: NGram, word: str) -> float:
    after = successors(counts)[history]
    total = sum(after.values())
    if not history:
        return after[word] / total
    same_order = [c for ngram, c in counts.items() if len(ngram) == len(history) + 1]
    n1, n2 = same_order.count(1), same_order.count(2)
    D = n1 / (n1 + 2 * n2) if n1 else 0.6
    rest = sum(min(D, c) for c in after.values()) / total
    return max(after.get(word, 0) - D, 0) / total + rest * absolute(counts, history[1:], word)


def modified(counts: Counter[NGram], history: NGram, word: str) -> float:
    """Chen and Goodman's modified Kneser-Ney on adjusted counts, unigrams mixed with the uniform distribution."""
    after = successors(counts)[history]
    total = sum(after.values())
    same_order = [c for ngram, c in counts.items() if len(ngram) == len(history) + 1]
    n = [same_order.count(k) for k in range(5)]
    D = [0.0, 0.5, 1.0, 1.5]
    if n[1] and n[2] and n[3]:
        Y = n[1] / (n[1] + 2 * n[2])
        found = [k - (k + 1) * Y * n[k + 1] / n[k] for k in (1, 2, 3)]
        if all(0 < d <= k for k, d in enumerate(found, 1)):
            D = [0.0, *found]
    rest = sum(min(D[min(c, 3)], c) for c in after.values()) / total
    lower = modified(counts, history[1:], word) if history else 1.0 / len(after)
    own = after.get(word, 0)
    return max(own - D[min(own, 3)], 0) / total + rest * lower


def katz_discounts(counts: Counter[NGram], order: int) -> dict[int, float]:
    n = Counter(c for ngram, c in counts.items() if len(ngram) == order)
    base = next((n[r] for r in range(1, 7) if n[r]), 1)
    R = 6 * n[6] / base
    factor = {}
    for r in range(1, 6):
        d = ((r + 1) * n[r + 1] / (r * n[r]) - R) / (1 - R) if n[r] and R != 1 else -1
        factor[r] = d if 0 < d < 1 else 0.999
    return factor
