"""Makes HTML from texts and numbers that may hold anything: every text passes through `text`."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NewType

Html = NewType("Html", str)  # markup whose texts are escaped

NOTHING = Html("")
MAX_CHARS = 80  # of a text in a table or under a picture
_MAX_TITLE_CHARS = 400  # of a text that a mouse shows
# Controls, invisible characters that change the order of others, lone surrogates, private and unknown characters.
_ESCAPED = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_JOINERS = "\u200c\u200d"  # of scripts and emoji
_FIRST_SURROGATE, _BYTE = 0xDC80, 0xFF  # of a byte that is no UTF-8, as Python decodes names of files


def text(value: object, max_chars: int = MAX_CHARS) -> Html:
    """Returns a text as HTML: escaped, on one line, cut in the middle to `max_chars`, and isolated in its direction.

    Characters that cannot be seen, or that would reorder others, are shown by their code. The title of a text that is
    cut has more of it.
    """
    plain = str(value)
    shown = _cut(plain, max_chars)
    title = f' title="{attribute(_cut(plain, _MAX_TITLE_CHARS))}"' if shown != plain else ""
    return Html(f"<bdi{title}>{attribute(shown)}</bdi>")


def attribute(value: str) -> str:
    """Returns a text escaped for an attribute with double quotes, or for an element."""
    return html.escape("".join(map(_visible, value)))


def attribute_lines(value: str) -> Html:
    """Returns a text of several lines for a <pre>."""
    return Html("\n".join(map(attribute, value.split("\n"))))


def _visible(char: str) -> str:
    if char.isascii() and char.isprintable():
        return char
    if unicodedata.category(char) not in _ESCAPED or char in _JOINERS:
        return char
    code = ord(char)
    if _FIRST_SURROGATE <= code < _FIRST_SURROGATE + 0x80:
        return f"\\x{code & _BYTE:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(plain: str, max_chars: int) -> str:
    """Keeps the beginning and the end: names often differ in the end."""
    if len(plain) <= max_chars:
        return plain
    end = max_chars // 3
    return f"{plain[: max_chars - end - 1]}…{plain[-end:]}"


def decode(value: bytes) -> str:
    """Returns the text in a feature; bytes that are no UTF-8 become lone surrogates, which `text` shows by code."""
    return value.decode("utf-8", "surrogateescape")


def join(parts: Iterable[Html], between: str = "\n") -> Html:
    """Returns parts of a page, one after another, with a text without special characters between them."""
    return Html(between.join(parts))


def element(name: str, content: Html, css: str = "") -> Html:
    """Returns an element with a class of the style sheet."""
    return Html(f'<{name} class="{css}">{content}</{name}>' if css else f"<{name}>{content}</{name}>")


def paragraph(content: Html, css: str = "") -> Html:
    """Returns a paragraph."""
    return element("p", content, css)


def plain(value: str) -> Html:
    """Returns a text of this program: escaped, neither cut nor isolated."""
    return Html(html.escape(value))


def section(name: str, title: str, content: Html) -> Html:
    """Returns a section with a heading; nothing without content. `name` is what links lead to."""
    if not content:
        return NOTHING
    heading = f'<h2 id="{name}-title">{html.escape(title)}</h2>'
    return Html(f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n{content}\n</section>\n')


def details(summary: str, content: Html) -> Html:
    """Returns content that opens with a click."""
    return Html(f"<details><summary>{html.escape(summary)}</summary>\n{content}\n</details>")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Html]],
    numeric: Sequence[int] = (),
    minor: Sequence[int] = (),
    caption: str = "",
    css: str = "",
) -> Html:
    """Returns a table that scrolls sideways where it is too wide; nothing without rows.

    Args:
        head: names of the columns.
        rows: the first cell of each is its heading.
        numeric: columns that are aligned to the right.
        minor: columns that a narrow screen leaves out.
        caption: above the table.
        css: class of the table.
    """
    kinds = {"number": numeric, "minor": minor}
    classes = [" ".join(kind for kind, columns in kinds.items() if each in columns) for each in range(len(head))]
    body = [_row(cells, classes) for cells in rows]
    if not body:
        return NOTHING
    names = "".join(f'<th scope="col"{_class(css)}>{html.escape(name)}</th>' for name, css in zip(head, classes))
    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return Html(
        f'<div class="scroll" tabindex="0"><table{_class(css)}>{above}<thead><tr>{names}</tr></thead>\n'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _row(cells: Sequence[Html], classes: Sequence[str]) -> str:
    first, *rest = (
        f"<{tag}{_class(css)}>{cell}</{tag.split()[0]}>"
        for tag, css, cell in zip(['th scope="row"', *["td"] * (len(cells) - 1)], classes, cells)
    )
    return f"<tr>{first}{''.join(rest)}</tr>\n"


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""


def number(value: float) -> Html:
    """Returns a count with separators, or another number with a few digits."""
    return Html(f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")


def percent(part: float, whole: float) -> Html:
    """Returns a share; one that is not 0 is never shown as 0."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return Html("&lt; 0.1 %")
    return Html(f"{share:.1f} %" if share < 99.95 or part >= whole else "&gt; 99.9 %")


def bar(value: float, largest: float) -> Html:
    """Returns a bar as long as `value` is of `largest`. The number beside it says the same, so it is no image to read.

    It has no style attribute, which the page's policy refuses.
    """
    width = round(100 * value / largest, 2) if largest else 0
    least = 0.6 if value else 0  # so that it can be seen
    return Html(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{max(width, least):g}" height="8"/></svg>'
    )


def curve(values: Sequence[int], description: str) -> Html:
    """Returns the area under values that fall from left to right, with a logarithmic scale of height.

    Args:
        values: not empty, descending.
        description: for those who do not see it.
    """
    import math

    num_points = min(len(values), 200)
    picked = [values[index * (len(values) - 1) // max(1, num_points - 1)] for index in range(num_points)]
    scale = 60 / math.log10(1 + max(picked[0], 1))
    step = 400 / max(1, num_points - 1)
    points = [f"{index * step:.1f},{62 - scale * math.log10(1 + value):.1f}" for index, value in enumerate(picked)]
    if len(points) == 1:
        points.append(points[0].replace("0.0,", "400,", 1))
    return Html(
        f'<svg class="curve" viewBox="0 0 400 64" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(description)}"><path d="M0,64 L{" L".join(points)} L400,64 Z"/></svg>'
    )


def tile(value: Html, what: str) -> Html:
    """Returns one figure of the overview."""
    return Html(f"<div><dt>{html.escape(what)}</dt><dd>{value}</dd></div>")
