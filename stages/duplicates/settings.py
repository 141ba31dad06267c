"""Settings of the section `duplicates`: of the hashes of each part, and of the comparison over the corpus."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.stage import StageSettings, meaning

Normalise = Literal["light", "none"]
NORMALISE = (
    "what is compared: light (Unicode NFKC, lower case, each run of white space as one space) or none (the text as it "
    "is)"
)


class HashSettings(StageSettings):
    """Hash every sentence and every document: what the section `duplicates` compares.

    Adds `sentence_hash`, of the normalised text, and `doc_hash`, of the hashes of the document's sentences in order. Of
    a document that was cut into sub-documents, each has its own.
    """

    name: ClassVar[str] = "hashes"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("sentences.text", "sentences.doc")
    writes: ClassVar[tuple[str, ...]] = ("hashes",)

    normalise: Normalise = meaning("light", description=NORMALISE)

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on the text alone."""
        return {}


class DuplicatesSettings(StageSettings):
    """Find duplicates over the whole corpus, and say of each what it repeats; no row is removed.

    The first of equal sentences or documents is that of the first input in the file, the first path, the first record.
    Adds `duplicate_of` (the id of the document with the first such sentence; null for the first one, and for a sentence
    that occurs once), `duplicate_of_position` (its position there) and `duplicate_count` (how often the sentence
    occurs); for documents, `doc_duplicate_of` and `doc_duplicate_count`.
    """

    name: ClassVar[str] = "duplicates"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("hashes.sentence_hash", "hashes.doc_hash")
    writes: ClassVar[tuple[str, ...]] = ("duplicates",)
    corpus_wide: ClassVar[bool] = True

    normalise: Normalise = meaning("light", description=NORMALISE)

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on the hashes alone."""
        return {}

    @property
    def hashes(self) -> HashSettings:
        """The settings of the stage whose columns are compared."""
        return HashSettings(normalise=self.normalise)
