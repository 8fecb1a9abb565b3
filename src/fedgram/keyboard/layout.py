"""The positions of the keys, and a model of how fingers miss them.

Positions are in key widths from the upper left corner of the letters. Rows are 1.5 key widths high, as on a phone held
upright. The distance of a tap from the centre of the intended key is Gaussian in both directions. A word is typed by
its key: its letters without accents and apostrophes (see `spelling`). If a letter has several keys, such as c and ç,
the nearest one counts. Paper: §1.1.
"""

from dataclasses import dataclass, field

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, frozen
from fedgram.core.errors import FedgramError
from fedgram.fgram.spelling import letter_key

ROW_HEIGHT = 1.5
_ROWS = {
    "en_us": (("qwertyuiop", 0.0), ("asdfghjkl", 0.5), ("zxcvbnm", 1.5)),
    "pt_br": (("qwertyuiop", 0.0), ("asdfghjklç", 0.0), ("zxcvbnm", 1.5)),
    "cs_cz": (("qwertzuiop", 0.0), ("asdfghjkl", 0.5), ("yxcvbnm", 1.5)),
    "da_dk": (("qwertyuiopå", 0.0), ("asdfghjklæø", 0.0), ("zxcvbnm", 2.0)),
    "de_de": (("qwertzuiopü", 0.0), ("asdfghjklöä", 0.0), ("yxcvbnm", 2.0)),
    "el_gr": (("ςερτυθιοπ", 0.5), ("ασδφγηξκλ", 0.5), ("ζχψωβνμ", 1.5)),
    "es_es": (("qwertyuiop", 0.0), ("asdfghjklñ", 0.0), ("zxcvbnm", 1.5)),
    "fr_fr": (("azertyuiop", 0.0), ("qsdfghjklm", 0.0), ("wxcvbn", 2.0)),
    "it_it": (("qwertyuiop", 0.0), ("asdfghjkl", 0.5), ("zxcvbnm", 1.5)),
    "nb_no": (("qwertyuiopå", 0.0), ("asdfghjkløæ", 0.0), ("zxcvbnm", 2.0)),
    "nl_nl": (("qwertyuiop", 0.0), ("asdfghjkl", 0.5), ("zxcvbnm", 1.5)),
    "pl_pl": (("qwertyuiop", 0.0), ("asdfghjkl", 0.5), ("zxcvbnm", 1.5)),
    "ru_ru": (("йцукенгшщзх", 0.0), ("фывапролджэ", 0.0), ("ячсмитьбю", 1.0)),
    "sv_se": (("qwertyuiopå", 0.0), ("asdfghjklöä", 0.0), ("zxcvbnm", 2.0)),
    "tr_tr": (("qwertyuıopğü", 0.0), ("asdfghjklşi", 0.5), ("zxcvbnmöç", 1.5)),
    "uk_ua": (("йцукенгшщзхї", 0.0), ("фівапролджє", 0.5), ("ґячсмитьбю", 1.0)),
}
LAYOUTS = tuple(_ROWS)
_RIGHT_TO_LEFT = ("ar", "dv", "fa", "he", "iw", "ps", "sd", "ug", "ur", "yi")


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The letter keys of a keyboard: their labels, and their centres as rows of (x, y)."""

    name: str
    keys: str
    centres: FloatArray
    letters: str = field(init=False)
    """The letters that the keys type, as in the keys of words: `ç` types `c`."""
    owner: LongArray = field(init=False)
    """For each key, the index of its letter."""

    def __post_init__(self) -> None:
        typed = [letter_key(key) for key in self.keys]
        object.__setattr__(self, "letters", "".join(dict.fromkeys(typed)))
        object.__setattr__(self, "owner", frozen(np.array([self.letters.index(letter) for letter in typed])))
        frozen(self.centres)

    @property
    def width(self) -> float:
        """The width of all letters, in key widths."""
        return float(self.centres[:, 0].max()) + 0.5

    @property
    def height(self) -> float:
        """The height of all letters, in key widths."""
        return float(self.centres[:, 1].max()) + ROW_HEIGHT / 2

    def places_of(self, letter: str) -> FloatArray:
        """The centres of the keys that type a letter."""
        places: FloatArray = self.centres[[i for i, key in enumerate(self.keys) if letter_key(key) == letter]]
        return places

    def centre_of(self, letter: str) -> FloatArray:
        """The centre of a letter's first key."""
        centre: FloatArray = self.places_of(letter)[0]
        return centre

    def nearest(self, points: FloatArray) -> str:
        """The labels of the nearest keys: what a keyboard without a decoder would type."""
        squared = ((points[:, None, :] - self.centres[None, :, :]) ** 2).sum(axis=2)
        return "".join(self.keys[i] for i in squared.argmin(axis=1))

    def squared_distances(self, points: FloatArray) -> FloatArray:
        """For each point and each of `letters`, the squared distance to the letter's nearest key."""
        squared = ((points[:, None, :] - self.centres[None, :, :]) ** 2).sum(axis=2)
        result = np.full((len(points), len(self.letters)), np.inf)
        np.minimum.at(result.T, self.owner, squared.T)
        return result

    def typed(self, word_key: str) -> FloatArray:
        """The taps of a perfect typist: the centres of the keys."""
        return np.array([self.centre_of(letter) for letter in word_key]).reshape(-1, 2)


def load_layout(name: str) -> Layout:
    """The layout of a language: one of `LAYOUTS`.

    >>> load_layout("pt_br").nearest(np.array([[9.4, 2.2], [0.6, 0.7]]))
    'çq'
    """
    if name.lower().replace("-", "_").split("_")[0] in _RIGHT_TO_LEFT:
        raise FedgramError(f"there is no layout {name!r}: right-to-left scripts have models and dictionaries only")
    if name not in _ROWS:
        raise FedgramError(f"there is no layout {name!r}; choose one of {', '.join(_ROWS)}")
    keys, centres = "", []
    for row, (letters, indent) in enumerate(_ROWS[name]):
        keys += letters
        centres += [(indent + i + 0.5, (row + 0.5) * ROW_HEIGHT) for i in range(len(letters))]
    return Layout(name, keys, np.array(centres))


def noisy_taps(layout: Layout, word_key: str, sigma: float, rng: np.random.Generator) -> FloatArray:
    """Taps whose distance from the intended keys has a standard deviation of `sigma` key widths."""
    perfect = layout.typed(word_key)
    return perfect + rng.normal(0.0, sigma, perfect.shape)
