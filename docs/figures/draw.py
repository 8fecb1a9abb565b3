"""Draws the figures of docs/concepts.md: `python docs/figures/draw.py` writes the SVG files beside this one.

A drawing is a list of SVG elements on a white sheet, so that it reads the same on light and dark pages.
"""

from math import hypot
from pathlib import Path

HERE = Path(__file__).parent
INK, SOFT, BLUE, RED, GREEN, PAPER = "#1f2937", "#6b7280", "#2563eb", "#dc2626", "#059669", "#ffffff"
FONT = "font-family='system-ui, sans-serif' paint-order='stroke' stroke-width='5' stroke-linejoin='round'"
Point = tuple[float, float]


def text(
    at: Point,
    words: str,
    *,
    size: int = 15,
    color: str = INK,
    anchor: str = "middle",
    bold: bool = False,
    halo: str = PAPER,
) -> str:
    """One line of text."""
    weight = " font-weight='600'" if bold else ""
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    x, y = at
    place = f"x='{x}' y='{y}' font-size='{size}' text-anchor='{anchor}'{weight}"
    return f"<text {place} fill='{color}' stroke='{halo}' {FONT}>{escaped}</text>"


def node(at: Point, name: str, *, color: str = INK, r: float = 26, double: bool = False) -> str:
    """A state of an automaton."""
    x, y = at
    ring = f"<circle cx='{x}' cy='{y}' r='{r - 4}' fill='none' stroke='{color}'/>" if double else ""
    circle = f"<circle cx='{x}' cy='{y}' r='{r}' fill='{PAPER}' stroke='{color}' stroke-width='2'/>"
    return circle + ring + text((x, y + 5), name, size=14, color=color)


def box(at: Point, size: Point, lines: list[str], *, color: str = INK, fill: str = "#f8fafc") -> str:
    """A box with lines of text; the first one is bold."""
    (x, y), (w, h) = at, size
    rect = f"<rect x='{x}' y='{y}' width='{w}' height='{h}' rx='8' fill='{fill}' stroke='{color}' stroke-width='1.5'/>"
    top = y + h / 2 - 9 * (len(lines) - 1) + 5
    middle = x + w / 2
    rows = [
        text((middle, top + 18 * i), line, size=13, bold=not i, color=color, halo=fill) for i, line in enumerate(lines)
    ]
    return rect + "".join(rows)


def arc(
    a: Point,
    b: Point,
    label: str,
    *,
    bend: float = 0,
    color: str = INK,
    dashed: bool = False,
    gap: float = 28,
    to: float = 30,
) -> str:
    """An arrow from one place to another, bent to its left, with a label beside its middle."""
    (x1, y1), (x2, y2) = a, b
    length = hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    nx, ny = dy, -dx
    mx, my = (x1 + x2) / 2 + nx * bend, (y1 + y2) / 2 + ny * bend
    tilt = bend / length
    sx, sy = x1 + gap * (dx + 1.5 * tilt * nx), y1 + gap * (dy + 1.5 * tilt * ny)
    ex, ey = x2 - to * (dx - 1.5 * tilt * nx), y2 - to * (dy - 1.5 * tilt * ny)
    dash = " stroke-dasharray='6 5'" if dashed else ""
    curve = f"M {sx:.1f} {sy:.1f} Q {mx:.1f} {my:.1f} {ex:.1f} {ey:.1f}"
    style = f"fill='none' stroke='{color}' stroke-width='1.8' marker-end='url(#{color[1:]})'{dash}"
    path = f"<path d='{curve}' {style}/>"
    side = 14 if bend >= 0 else -14
    lx, ly = (sx + 2 * mx + ex) / 4 + nx * side, (sy + 2 * my + ey) / 4 + ny * side + 5
    return path + text((lx, ly), label, size=14, color=color)


def sheet(name: str, width: int, height: int, parts: list[str]) -> None:
    """Write a drawing."""
    heads = "".join(
        f"<marker id='{c[1:]}' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M 0 0 L 10 5 L 0 10 z' fill='{c}'/></marker>"
        for c in (INK, SOFT, BLUE, RED, GREEN)
    )
    size = f"viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img'><defs>{heads}</defs>"
    ground = f"<rect width='{width}' height='{height}' rx='12' fill='{PAPER}'/>"
    (HERE / name).write_text(head + ground + "\n".join(parts) + "</svg>\n", encoding="utf-8")


