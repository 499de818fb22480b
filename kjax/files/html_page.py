"""HTML pages that need nothing else: no network, no font, no other file."""

import base64
import hashlib
import html


def html_page(*, title: str, style: str, script: str, body: str, colours: str) -> str:
    """A whole page.

    Args:
        title: of the window.
        style: sheet of the page.
        script: the only one that may run.
        body: what is shown, as HTML, before the script.
        colours: schemes that the style is made for, e.g. "light dark".
    """
    # Only this very script may run, and nothing may be fetched: whatever a name contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{colours}">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""
