"""A page as a list of blocks, and its two output formats: one self-contained HTML file, and Markdown.

The HTML contains its styles and images and needs no network and no script; a content security policy forbids both. It
follows the reader's light or dark theme, in figures too. Wide tables scroll sideways on narrow screens, and show it.
"""

import base64
import html
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 1 is the title of the page."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Lead:
    """The result in one sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class Contents:
    """Links to all headings of level 2 that follow."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart: its name, its length with both ends of an interval, how it reads, and whether it stands out.

    `note` says in a few words what it is.
    """

    name: str
    value: float
    interval: tuple[float, float] | None
    text: str
    stands_out: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Horizontal bars from zero, with intervals; drawn in HTML, so that it fits every screen."""

    bars: tuple[Bar, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Sentences that must not be overlooked."""

    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first column names the row; the others have numbers, or text if `text_columns` is set.

    `details` are the rows, by number, that belong to the one above.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    text_columns: bool = False
    details: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """A PNG image; the caption is also its alternative text. `dark` is the same figure on a dark ground."""

    path: Path
    caption: str
    dark: Path | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text, such as a configuration."""

    text: str
    title: str


Block = Heading | Lead | Paragraph | Contents | Notice | Chart | Table | Figure | Code
_HINTED_COLUMNS = 4  # tables with as many columns do not fit a phone


def shown(cell: Cell) -> str:
    """A cell as text: – for None, and numbers with thousands separators."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.2f}"


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #57606a; --line: #d8dee4; --stripe: #f6f8fa;
  --accent: #0072b2; --bar: #b9c4cf; --alarm: #b35900; --alarm-paper: #fff4e5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9aa4af; --line: #30363d;
  --stripe: #161b22; --accent: #56b4e9; --bar: #48525d; --alarm: #e69f00; --alarm-paper: #2b2112; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 5rem; max-width: 72rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1rem; font-weight: 500; line-height: 1.4; margin: 0 0 1.25rem; color: var(--soft); }
h2 { font-size: 1.375rem; line-height: 1.3; letter-spacing: -.01em; margin: 3.25rem 0 0.75rem; }
h3 { font-size: 1.05rem; margin: 1.75rem 0 0.25rem; }
p { max-width: 46rem; }
sub, sup { line-height: 0; }
.lead { max-width: 56rem; margin: 0 0 1.75rem; font-size: clamp(1.375rem, 1.1rem + 1.4vw, 2rem); line-height: 1.3;
  font-weight: 600; letter-spacing: -.015em; text-wrap: balance; }
.notice { margin: 1.25rem 0; padding: 0.5rem 1.1rem; border-left: 4px solid var(--alarm); border-radius: 4px;
  background: var(--alarm-paper); }
.notice p { margin: 0.4rem 0; max-width: none; }
.notice strong { color: var(--alarm); }
.chart { margin: 0; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
.chart div { display: grid; grid-template: "name track value" / 14.5rem minmax(0, 1fr) 7.25rem; gap: 0 1rem;
  align-items: center; padding: 0.35rem 0; }
.chart dt { grid-area: name; line-height: 1.35; }
.chart dd { grid-area: value; margin: 0; white-space: nowrap; text-align: right; }
.chart .track { grid-area: track; position: relative; height: 1.375rem; }
.track i, .track b { position: absolute; left: 0; height: 100%; border-radius: 2px; background: var(--bar); }
.track b { top: calc(50% - 1px); height: 2px; background: var(--ink); }
.chart small { display: block; margin-top: 0.2rem; color: var(--soft); font-size: 0.825rem; font-weight: 400; }
.chart .ours { font-weight: 650; } .ours .track i { background: var(--accent); }
@media (max-width: 36rem) { .chart div { grid-template: "name value" "track track" / minmax(0, 1fr) max-content; }
  .chart dd { align-self: start; } .chart .track { height: 0.75rem; margin: 0.25rem 0 0.4rem; } }
nav { margin: 2rem 0 0; padding: 0.9rem 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1.5rem; margin: 0; padding: 0; list-style: none; }
a { color: var(--accent); text-underline-offset: 0.15em; } nav a { text-decoration: none; }
a:focus-visible, .wide:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.925rem; }
th, td { padding: 0.4rem 0.8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0.4rem; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
.text td { white-space: normal; min-width: 9rem; } .text th { vertical-align: top; }
thead th { font-weight: 500; color: var(--soft); vertical-align: bottom; }
tr { background: var(--paper); }
tbody tr:nth-child(even) { background: var(--stripe); }
.grouped tbody tr { background: var(--paper); }
.grouped tbody:nth-of-type(even) tr { background: var(--stripe); }
.grouped tr:not(:last-child) > * { border-bottom: 0; }
.detail > * { padding-top: 0; color: var(--soft); font-size: 0.85rem; font-weight: 400; }
.grouped tr:has(+ .detail) > * { padding-bottom: 0; }
table:not(.text) tr > :first-child { position: sticky; left: 0; background: inherit; }
tbody th { font-weight: 500; }
figure { margin: 1.25rem 0; }
img { display: block; width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px; }
figcaption { color: var(--soft); font-size: 0.875rem; margin-top: 0.5rem; max-width: 46rem; }
.hint { display: none; margin: 0 0 0.25rem; color: var(--accent); font-size: 0.875rem; }
@media (max-width: 48rem) {
  .hint { display: block; } .drawn img { min-width: 38rem; }
  .wide { scrollbar-width: thin; scrollbar-color: var(--soft) var(--line); padding-bottom: 0.4rem; }
  .wide.cut { mask-image: linear-gradient(to left, transparent, #000 2.5rem); }
  .text th { max-width: 40vw; white-space: normal; } .text td { min-width: 6.5rem; }
  @supports (animation-timeline: scroll()) { .wide.cut { mask-image: none; animation: cut linear;
    animation-timeline: scroll(self inline); } } }
@keyframes cut { 0%, 92% { mask-image: linear-gradient(to left, transparent, #000 2.5rem); }
  100% { mask-image: none; } }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; padding: 0.8rem; background: var(--stripe); border: 1px solid var(--line); border-radius: 6px;
  font: 0.85rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media print { body { max-width: none; } .wide { overflow: visible; } .hint, nav { display: none; } }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def to_html(blocks: Sequence[Block], *, language: str = "en") -> str:
    """The page as the text of one HTML file."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(
        _html_contents(blocks[i:]) if isinstance(block, Contents) else _html_block(block)
        for i, block in enumerate(blocks)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="{html.escape(language)}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f'<h{level} id="{anchor(text)}">{_html_text(text)}</h{level}>'
        case Lead(text):
            return f'<p class="lead">{_html_text(text)}</p>'
        case Paragraph(text):
            return f"<p>{_html_text(text)}</p>"
        case Notice(sentences):
            lines = "".join(f"<p>{_html_text(sentence)}</p>" for sentence in sentences)
            return f'<div class="notice" role="note"><p><strong>Warning</strong></p>{lines}</div>'
        case Code(text, title):
            return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
        case Figure(path, caption, dark):
            picture = f'<img src="{_image(path)}" alt="{html.escape(caption)}">'
            if dark:
                at_night = f'<source srcset="{_image(dark)}" media="(prefers-color-scheme: dark)">'
                picture = f"<picture>{at_night}{picture}</picture>"
            hint = '<p class="hint">Swipe to see all of the figure →</p>'
            return (
                f'<figure class="drawn">{hint}<div class="wide cut" tabindex="0">{picture}</div>'
                f"<figcaption>{_html_text(caption)}</figcaption></figure>"
            )
        case Chart():
            return _html_chart(block)
        case Table():
            return _html_table(block)
        case Contents():
            return ""


def _image(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def anchor(text: str) -> str:
    """The name of a heading in links.

    >>> anchor("The paper's measures, English, case-insensitive")
    'the-papers-measures-english-case-insensitive'
    """
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text.lower())).strip("-")


