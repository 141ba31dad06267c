"""Make the sample corpus in conf/sample from unpacked Debian packages: the same packages give the same bytes.

    apt-get download r-cran-janeaustenr postgresql-doc-15 libreoffice-help-{en-us,de,fr,ru,zh-cn}
    for package in *.deb; do dpkg -x "$package" unpacked; done
    python benchmarks/make_sample.py unpacked conf/sample

Only running prose is kept: paragraphs of a few words or more that end like a sentence. Menus, tables, program listings,
headings and link lists are left out. Costs a few seconds; versions and licences are in conf/sample/SOURCES.md.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

AUSTEN = {
    "emma": "Emma",
    "mansfieldpark": "Mansfield Park",
    "northangerabbey": "Northanger Abbey",
    "persuasion": "Persuasion",
    "prideprejudice": "Pride and Prejudice",
    "sensesensibility": "Sense and Sensibility",
}
AUSTEN_CHAPTERS = 14  # the first chapters of each novel, 1.1 MB
POSTGRESQL_PAGES = 120
LIBREOFFICE_PAGES = 48  # the same pages in every language
LIBREOFFICE_LANGUAGES = {"en-US": "eng_Latn", "de": "deu_Latn", "fr": "fra_Latn", "ru": "rus_Cyrl", "zh-CN": "zho_Hans"}
LIBREOFFICE_GUIDES = ("swriter", "scalc", "simpress", "sdraw", "shared")

SENTENCE_END = re.compile(r"[.!?:…。！？：][)\]\"'»”’」』）]*$")
HOLE = re.compile(r" [,.](?=\s|$)|「」|\"\"|\( ?\)|[\x00-\x1f\x7f-\x9f]")  # an icon stood here; mangled bytes
OWN_SCRIPT = {"rus_Cyrl": re.compile("[\u0400-\u04ff]"), "zho_Hans": re.compile("[\u4e00-\u9fff]")}
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta"}


class SamplePage(NamedTuple):
    id: str
    lang: str
    title: str
    source: str
    text: str


# ---------------------------------------------------------------- Jane Austen


def r_character_vectors(folder: Path) -> dict[str, list[str]]:
    """Return character vectors of an R lazy-load database: `<name>.rdx` is the index, `<name>.rdb` the deflated
    objects.

    An index entry is an integer pair (offset, length); an object is a 4-byte size and a zlib stream of R's XDR
    serialisation, in which 0x10 opens a character vector and every element is (flags, length, bytes).
    """
    index = gzip.decompress((folder / "Rdata.rdx").read_bytes())
    database = (folder / "Rdata.rdb").read_bytes()
    at = index.index(struct.pack(">I", 0x213)) + 8  # the outer list, then the list of entries
    (count,) = struct.unpack_from(">I", index, at + 4)
    ranges = [struct.unpack_from(">II", index, at + 8 + 16 * entry + 8) for entry in range(count)]
    names, _ = r_strings(index, at + 8 + 16 * count)
    return {
        name: r_strings(zlib.decompress(database[start + 4 : start + size]), 0)[0]
        for name, (start, size) in zip(names[-count:], ranges, strict=True)
    }


def r_strings(data: bytes, at: int) -> tuple[list[str], int]:
    """Return the first character vector at or after a position, and where it ends."""
    at = data.index(struct.pack(">I", 0x10), at)
    (count,) = struct.unpack_from(">I", data, at + 4)
    at += 8
    strings = []
    for _ in range(count):
        _, size = struct.unpack_from(">Ii", data, at)
        strings.append(data[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return strings, at


def austen(root: Path) -> Iterator[SamplePage]:
    novels = r_character_vectors(root / "usr/lib/R/site-library/janeaustenr/data")
    for name, title in AUSTEN.items():
        lines = "\n".join(novels[name])
        chapters = re.split(r"\n(?:VOLUME [IVX]+\s+)?chapter [0-9ivxl]+\.?\n", lines, flags=re.IGNORECASE)[1:]
        for number, chapter in enumerate(chapters[:AUSTEN_CHAPTERS], start=1):
            chapter = re.sub(r"\n\s*VOLUME [IVX]+\s*$", "", chapter).replace("_", "")  # _word_ is emphasis
            paragraphs = [collapse(paragraph) for paragraph in re.split(r"\n\s*\n", chapter)]
            text = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
            yield SamplePage(f"austen-{name}-{number:04d}", "eng_Latn", f"{title}, chapter {number}", "austen", text)


# ---------------------------------------------------------------- HTML


class Prose(HTMLParser):
    """Collects the text of <p> elements, and titles, outside of elements that are to be skipped."""

    def __init__(self, skip: Callable[[str, dict[str, str]], bool]) -> None:
        super().__init__(convert_charrefs=True)
        self.skip = skip
        self.paragraphs: list[str] = []
        self.titles: list[str] = []
        self._open: list[tuple[str, bool]] = []
        self._text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        skipped = self.skipping or self.skip(tag, {key: value or "" for key, value in attrs})
        self._open.append((tag, skipped))
        if not skipped and tag in ("p", "title", "h1"):
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID or tag not in [name for name, _ in self._open]:
            return
        while self._open and self._open.pop()[0] != tag:
            pass
        if self._text is not None and tag in ("p", "title", "h1"):
            text = collapse("".join(self._text))
            self._text = None
            if tag == "p":
                self.paragraphs.append(text)
            else:
                self.titles.append(text)

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self.skipping:
            self._text.append(data)

    @property
    def skipping(self) -> bool:
        return bool(self._open) and self._open[-1][1]


def prose(page: Path, lang: str, skip: Callable[[str, dict[str, str]], bool]) -> tuple[str, list[str]]:
    """Return title (the first <h1>, else <title>) and paragraphs of an HTML page."""
    parser = Prose(skip)
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.titles[:2][-1], [paragraph for paragraph in parser.paragraphs if is_prose(paragraph, lang)]


def is_prose(paragraph: str, lang: str) -> bool:
    if not SENTENCE_END.search(paragraph) or HOLE.search(paragraph):
        return False
    own = OWN_SCRIPT.get(lang)
    if own is not None and 2 * len(own.findall(paragraph)) < len(re.findall(r"\w", paragraph)):
        return False  # not translated, or mostly code
    words = re.findall(r"[^\W\d_]{2,}", paragraph)
    return len(paragraph) >= 12 if lang == "zho_Hans" else len(words) >= 4


def collapse(text: str) -> str:
    return " ".join(text.split())


def shuffled(names: Iterable[str]) -> list[str]:
    """Return an order that depends on the names only."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


