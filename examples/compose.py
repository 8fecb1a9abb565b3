"""Word pieces in one page: B = M ∘ A for the words {ab, ac}, and counts on B turned into counts on A.

The readable specification of `fedgram.automata.compose`, with the example of the paper's Figure 3; the tests compare
the two. Run it with `python examples/compose.py`.
"""

END = "</s>"
CODES = {"ab": ["a", "b"], "ac": ["a", "c"]}
# A word topology: what each history reads, and where that leads; "" is the empty history.
A: dict[str, dict[str, str | None]] = {
    "": {"ab": "ab", "ac": "", END: None},
    "<s>": {},
    "ab": {"ac": ""},
}
BACKOFF = {"<s>": "", "ab": ""}
State = tuple[tuple[str, ...], str]  # (pieces of the word so far, history)


def compose() -> tuple[dict[State, dict[str, State | None]], dict[State, State]]:
    """B from reachable pairs: its arcs, and where its states back off to."""
    arcs: dict[State, dict[str, State | None]] = {}
    backoff: dict[State, State] = {}
    todo: list[State] = [((), "<s>")]
    while todo:
        begun, q = state = todo.pop()
        if state in arcs:
            continue
        arcs[state] = {END: None} if not begun and END in A[q] else {}
        for word, code in CODES.items():
            if word in A[q] and tuple(code[: len(begun)]) == begun:
                piece = code[len(begun)]
                done = (*begun, piece) == tuple(code)
                arcs[state][piece] = ((), A[q][word] or "") if done else ((*begun, piece), q)
        if q in BACKOFF:
            backoff[state] = (begun, BACKOFF[q])
        todo += [d for d in [*arcs[state].values(), backoff.get(state)] if d]
    return arcs, backoff


def source(begun: tuple[str, ...], before: str) -> dict[str, float]:
    """p(piece | prefix) of a model of word pieces, here of the word so far and the word before."""
    if not begun:
        return {"a": 0.75, END: 0.25}
    return {"b": 0.2, "c": 0.8} if before == "ab" else {"b": 0.6, "c": 0.4}


def count(steps: int = 400) -> tuple[dict[tuple[str, State], float], dict[State, float]]:
    """Expected C_B(x, q) and C_B(φ, q): what is likely to be read, state by state."""
    arcs, backoff = compose()
    C = {(x, q): 0.0 for q, read in arcs.items() for x in read}
    C_phi = dict.fromkeys(backoff, 0.0)
    now: dict[State, float] = {((), "<s>"): 1.0}
    for _ in range(steps):
        later: dict[State, float] = {}
        for state, visits in now.items():
            for x, p in source(*state).items():
                at = state
                while x not in arcs[at]:
                    C_phi[at] += visits * p
                    at = backoff[at]
                C[x, at] += visits * p
                if after := arcs[at][x]:
                    later[after] = later.get(after, 0.0) + visits * p
        now = later
    return C, C_phi


def transfer() -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """C_A(y, q) = C_B(x_y, (q_y, q)), where y's last piece is read; C_A(φ, q) = Σ C_B(φ, (·, q))."""
    C_B, phi_B = count()
    code = CODES | {END: [END]}
    C_A = {(y, q): C_B[code[y][-1], (tuple(code[y][:-1]), q)] for q, read in A.items() for y in read}
    return C_A, {q: sum(c for (_, at), c in phi_B.items() if at == q) for q in BACKOFF}


if __name__ == "__main__":
    for (y, q), c in transfer()[0].items():
        print(f"C({y:4} | {q or '·':3}) = {c:.6f}")
