"""Hooks of mkdocs: publish what lies beside docs/ too, and let nothing on a page come from elsewhere.

Links are written so that they work in the repository (`../results/lite.md`); on the site they lead to the same page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "results/*.md", "results/*/*")
# What a reader finds in the repository and not on the site: such links become plain text.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FETCHED = re.compile(
    r"<(?:script|img|iframe|link(?![^>]*rel=\"canonical\"))[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\""
)


def on_files(files: Files, config: Any) -> Files:
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between the repository's files into links between the site's."""
    uri = page.file.src_uri
    in_docs = (ROOT / "docs" / uri).is_file()
    folder = posixpath.dirname(f"docs/{uri}" if in_docs else uri)

    def lead(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / path).exists():
            return match[0]  # mkdocs itself complains
        published = path.removeprefix("docs/")
        if files.get_file_from_path(published) is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(published, posixpath.dirname(uri) or '.')}{anchor or ''})"

    return _LINK.sub(lead, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    if fetched := _FETCHED.findall(output):
        raise PluginError(f"{page.file.src_uri} would fetch something from elsewhere: {fetched[0]}")
    return output
