"""presage's SQLite database: the tables `_1_gram`, `_2_gram`, `_3_gram` of words and counts, as `text2ngram` creates.

presage puts words between single quotes in its queries without escaping, and fails at a word that contains one. So
apostrophes are written as the typographic apostrophe (U+2019), with which presage works.
"""

import sqlite3
import tempfile
from pathlib import Path

import numpy as np

from fedgram.automata.build import ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.core.storage import atomic_write
from fedgram.formats.onboard import TEXT_SIZE
from fedgram.formats.word_pairs import expected_counts

_MAX_ORDER = 3


def write_presage(model: NGramModel, path: str | Path) -> None:
    """Write n-grams of up to three words, except those with sentence marks or placeholders.

    Words that differ only in the kind of apostrophe are counted together.
    """
    rows, counts = ngrams_of(model.topology), expected_counts(model, TEXT_SIZE)
    names = [word.replace("'", "’") for word in model.vocabulary.words]
    lengths = np.diff(rows.offsets)
    plain = np.array([not name.startswith("<") for name in names])
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "presage.db"
        database = sqlite3.connect(made)
        for n in range(1, min(int(lengths.max()), _MAX_ORDER) + 1):
            columns = [*(f"word_{k}" for k in range(n - 1, 0, -1)), "word"]
            listed = ", ".join(columns)
            typed = ", ".join(f"{column} TEXT" for column in columns)
            database.execute(f"CREATE TABLE _{n}_gram ({typed}, count INTEGER, UNIQUE({listed}))")
            database.executemany(
                f"INSERT INTO _{n}_gram VALUES ({', '.join('?' * (n + 1))}) "
                f"ON CONFLICT({listed}) DO UPDATE SET count = count + excluded.count",
                (
                    (*(names[w] for w in rows[i].tolist()), int(counts[i]))
                    for i in np.flatnonzero(lengths == n).tolist()
                    if plain[rows[i]].all()
                ),
            )
        database.commit()
        database.close()
        with atomic_write(path) as file:
            file.write(made.read_bytes())
