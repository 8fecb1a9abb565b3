"""The recurrent cells by name: those of this package, and those that others register.

`ModelShape.cell` is such a name. A cell can be registered in a program,

    register_cell("my-cell", MyCell())

or by an installed package, whose class is found by name in every process that reads a network with this cell:

    [project.entry-points."fedgram.cells"]
    my-cell = "my_package.cells:MyCell"
"""

from importlib.metadata import entry_points

from fedgram.core.errors import FedgramError
from fedgram.neural.cell import Cell
from fedgram.neural.gated_cells import CifgCell, GruCell, LstmCell

ENTRY_POINTS = "fedgram.cells"
_BUILT_IN: dict[str, Cell] = {"cifg": CifgCell(), "lstm": LstmCell(), "gru": GruCell()}
BUILT_IN_CELLS = tuple(_BUILT_IN)
_METHODS = ("sizes", "initial_weights", "state_sizes", "inputs", "step")
_registered: dict[str, Cell] = {}


def register_cell(name: str, cell: Cell, *, replace: bool = False) -> None:
    """Make a cell known by a name that `ModelShape` accepts.

    Args:
        name: The name; files of networks store it.
        cell: An object with the methods of `Cell`.
        replace: Allow a name that is registered already; the built-in cells cannot be replaced.
    """
    if name in _BUILT_IN:
        raise FedgramError(f"the cell {name!r} is built in and cannot be replaced; choose another name")
    if name in _registered and not replace:
        raise FedgramError(f"a cell is registered as {name!r} already; choose another name, or pass replace=True")
    if missing := [method for method in _METHODS if not callable(getattr(cell, method, None))]:
        raise FedgramError(f"the cell {name!r} lacks {', '.join(missing)}; see fedgram.neural.cell.Cell")
    _registered[name] = cell


def find_cell(name: str) -> Cell:
    """The cell of this name."""
    if name not in _BUILT_IN and name not in _registered:
        for entry in list(entry_points(group=ENTRY_POINTS, name=name))[:1]:
            register_cell(name, entry.load()())  # the entry names a class, which takes no arguments
    known = _BUILT_IN | _registered
    if name not in known:
        raise FedgramError(f"unknown cell {name!r}; choose one of {', '.join(known)}, or register it: register_cell")
    return known[name]


def is_process_local(name: str) -> bool:
    """Whether only this process knows the cell: `register_cell` registered it, and no installed package has it."""
    return name in _registered and not entry_points(group=ENTRY_POINTS, name=name)