# ---------------------------------------------------------------- PostgreSQL


def postgresql(root: Path) -> Iterator[SamplePage]:
    def skip(tag: str, attributes: dict[str, str]) -> bool:
        kinds = {"navheader", "navfooter", "refnamediv", "refsynopsisdiv", "toc", "footnotes", "footnote"}
        return tag in ("table", "pre", "dt", "script") or bool(kinds & set(attributes.get("class", "").split()))

    folder = root / "usr/share/doc/postgresql-doc-15/html"
    chosen: dict[str, SamplePage] = {}
    for name in shuffled(page.stem for page in folder.glob("*.html")):
        title, paragraphs = prose(folder / f"{name}.html", "eng_Latn", skip)
        text = "\n\n".join(paragraphs)
        if (
            not name.startswith(("release", "biblio"))
            and 2_500 <= len(text) <= 12_000
            and len(chosen) < POSTGRESQL_PAGES
        ):
            title = re.sub(r"^([0-9A-Z]+\.)+\s*", "", title)
            chosen[name] = SamplePage(f"postgresql-{name}-0001", "eng_Latn", title, "postgresql", text)
    yield from (chosen[name] for name in sorted(chosen))


# ---------------------------------------------------------------- LibreOffice


def libreoffice(root: Path) -> dict[str, list[SamplePage]]:
    """Return the same guide pages in every language."""

    def skip(tag: str, attributes: dict[str, str]) -> bool:
        kinds = {"howtoget", "relatedtopics", "related", "embedded", "debug", "tablecontent", "code"}
        names = attributes.get("class", "")
        return (
            tag in ("table", "pre", "header", "aside", "footer", "nav", "script", "style")
            or bool(kinds & set(names.split()))
            or names.isupper()  # wording for one program or system (IMPRESS, MAC); the default stands next to it
        )

    help_folder = root / "usr/share/libreoffice/help"
    pages = [
        f"{guide}/guide/{page.stem}"
        for guide in LIBREOFFICE_GUIDES
        for page in (help_folder / "en-US/text" / guide / "guide").glob("*.html")
    ]
    chosen: dict[str, dict[str, SamplePage]] = {}
    for page in shuffled(pages):
        if len(chosen) == LIBREOFFICE_PAGES:
            break
        module, _, name = page.split("/")
        documents = {}
        english: list[str] = []
        for code, lang in LIBREOFFICE_LANGUAGES.items():
            file = help_folder / code / "text" / f"{page}.html"
            if not file.exists():
                break
            title, paragraphs = prose(file, lang, skip)
            if (lang in OWN_SCRIPT and not OWN_SCRIPT[lang].search(title)) or HOLE.search(title):
                break  # not translated
            paragraphs = [paragraph for paragraph in paragraphs if paragraph not in english]  # not translated
            english = english or paragraphs
            slug = f"libreoffice-{module}-{name.replace('_', '-')}-{lang[:3]}-0001"
            documents[lang] = SamplePage(slug, lang, title, "libreoffice", "\n\n".join(paragraphs))
        sizes = [len(document.text) * (3 if lang == "zho_Hans" else 1) for lang, document in documents.items()]
        if len(sizes) == len(LIBREOFFICE_LANGUAGES) and min(sizes) >= 1_200:
            chosen[page] = documents
    return {lang: [chosen[page][lang] for page in sorted(chosen)] for lang in LIBREOFFICE_LANGUAGES.values()}


# ---------------------------------------------------------------- files


def write(path: Path, documents: Iterable[SamplePage]) -> None:
    lines = [json.dumps(document._asdict(), ensure_ascii=False) + "\n" for document in documents]
    path.write_bytes(gzip.compress("".join(lines).encode(), compresslevel=9, mtime=0))
    texts = [json.loads(line)["text"] for line in lines]
    print(
        f"{path.name:30} {len(texts):4} documents  {sum(map(len, texts)):9,} characters  {path.stat().st_size:9,} bytes"
    )


def main(unpacked: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    write(target / "austen-eng.jsonl.gz", austen(unpacked))
    write(target / "postgresql-eng.jsonl.gz", postgresql(unpacked))
    for lang, documents in libreoffice(unpacked).items():
        write(target / f"libreoffice-{lang[:3]}.jsonl.gz", documents)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} FOLDER_OF_UNPACKED_PACKAGES TARGET_FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
