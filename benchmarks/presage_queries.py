"""presage's predictions and their times: a child of `benchmarks.keyboard_peers`.

    python -m benchmarks.presage_queries DATABASE CONTEXTS.json

presage's C interface is called in this process; a context is words, and a space follows the last one. Prints the
microseconds and the predictions of every context as JSON.
"""

import ctypes
import ctypes.util
import json
import sys
from pathlib import Path
from time import perf_counter

SETTINGS = {
    "Presage.PredictorRegistry.PREDICTORS": "DefaultSmoothedNgramPredictor",
    "Presage.Predictors.DefaultSmoothedNgramPredictor.LEARN": "no",
    "Presage.ContextTracker.ONLINE_LEARNING": "no",
    "Presage.ContextTracker.LOWERCASE_MODE": "no",
    "Presage.Selector.SUGGESTIONS": "3",
    "Presage.Selector.REPEAT_SUGGESTIONS": "yes",
}
DATABASE = "Presage.Predictors.DefaultSmoothedNgramPredictor.DBFILENAME"
Text = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
Strings = ctypes.POINTER(ctypes.c_char_p)


class Presage:
    """presage with a database; it predicts from its default settings, apart from those above."""

    def __init__(self, database: str) -> None:
        self._library = ctypes.CDLL(library())
        self._text = ctypes.create_string_buffer(b"", 4096)
        nothing = ctypes.create_string_buffer(b"")
        self._kept = (
            Text(lambda _: ctypes.addressof(self._text)),
            Text(lambda _: ctypes.addressof(nothing)),
            nothing,
        )
        self._handle = ctypes.c_void_p()
        self._call("presage_new", self._kept[0], None, self._kept[1], None, ctypes.byref(self._handle))
        for name, value in {DATABASE: database, **SETTINGS}.items():
            self._call("presage_config_set", self._handle, name.encode(), value.encode())

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with code {code}")

    def predict(self, words: list[str]) -> list[str]:
        """The words that follow these."""
        self._text.value = "".join(f"{word} " for word in words).encode()[-4000:]
        found = Strings()
        self._call("presage_predict", self._handle, ctypes.byref(found))
        predicted, i = [], 0
        while (word := found[i]) is not None:
            predicted.append(word.decode())
            i += 1
        self._library.presage_free_string_array(found)
        return predicted


def library() -> str:
    """The file name of presage's library; empty if it is not installed."""
    return ctypes.util.find_library("presage") or ""


def main(database: str, contexts: str) -> None:
    presage, times, predicted = Presage(database), [], []
    for words in json.loads(Path(contexts).read_text()):
        began = perf_counter()
        predicted.append(presage.predict(words))
        times.append(1e6 * (perf_counter() - began))
    print(json.dumps([times, predicted]))


if __name__ == "__main__":
    main(*sys.argv[1:])
