"""The pages that are made of the code, and the pictures of the library.

`python docs/hooks.py` writes docs/recipes.md, docs/lint.md and docs/library.md. MkDocs runs the other functions while
it builds the site: they add a picture of each recipe's curves to the page of the library. They are not in git.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import trainers.compat  # noqa: F401
from recipes.cards.pages import library_page, library_pictures, published_recipes
from recipes.lint import handbook
from recipes.reading.reference import reference
from trainers.launch.vocabulary import search_vocabulary, vocabulary

_DOCS = Path(__file__).parent


def generated_pages() -> dict[str, str]:
    """The text of every generated page, by its name below docs/."""
    return {
        "recipes.md": reference(search_vocabulary()),
        "lint.md": handbook(),
        "library.md": library_page(_library(), pictures=False),
    }


def on_files(files: Any, config: Any) -> Any:
    """Adds the pictures of the library to the site."""
    from mkdocs.structure.files import File

    for path, drawing in library_pictures(_library()).items():
        files.append(File.generated(config, path, content=drawing))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Shows the pictures in the page of the library, and lets Markdown inside <details> be read."""
    if page.file.src_uri == "library.md":
        markdown = library_page(_library())
    return markdown.replace("<details>", '<details markdown="1">')


@cache
def _library() -> list[Any]:
    return published_recipes(vocabulary())


if __name__ == "__main__":
    for name, text in generated_pages().items():
        (_DOCS / name).write_text(text, encoding="utf-8")
