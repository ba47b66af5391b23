"""Pages of the site that are files elsewhere in the repository, for `make site`: MkDocs calls what is here.

README.md is the first page. The files that pages link to outside of docs/ become pages too, code as a block, so that
every link stays within the site.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure import files as files_lib

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = {  # pages by the file that they show; other files are pages in the folder files/
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
_LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")(?![a-z]+:|#|/)([^)\s\"#]+)")  # before an anchor
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh", ".ipynb": "json"}
_FENCE = "~~~~"  # longer than those of any file that is shown


def page_of(path: str) -> str:
    """Returns the page of the site that shows a file, both as paths: from the root, and from that of the site."""
    if path in NAMES:
        return NAMES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def linked_from(path: str, text: str) -> list[str]:
    """Returns the paths of the files that a file links to."""
    folder = posixpath.dirname(path)
    found = [posixpath.normpath(posixpath.join(folder, target)) for _, target in _LINK.findall(text)]
    return [each for each in found if (ROOT / each).exists()]


def with_links(path: str, text: str) -> str:
    """Returns the text of a file with its links to other files as links between pages of the site."""
    page_folder = posixpath.dirname(page_of(path))

    def change(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        return match[1] + (
            posixpath.relpath(page_of(target), page_folder or ".") if (ROOT / target).exists() else match[2]
        )

    return _LINK.sub(change, text)


def _text_of(path: str) -> str:
    """Returns the page for a file that is no page of docs/."""
    found = ROOT / path
    if path.endswith(".md"):
        return found.read_text("utf-8")
    if found.is_dir():
        names = sorted(each.name for each in found.iterdir() if each.suffix in _LANGUAGES and each.stem != "__init__")
        return f"# {path}\n\n" + "".join(f"- [{name}]({posixpath.basename(path)}/{name})\n" for name in names)
    language = _LANGUAGES.get(found.suffix, "")
    return f"# {path}\n\n{_FENCE}{language}\n{found.read_text('utf-8')}{_FENCE}\n"


def on_files(files: files_lib.Files, config: Any) -> files_lib.Files:
    """Adds the pages of NAMES, and those of all files that are linked to."""
    waiting = [*NAMES, *(f"docs/{each.src_uri}" for each in files.documentation_pages())]
    seen = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        is_page = path.endswith(".md") or not path.startswith("docs/")
        text = _text_of(path) if is_page else ""
        waiting += linked_from(path, text)
        if not path.startswith("docs/"):
            files.append(files_lib.File.generated(config, page_of(path), content=with_links(path, text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Changes the links of the pages in docs/; those of the others are changed already."""
    return markdown if page.file.generated_by else with_links(f"docs/{page.file.src_uri}", markdown)