def automaton() -> None:
    """A bigram model with φ arcs."""
    start, empty, new, end = (80.0, 190.0), (300.0, 190.0), (560.0, 80.0), (560.0, 290.0)
    loop = "M 288 214 C 240 300, 360 300, 312 214"
    parts = [
        text((320, 30), "A bigram model as an automaton", size=17, bold=True),
        arc(start, empty, "φ", color=RED, dashed=True),
        arc(start, new, "new / 0.2", bend=80),
        arc(empty, new, "new / 0.01", bend=40),
        arc(new, empty, "φ", color=RED, dashed=True, bend=6),
        arc(new, empty, "york / 0.6", bend=80),
        arc(empty, end, "</s> / 0.1", bend=-10),
        f"<path d='{loop}' fill='none' stroke='{INK}' stroke-width='1.8' marker-end='url(#{INK[1:]})'/>",
        text((300, 298), "york, ok, … / unigrams", size=14),
        node(start, "<s>"),
        node(empty, "·"),
        node(new, "new"),
        node(end, "end", double=True),
        text((320, 340), "A state is a history; · is the empty one. A word for which", size=13, color=SOFT),
        text((320, 358), "a state has no arc is read at its backoff state, along φ.", size=13, color=SOFT),
    ]
    sheet("automaton.svg", 640, 376, parts)


def composition() -> None:
    """A, M and B = M∘A for the words ab and ac, as in Figure 3 of the paper."""
    empty, ab, start = (170.0, 260.0), (170.0, 110.0), (60.0, 260.0)
    loop = "M 190 278 C 260 310, 240 230, 196 254"
    parts = [
        text((150, 32), "A: words", size=16, bold=True),
        arc(empty, ab, "ab", bend=44),
        arc(ab, empty, "ac", bend=44),
        arc(ab, empty, "φ", color=RED, dashed=True),
        arc(start, empty, "φ", color=RED, dashed=True),
        f"<path d='{loop}' fill='none' stroke='{INK}' stroke-width='1.8' marker-end='url(#{INK[1:]})'/>",
        text((262, 274), "ac", size=14),
        *(node(start, "<s>"), node(empty, "·"), node(ab, "ab")),
    ]
    left, right = (370.0, 185.0), (500.0, 185.0)
    parts += [
        text((435, 32), "M: spelling", size=16, bold=True),
        *(arc(left, right, "a"), arc(right, left, "b : ab", bend=70), arc(right, left, "c : ac", bend=-70)),
        *(node(left, "ε"), node(right, "a")),
    ]
    start, empty, begun, ab, ab_begun = (600.0, 290.0), (720.0, 290.0), (920.0, 290.0), (720.0, 110.0), (920.0, 110.0)
    parts += [
        text((780, 32), "B = M∘A: pieces", size=16, bold=True),
        *(arc(empty, begun, "a", bend=-34), arc(begun, empty, "c", bend=-4), arc(begun, ab, "")),
        *(arc(ab, ab_begun, "a"), arc(ab_begun, empty, ""), arc(ab, empty, "φ", color=RED, dashed=True)),
        arc(ab_begun, begun, "φ", color=RED, dashed=True, bend=-2),
        *(text((776, 165), "b", size=14), text((776, 240), "c", size=14)),
        arc(start, empty, "φ", color=RED, dashed=True),
        *(node(start, "<s>"), node(empty, "·"), node(begun, "·, a"), node(ab, "ab"), node(ab_begun, "ab, a")),
        text((500, 380), "A state of B is a history of A and the pieces of the word so far.", size=13, color=SOFT),
        text((500, 398), "Counts of a word's pieces in B become the word's count in A.", size=13, color=SOFT),
    ]
    sheet("composition.svg", 1000, 416, parts)


def minimisation() -> None:
    """SampleApprox: sample, count, minimise."""
    steps = [
        ("Network R", ["samples sentences", "and gives p(x | prefix)"], BLUE),
        ("Count", ["at the state q of each prefix:", "C(x, q) += p(x | prefix)"], INK),
        ("Minimise KL(R ‖ A)", ["Σ C(x, q) · log p_A(x | q)", "is concave, one maximum"], INK),
        ("n-gram model A", ["the closest one", "on this topology"], GREEN),
    ]
    parts = [text((480, 32), "SampleApprox: the n-gram model closest to any source", size=17, bold=True)]
    for i, (title, lines, color) in enumerate(steps):
        x = 20 + 238 * i
        parts.append(box((x, 70), (200, 100), [title, *lines], color=color))
        if i < 3:
            parts.append(arc((x + 200.0, 120.0), (x + 238.0, 120.0), "", gap=4, to=4, color=SOFT))
    parts.append(
        text(
            (480, 205),
            "Every word's probability is counted at every prefix, not only the sampled one: fewer samples are needed.",
            size=13,
            color=SOFT,
        )
    )
    sheet("minimisation.svg", 980, 225, parts)


