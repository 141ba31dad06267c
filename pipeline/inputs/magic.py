"""Recognises what a file is by its first bytes, for files whose name says something else; and says what to do with text
that is not UTF-8: a command for a whole file, and where its encoding may be guessed, what text in its language is
usually in.
"""

from __future__ import annotations

import codecs
import re

HEAD = 512  # bytes that are looked at

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3\0": "an SQLite database",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\0": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"\xff\xfe\0\0": "UTF-32 text",
    b"\0\0\xfe\xff": "UTF-32 text",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_ENCODINGS = {f"{encoding} text": encoding for encoding in ("UTF-16", "UTF-32", "UTF-16LE", "UTF-16BE")}
_UNITS = 4  # of UTF-16, at least, that tell it without a mark
_ALPHABET = 0.75  # share of these units whose high byte is below 32: alphabets have the codes below U+2000
_LOW = bytes(range(32))
_COMPRESSIONS = {"gzip": "a gzip file", "bz2": "a bzip2 file", "xz": "an xz file", "zstd": "a zstd file"}
LIST_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
_TAR = slice(257, 262)

_SCRIPTS = {
    "Arab": ("WINDOWS-1256",),
    "Cyrl": ("WINDOWS-1251", "KOI8-R"),
    "Grek": ("WINDOWS-1253",),
    "Hang": ("CP949",),
    "Hans": ("GB18030",),
    "Hant": ("BIG5",),
    "Hebr": ("WINDOWS-1255",),
    "Jpan": ("SHIFT-JIS", "EUC-JP"),
    "Latn": ("WINDOWS-1252",),
    "Thai": ("TIS-620",),
}
_LANGUAGES = {
    **dict.fromkeys(("bos", "ces", "hrv", "hun", "pol", "ron", "slk", "slv", "srp"), ("WINDOWS-1250",)),
    **dict.fromkeys(("azj", "tur"), ("WINDOWS-1254",)),
    **dict.fromkeys(("est", "lit", "ltg", "lvs"), ("WINDOWS-1257",)),
    "vie": ("WINDOWS-1258",),
}  # in the Latin script


def not_text(head: bytes) -> str | None:
    """Name what begins like this if it cannot be lines of JSON: "a PNG image"."""
    if head[_TAR] == b"ustar":
        return "a tar archive"
    opens = head.removeprefix(codecs.BOM_UTF8).split(b"\n", 1)[0].strip() if b"\n" in head else b""
    if opens in (b"[", b"{") or (opens.endswith(b",") and LIST_OF_OBJECTS.match(opens)):
        return f"one JSON value over many lines (jq -c '{'.[]' if opens[:1] == b'[' else '.'}' FILE makes lines of it)"
    return next((name for signature, name in _SIGNATURES.items() if head.startswith(signature)), _utf_16(head))


def _utf_16(head: bytes) -> str | None:
    """Name UTF-16 without a mark by its control characters: in most alphabets every other byte is one ("T\\0h\\0e\\0"),
    and that of spaces and line ends is NUL.

    Of Chinese, Japanese and Korean they are not, and such text is no UTF-8 either.
    """
    units = len(head) // 2
    for high, low, name in ((head[1::2], head[::2], "UTF-16LE text"), (head[::2], head[1::2], "UTF-16BE text")):
        others, letters = len(high.translate(None, _LOW)), len(low.translate(None, _LOW))
        is_alphabet = others <= (1 - _ALPHABET) * len(high) and letters > len(low) / 2
        if units >= _UNITS and is_alphabet and 0 in high and 0 not in low:
            return name
    return None


def looks_like(head: bytes, compression: str = "") -> str:
    """Return a hint that ends a message about an unreadable file; empty if its first bytes tell nothing.

    `compression`: what the file's name states. A file that begins like it has the right name, so nothing is said.
    """
    name = not_text(head)
    if name and name == _COMPRESSIONS.get(compression):
        return ""
    if name is None and head:
        try:
            text = head[: HEAD - 4].decode()  # a character may be cut at the end of the head
        except UnicodeDecodeError:
            return ""
        if any(sign < " " and not sign.isspace() for sign in text):
            return ""
        name = "plain JSON" if text.lstrip().startswith("{") else "plain text"
    return f"; it begins like {name}: {remedy(name)}" if name else ""


