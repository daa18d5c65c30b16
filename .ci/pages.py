#!/usr/bin/env python3
"""A program that a page shows is the file that is tried, byte for byte; and links between pages lead somewhere.

A page names the file in a comment, `<!-- file: PATH -->`, on the line before the block.
"""

import pathlib
import re
import sys

PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", *map(str, pathlib.Path("docs").rglob("*.md"))]
SHOWN = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```\n", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")

faults = []
for page in map(pathlib.Path, PAGES):
    text = page.read_text()
    for path, block in SHOWN.findall(text):
        if pathlib.Path(path).read_text() != block:
            faults.append(f"{page}: the block is not {path} as it stands: copy the file into the page")
    if text.count("<!-- file:") != len(SHOWN.findall(text)):
        faults.append(f"{page}: a `<!-- file: … -->` is not followed by a block")
    faults += [f"{page}: there is no {link}" for link in LINK.findall(text) if not (page.parent / link).exists()]
sys.exit("\n".join(faults) or 0)
