"""Says what to do with text that is not UTF-8: a command for a whole file, and where its encoding may be guessed, what
text in its language is usually in.
"""

from __future__ import annotations

from pipeline.inputs.magic import HEAD, marked_encoding, to_utf8

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
    source = marked or (guess if usual else "its encoding, which has to be known")
    begins = f"it begins like {marked} text: " if marked else ""
    if compressed:
        return f"{begins}decompress it, and convert it to UTF-8 from {source}"
    if marked:
        return f"{begins}convert it to {to_utf8(marked)}"
    return f"convert it from {source} to {to_utf8(usual[0] if usual else 'ENCODING')}"


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
    """Say what to do about bytes that no other encoding explains: of binary data, or of text that is UTF-8 but for a
    few; empty for others.
    """
    if b"\0" in raw:
        return _BINARY
    good = raw.decode("utf-8", "ignore")
    bad = raw.decode("utf-8", "replace").count("\ufffd") - good.count("\ufffd")
    if len(good) - len(good.encode("ascii", "ignore")) > bad:
        return f"most of it is UTF-8: correct the {'place that is' if bad == 1 else f'{bad} places that are'} not"
    return ""
