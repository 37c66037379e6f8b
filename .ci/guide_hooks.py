"""What the build of the guide does besides: no page fetches anything from elsewhere."""

from __future__ import annotations

from typing import Any

SHIM = "https://unpkg.com/iframe-worker/shim"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The script by which the search works in pages opened as files is taken from the guide itself."""
    return output.replace(SHIM, "../" * page.url.count("/") + "iframe-worker.js")


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for the page that says that there is no such page."""
    return output_content.replace(SHIM, "iframe-worker.js")