def masked_round() -> None:
    """Pairwise masks that cancel in the sum."""
    places = {"device 1": (120.0, 90.0), "device 2": (120.0, 210.0), "device 3": (120.0, 330.0)}
    sent = {"device 1": "x₁ + s₁₂ + s₁₃", "device 2": "x₂ − s₁₂ + s₂₃", "device 3": "x₃ − s₁₃ − s₂₃"}
    parts = [text((430, 32), "A masked round: the server learns the sum, and no single vector", size=17, bold=True)]
    for name, (x, y) in places.items():
        parts += [
            box((x - 70, y - 30), (140, 60), [name, "has its vector"], color=BLUE),
            arc((x + 70, y), (520.0, 210.0), "", gap=6, to=8, color=SOFT),
            text((320, y + (210 - y) * 0.4 - (10 if y < 300 else -26)), sent[name], size=14),
        ]
    parts += [
        box((520, 160), (150, 100), ["server", "adds them:", "masks cancel"], color=INK),
        arc((670.0, 210.0), (720.0, 210.0), "", gap=4, to=4, color=GREEN),
        box((720, 180), (130, 60), ["x₁ + x₂ + x₃", "exactly"], color=GREEN),
        arc((50.0, 120.0), (50.0, 180.0), "", gap=4, to=4, color=RED),
        arc((50.0, 180.0), (50.0, 120.0), "", gap=4, to=4, color=RED),
        text((26, 155), "s₁₂", size=13, color=RED),
        arc((50.0, 240.0), (50.0, 300.0), "", gap=4, to=4, color=RED),
        arc((50.0, 300.0), (50.0, 240.0), "", gap=4, to=4, color=RED),
        text((26, 275), "s₂₃", size=13, color=RED),
        text(
            (440, 395),
            "Each pair of devices agrees on a secret mask: one adds it, the other subtracts it.",
            size=13,
            color=SOFT,
        ),
        text((440, 413), "If a device leaves, shares that its neighbours hold remove its masks.", size=13, color=SOFT),
    ]
    sheet("masked_round.svg", 880, 430, parts)


def gaussian_event() -> None:
    """One clipped vector, sent in parts; noise on every part; one Gaussian event."""
    orders = [("unigrams", 0.1), ("pairs", 0.5), ("3-grams", 1.0), ("4-grams", 1.0)]
    parts = [
        text((450, 32), "One Gaussian event over all passes", size=17, bold=True),
        box(
            (20, 70),
            (190, 120),
            ["one device", "v = (⅛·S₁, ½·S₂, S₃, S₄)", "scaled once to ‖v‖ ≤ norm"],
            color=BLUE,
        ),
    ]
    for i, (name, _) in enumerate(orders):
        y = 62.0 + 36 * i
        parts += [
            arc((210.0, 130.0), (330.0, y + 14), "", gap=2, to=2, color=SOFT),
            f"<rect x='330' y='{y}' width='150' height='28' rx='6' fill='#eff6ff' stroke='{BLUE}'/>",
            text((405, y + 19), f"pass {i + 1}: {name}", size=13),
            arc((480.0, y + 14), (560.0, y + 14), "", gap=2, to=2, color=SOFT),
            text((640, y + 19), "Σ devices + noise σ·norm", size=13, color=RED),
        ]
    parts += [
        arc((735.0, 130.0), (775.0, 130.0), "", gap=2, to=2, color=SOFT),
        box((775, 90), (110, 80), ["(ε, δ)", "from σ alone", "once"], color=GREEN),
        text(
            (450, 235),
            "However a pass was chosen from earlier noisy sums, a device's parts together are never longer than norm:",
            size=13,
            color=SOFT,
        ),
        text((450, 255), "all passes cost what one does.", size=13, color=SOFT),
    ]
    sheet("gaussian_event.svg", 900, 275, parts)


if __name__ == "__main__":
    for draw in (automaton, composition, minimisation, masked_round, gaussian_event):
        draw()