def remedy(name: str, compressed: bool = False) -> str:
    """Say what to do with a file that begins like this (`not_text`), once it is decompressed if it is `compressed`."""
    encoding = _ENCODINGS.get(name)
    if encoding is None:
        return "give it the name that fits, or convert it"
    if compressed:
        return f"decompress it, and convert it to UTF-8 from {encoding}"
    return f"convert it to {to_utf8(encoding)}"


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding of a text that its first bytes state or show, if that is not UTF-8: "UTF-16"."""
    return _ENCODINGS.get(not_text(head) or "")


def to_utf8(encoding: str) -> str:
    """Say how a file becomes UTF-8."""
    return f"UTF-8 (iconv -f {encoding} -t UTF-8 FILE > NEW)"


def usual_encodings(lang: str | None) -> tuple[str, ...]:
    """Return what text in a language (rus_Cyrl) is usually in, if not in UTF-8; nothing if that is not known."""
    language, _, script = (lang or "").partition("_")
    return (_LANGUAGES.get(language, ()) if script == "Latn" else ()) or _SCRIPTS.get(script, ())


def mend_file(raw: bytes, lang: str | None, compressed: bool) -> str:
    """Say how a file that is one text becomes UTF-8.

    Args:
        raw: its content, decompressed.
        lang: the language that is stated for it; None if none is.
        compressed: whether it is stored compressed: then no command is given.

    Returns:
        What to do, to end a message.
    """
    marked = marked_encoding(raw[:HEAD])
    if marked is None and (other := _mend_others(raw)):
        return other
    usual = usual_encodings(lang)
    guess = f"its encoding, perhaps {' or '.join(usual)} (a guess from {lang}: look at the result)"
    source = marked or (guess if usual else "its encoding, which you have to know")
    begins = f"it begins like {marked} text: " if marked else ""
    if compressed:
        return f"{begins}decompress it, and convert it to UTF-8 from {source}"
    if marked:
        return f"{begins}convert it to {to_utf8(marked)}"
    command = to_utf8(usual[0] if usual else "ENCODING")
    return f"convert it from {source} to {command}" if usual else f"convert it to {command} from {source}"


def mend_line(raw: bytes, lang: str | None) -> str:
    """Say what to do about one line, of which lines beside it may be UTF-8: `raw`; `lang` as for `mend_file`."""
    if b"\0" in raw and marked_encoding(raw[:HEAD]) is None:
        return _BINARY
    usual = usual_encodings(lang)
    perhaps = f"; it may be {' or '.join(usual)} (a guess from {lang})" if usual and not _mend_others(raw) else ""
    return f"correct this record, or let the program that made the file write it again as UTF-8{perhaps}"


def mend_value(raw: bytes) -> str:
    """Say what to do about one value of a table."""
    if b"\0" in raw and marked_encoding(raw[:HEAD]) is None:
        return _BINARY
    return "correct this value, or let the program that made the file write it again as UTF-8"


_BINARY = "it has NUL bytes, as binary data has: leave it out, or write the text that it holds as UTF-8"


def _mend_others(raw: bytes) -> str:
    """Say what to do about bytes that no other encoding explains: of binary data, or of text that is UTF-8 except for a
    few; empty for others.
    """
    if b"\0" in raw:
        return _BINARY
    good = raw.decode("utf-8", "ignore")
    bad = raw.decode("utf-8", "replace").count("\ufffd") - good.count("\ufffd")
    if len(good) - len(good.encode("ascii", "ignore")) > bad:
        return f"most of it is UTF-8: correct the {'place that is' if bad == 1 else f'{bad} places that are'} not"
    return ""
