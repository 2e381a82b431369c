"""Hash of what a Python file does: comments, blank lines and other spacing leave it as it is."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import accumulate
from pathlib import Path
from token import COMMENT, DEDENT, ERRORTOKEN, INDENT, NEWLINE, NL, STRING, tok_name

from photofinish.files import (
    project_root,
    sha256_of_bytes,
    sha256_of_file,
    write_json_atomically,
)

_MEANT_COMMENT = re.compile(r"^# /// script|[#] type:(?! ?ignore)", re.M)
"""Comments that uv and TorchScript read. A file with one counts as it is."""
_RULES = Path(__file__).read_bytes()
"""Part of each kept hash's key, so that other rules find none of today's hashes."""
_KEPT = Path(".photofinish/code.json")
_used: dict[str, str] = {}


def sha256_of_code(path: Path, *, with_docstrings: bool = True) -> str:
    """Return the sha256 of a Python file's code, or of another file's bytes."""
    if path.suffix != ".py":
        return sha256_of_file(path)
    source = path.read_bytes()
    key = sha256_of_bytes(_RULES + bytes([with_docstrings]) + source)
    if key not in _used:
        _used[key] = _kept().get(key) or sha256_of_bytes(code_text(source, with_docstrings))
    return _used[key]


def keep_hashes() -> None:
    """Keep this process's hashes for the next, as parsing all of photofinish takes a second."""
    if _used != _kept():
        with suppress(OSError):  # a full disk, or a folder that can't be written
            write_json_atomically(project_root() / _KEPT, _used)


@cache
def _kept() -> dict[str, str]:
    try:
        kept: dict[str, str] = json.loads((project_root() / _KEPT).read_bytes())
    except (OSError, ValueError):  # no file yet, or one that a full disk has cut off
        kept = {}
    return kept


def code_text(source: bytes, with_docstrings: bool) -> bytes:
    """Return a file's statements without comments, which each version of Python reads alike.

    A docstring is any statement that is only a string, also below a field. What is no valid Python
    stays as it is: a newer Python may run it, and its tokens are others there.
    """
    lines: list[str] = []
    words: list[str] = []
    depth = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of "\d"
            ast.parse(source)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = io.TextIOWrapper(io.BytesIO(source), encoding).read()
        if _MEANT_COMMENT.search(text):
            return source
        if text.startswith("#!"):  # names the Python that runs it
            lines.append(text.partition("\n")[0])
        for kind, word in _words(text):
            if kind in (INDENT, DEDENT):
                depth += 1 if kind == INDENT else -1
            elif kind == NEWLINE:
                is_string = all(word.lstrip("rRuU").startswith(('"', "'")) for word in words)
                if with_docstrings or not is_string:
                    lines.append(" " * depth + " ".join(words))
                words = []
            elif kind not in (COMMENT, NL):
                words.append(word)
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return source
    return "\n".join(lines).encode()


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the kind and text of each token. An f-string is one, as before Python 3.12."""
    rows = [0, *accumulate(len(row) + 1 for row in text.split("\n"))]
    starts: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name, (row, column) = tok_name[token.type], token.start
        if token.type == ERRORTOKEN:
            raise SyntaxError(token.string)
        if name.endswith("STRING_START"):
            starts.append(rows[row - 1] + column)
        elif name.endswith("STRING_END"):
            start, (row, column) = starts.pop(), token.end
            if not starts:
                yield STRING, text[start : rows[row - 1] + column]
        elif not starts:
            yield token.type, token.string
