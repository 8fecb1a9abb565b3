"""SampleApprox in one page: find the bigram model closest to a source that can only be sampled and asked.

The readable specification of `fedgram.automata.approximate`; `tests/e2e/test_examples.py` compares the two. Run it with
`python examples/sample_approx.py`.
"""

import random
from collections import defaultdict

END = "</s>"
LABELS = ["a", "b", "c", END]
BIGRAMS = {"a": ["b"], "b": ["a", "c"]}  # what each history reads itself; everything else it leaves to the unigrams


def source(prefix: list[str]) -> dict[str, float]:
    """p(x | prefix) of the model to be approximated: any function of the whole prefix will do."""
    long = len(prefix) > 2
    a, c, end = 0.1 + 0.3 * (prefix[-1:] == ["b"]), 0.1 + 0.3 * long, 0.1 * long
    return {"a": a, "b": 1.0 - a - c - end, "c": c, END: end}


def state(prefix: list[str]) -> str:
    """The history the bigram model keeps of a prefix: its last word if that is a state, else nothing."""
    return prefix[-1] if prefix and prefix[-1] in BIGRAMS else ""


def count(samples: int, rng: random.Random) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """C(x, q): probability with which x is read at q, summed over visits; C(φ, q): what q leaves to its backoff."""
    C: dict[tuple[str, str], float] = defaultdict(float)
    C_phi: dict[str, float] = defaultdict(float)
    for _ in range(samples):
        prefix: list[str] = []
        while prefix[-1:] != [END]:
            p, q = source(prefix), state(prefix)
            for x in LABELS:
                if q and x not in BIGRAMS[q]:
                    C_phi[q] += p[x]
                C[x, q if q and x in BIGRAMS[q] else ""] += p[x]
            prefix.append(rng.choices(LABELS, [p[x] for x in LABELS])[0])
    return C, C_phi


def minimize(C: dict[tuple[str, str], float], C_phi: dict[str, float]) -> dict[tuple[str, str], float]:
    """w_q[x]: bigram states in closed form, unigrams by y_x ∝ C(x) / (N + Σ_{q: x∉L[q]} C(φ,q)/d_q)."""
    w = {}
    for q, read in BIGRAMS.items():
        total = C_phi[q] + sum(C[x, q] for x in read)
        for x in read:
            w[x, q] = C[x, q] / total
    N = sum(C[x, ""] for x in LABELS) - sum(C_phi.values())  # visits to the empty history itself
    y = {x: C[x, ""] for x in LABELS}
    for _ in range(2000):
        scale = sum(y.values())
        y = {x: v / scale for x, v in y.items()}
        d = {q: 1.0 - sum(y[x] for x in read) for q, read in BIGRAMS.items()}
        y = {x: C[x, ""] / (N + sum(C_phi[q] / d[q] for q, read in BIGRAMS.items() if x not in read)) for x in LABELS}
    return w | {(x, ""): v / sum(y.values()) for x, v in y.items()}


if __name__ == "__main__":
    for (x, q), p in sorted(minimize(*count(20_000, random.Random(7))).items()):
        print(f"p({x:4} | {q or '·'}) = {p:.4f}")
