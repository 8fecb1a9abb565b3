"""A page as a list of blocks, and its two output formats: one self-contained HTML file, and Markdown.

The HTML contains its styles and images and needs no network and no script; a content security policy forbids both. It
follows the reader's light or dark theme, and wide tables scroll horizontally on narrow screens.
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
class Notice:
    """Sentences that must not be overlooked."""

    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first column names the row; the others have numbers, or text if `text_columns` is set."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    text_columns: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A PNG image; the caption is also its alternative text."""

    path: Path
    caption: str


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text, such as a configuration."""

    text: str
    title: str


Block = Heading | Paragraph | Notice | Table | Figure | Code


def shown(cell: Cell) -> str:
    """A cell as text: – for None, and numbers with thousands separators."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.2f}"


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #57606a; --line: #d0d7de; --stripe: #f6f8fa;
  --accent: #0072b2; --alarm: #b35900; --alarm-paper: #fff4e5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9aa4af; --line: #30363d;
  --stripe: #161b22; --accent: #56b4e9; --alarm: #e69f00; --alarm-paper: #2b2112; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 66rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; padding-bottom: 0.25rem; border-bottom: 2px solid var(--accent); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 0.25rem; }
p { max-width: 46rem; }
.notice { margin: 1.25rem 0; padding: 0.4rem 1rem; border: 1px solid var(--alarm); border-left-width: 6px;
  border-radius: 6px; background: var(--alarm-paper); }
.notice p { margin: 0.4rem 0; max-width: none; }
.notice strong { color: var(--alarm); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.65rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
.text td { white-space: normal; min-width: 9rem; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
tr { background: var(--paper); }
tbody tr:nth-child(even) { background: var(--stripe); }
table:not(.text) tr > :first-child { position: sticky; left: 0; background: inherit; }
tbody th { font-weight: 500; }
figure { margin: 1.25rem 0; }
img { display: block; width: 42rem; max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 6px; padding: 0.5rem; }
@media (prefers-color-scheme: dark) { img { filter: invert(0.92) hue-rotate(180deg); } }
figcaption { color: var(--soft); font-size: 0.87rem; margin-top: 0.4rem; max-width: 46rem; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; padding: 0.8rem; background: var(--stripe); border: 1px solid var(--line); border-radius: 6px;
  font: 0.85rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media print { body { max-width: none; } .wide { overflow: visible; } }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def to_html(blocks: Sequence[Block], *, language: str = "en") -> str:
    """The page as the text of one HTML file."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(_html_block(block) for block in blocks)
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
            return f"<h{level}>{_html_text(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_html_text(text)}</p>"
        case Notice(sentences):
            lines = "".join(f"<p>{_html_text(sentence)}</p>" for sentence in sentences)
            return f'<div class="notice" role="note"><p><strong>Warning</strong></p>{lines}</div>'
        case Code(text, title):
            return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
        case Figure(path, caption):
            data = base64.b64encode(path.read_bytes()).decode()
            picture = f'<img src="data:image/png;base64,{data}" alt="{html.escape(caption)}">'
            return f"<figure>{picture}<figcaption>{_html_text(caption)}</figcaption></figure>"
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_html_text(name)}</th>' for name in table.header)
    rows = "".join(
        f'<tr><th scope="row">{_html_text(shown(row[0]))}</th>'
        + "".join(f"<td>{_html_text(shown(cell))}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in table.rows
    )
    caption = f"<figcaption>{_html_text(table.caption)}</figcaption>" if table.caption else ""
    kind = ' class="text"' if table.text_columns else ""
    return (
        f'<figure><div class="wide" tabindex="0"><table{kind}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>{caption}</figure>"
    )


def _html_text(text: str) -> str:
    """Escaped text, with names such as A_W_e, p_cap and SLL^e in the paper's typography; numbers keep their units."""
    text = html.escape(text)
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
    return "\n\n".join(_markdown_block(block, folder) for block in blocks) + "\n"


def _markdown_block(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_markdown_text(text)}"
        case Paragraph(text):
            return _markdown_text(text)
        case Notice(sentences):
            return "\n".join(["> **Warning**", *(f">\n> {_markdown_text(sentence)}" for sentence in sentences)])
        case Code(text, title):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return f"{title}:\n\n{fence}\n{text.rstrip()}\n{fence}"
        case Figure(path, caption):
            target = quote(Path(os.path.relpath(path, folder)).as_posix())
            return f"![{_markdown_text(caption)}]({target})\n\n*{_markdown_text(caption)}*"
        case Table():
            return _markdown_table(block)


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