def _titles(blocks: Sequence[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]


def _html_contents(blocks: Sequence[Block]) -> str:
    rows = "".join(f'<li><a href="#{anchor(title)}">{_html_text(title)}</a></li>' for title in _titles(blocks))
    return f'<nav aria-label="Contents"><ul>{rows}</ul></nav>'


def _html_chart(chart: Chart) -> str:
    most = max([bar.interval[1] if bar.interval else bar.value for bar in chart.bars] + [1e-9])
    rows = []
    for bar in chart.bars:
        low, high = bar.interval or (bar.value, bar.value)
        kind = ' class="ours"' if bar.stands_out else ""
        whisker = f"left:{100 * max(low, 0) / most:.2f}%;width:{100 * (high - max(low, 0)) / most:.2f}%"
        rows.append(
            f"<div{kind}><dt>{_html_text(bar.name)}{_html_note(bar.note)}</dt><dd>{_html_text(bar.text)}</dd>"
            f'<dd class="track" aria-hidden="true"><i style="width:{100 * bar.value / most:.2f}%"></i>'
            f'<b style="{whisker}"></b></dd></div>\n'
        )
    drawn = f'<dl class="chart">\n{"".join(rows)}</dl>'
    return f"<figure>{drawn}<figcaption>{_html_text(chart.caption)}</figcaption></figure>"


def _html_note(note: str) -> str:
    return f" <small>{_html_text(note)}</small>" if note else ""


def _html_rows(table: Table) -> str:
    """The body of a table; rows with their details are a body of their own."""
    rows = []
    for number, row in enumerate(table.rows):
        is_detail = number in table.details
        begin = "</tbody>\n<tbody>\n" if number and table.details and not is_detail else ""
        cells = "".join(f"<td>{_html_text(shown(cell))}</td>" for cell in row[1:])
        kind = ' class="detail"' if is_detail else ""
        rows.append(f'{begin}<tr{kind}><th scope="row">{_html_text(shown(row[0]))}</th>{cells}</tr>\n')
    return f"<tbody>\n{''.join(rows)}</tbody>"


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_html_text(name)}</th>' for name in table.header)
    caption = f"<figcaption>{_html_text(table.caption)}</figcaption>" if table.caption else ""
    kind = ' class="text"' if table.text_columns else ' class="grouped"' if table.details else ""
    is_wide = len(table.header) >= _HINTED_COLUMNS
    hint = '<p class="hint">Swipe to see all columns →</p>' if is_wide else ""
    head = f"<thead><tr>{head}</tr></thead>\n" if any(table.header) else ""
    return (
        f'<figure>{hint}<div class="wide{" cut" if is_wide else ""}" tabindex="0"><table{kind}>{head}'
        f"{_html_rows(table)}</table></div>{caption}</figure>"
    )


