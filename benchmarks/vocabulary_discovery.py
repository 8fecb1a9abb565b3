"""Vocabulary discovery: how many words it finds on a million users, how precisely, and in what time.

    python -m benchmarks.vocabulary_discovery [--users 1000000]

Each generated user has one word. There are 200,000 words of four to nine random letters, and the r-th word has a
probability proportional to 1 / (r + 9). The command `fedgram federated discover` reads the users from a Parquet file
and gets a whitelist of other words. The time is that of the whole command, on the clock; most of it is reading.
`holders 1 %` is the number of holders that 99 % of the found words reach. The last rows have a small population.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.measure import FEDGRAM, run, save

from fedgram.core.arrays import LongArray
from fedgram.text.messages import write_messages

WORDS, KNOWN, SMALL = 200_000, 5_000, 2_000
EPSILON, DELTA = 4, 2.3e-12
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def random_words(count: int, rng: np.random.Generator) -> list[str]:
    """Distinct words whose letters have unequal probabilities."""
    probability = rng.dirichlet(np.full(len(LETTERS), 2.0))
    words: dict[str, None] = {}
    while len(words) < count:
        letters = rng.choice(LETTERS, (count, 9), p=probability)
        lengths = rng.integers(4, 10, count)
        words |= dict.fromkeys("".join(row[:n]) for row, n in zip(letters, lengths, strict=True))
    return list(words)[:count]


def write_users(path: Path, words: list[str], held: LongArray) -> None:
    """One user per entry of `held`, who typed that word once."""
    write_messages(path, ((f"user{i:07d}", words[word], "train") for i, word in enumerate(held.tolist())))


def measure(folder: Path, words: list[str], held: LongArray, method: str) -> dict[str, object]:
    """A run of the command on the users of a folder."""
    found, shown = folder / "found.txt", folder / "shown.json"
    users = ["--users", folder / "users.parquet", "--whitelist", folder / "whitelist.txt", "--method", method]
    guarantee = ["--epsilon", EPSILON, "--delta", DELTA, "--noise-seed", 1, "-o", found, "--json"]
    cost = run([*FEDGRAM, "federated", "discover", *map(str, [*users, *guarantee])], stdout=shown)
    about = json.loads(shown.read_text())
    number = {word: i for i, word in enumerate(words)}
    holders = np.bincount(held, minlength=len(words))
    true = [n for word in found.read_text().split() if (n := int(holders[number[word]] if word in number else 0))]
    return {
        "users": len(held), "method": method, "levels": len(about["reports_by_level"]), "words": about["words"],
        "precision": len(true) / about["words"] if about["words"] else None,
        "holders needed": about["holders_needed"], "holders 1 %": int(np.quantile(true, 0.01)) if true else None,
        "most candidates": max(about["candidates_by_level"], default=0), "seconds": cost.seconds,
        "GB": cost.gigabytes, "reason": about.get("reason"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    users, rng = parser.parse_args().users, np.random.default_rng(0)
    every = random_words(WORDS + KNOWN, rng)
    words, known = every[:WORDS], every[WORDS:]
    probability = 1.0 / np.arange(10, WORDS + 10)
    held = rng.choice(WORDS, users, p=probability / probability.sum())
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "whitelist.txt").write_text("\n".join(known) + "\n")
        for part in (held, held[:SMALL]):
            write_users(folder / "users.parquet", words, part)
            rows += [measure(folder, words, part, method) for method in ("tree", "triehh")]
    save("vocabulary_discovery", rows)


if __name__ == "__main__":
    main()