def _html_text(text: str) -> str:
    """Escaped text, with names such as A_W_e, p_cap and SLL^e in the paper's typography.

    Numbers keep their units and have a true minus, and an n-gram is not divided at the end of a line.
    """
    text = re.sub(r"\bn-gram", "n\N{NON-BREAKING HYPHEN}gram", html.escape(text))
    text = re.sub(r"(?<![\w.-])-(?=\d)", "\N{MINUS SIGN}", text)
    text = re.sub(r"\b([AR])_([WP])(_([eimr]))?\b", _named_model, text)
    text = re.sub(r"\b([NS])_(l|h|e|total)\b|\b(p)_(cap)\b", r"<i>\1\3</i><sub>\2\4</sub>", text)
    text = re.sub(r" (±|%)", "\N{NO-BREAK SPACE}\\1", text).replace("± ", "±\N{NO-BREAK SPACE}")
    return re.sub(r"\bSLL\^e\b", "SLL<sup>e</sup>", text)


def _named_model(found: re.Match[str]) -> str:
    """A_W_e: the letter, the kind, and the topology."""
    below = f"<sub>{found[4]}</sub>" if found[4] else ""
    return f"<i>{found[1]}</i><sub>{found[2]}{below}</sub>"


def to_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The page as Markdown; images are linked by their paths relative to `folder`."""
    parts = (
        _markdown_contents(blocks[i:]) if isinstance(block, Contents) else _markdown_block(block, folder)
        for i, block in enumerate(blocks)
    )
    return "\n\n".join(parts) + "\n"


def _markdown_contents(blocks: Sequence[Block]) -> str:
    return " · ".join(f"[{_markdown_text(title)}](#{anchor(title)})" for title in _titles(blocks))


def _markdown_block(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_markdown_text(text)}"
        case Lead(text):
            return f"**{_markdown_text(text)}**"
        case Paragraph(text):
            return _markdown_text(text)
        case Chart(bars, caption):
            named = (f"{bar.name} ({bar.note})" if bar.note else bar.name for bar in bars)
            rows = tuple(zip(named, (bar.text for bar in bars), strict=True))
            return _markdown_table(Table(("", ""), rows, caption))
        case Notice(sentences):
            return "\n".join(["> **Warning**", *(f">\n> {_markdown_text(sentence)}" for sentence in sentences)])
        case Code(text, title):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return f"{title}:\n\n{fence}\n{text.rstrip()}\n{fence}"
        case Figure(path, caption, _):
            target = quote(Path(os.path.relpath(path, folder)).as_posix())
            return f"![{_markdown_text(caption)}]({target})\n\n*{_markdown_text(caption)}*"
        case Table():
            return _markdown_table(block)
        case Contents():
            return ""


def _markdown_table(table: Table) -> str:
    rule = ":---" if table.text_columns else "---:"
    lines = ["| " + " | ".join(map(_markdown_cell, table.header)) + " |"]
    lines.append("|" + "|".join([":---"] + [rule] * (len(table.header) - 1)) + "|")
    lines += ["| " + " | ".join(_markdown_cell(shown(cell)) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + (f"\n\n*{_markdown_text(table.caption)}*" if table.caption else "")


def _markdown_cell(text: str) -> str:
    return _markdown_text(text).replace("|", "\\|").replace("\n", " ")


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", text)
