"""Settings of the section `duplicates`: of the hashes of each part, and of the comparison over the corpus."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.stage import Settings, StageSettings, meaning

Normalise = Literal["light", "none"]
NORMALISE = (
    "what is compared: light (Unicode NFKC, lower case, each run of white space as one space) or none (the text as it "
    "is)"
)


class NearSettings(Settings):
    """Find documents that are nearly the same, by MinHash; the defaults are datatrove's (FineWeb, arXiv 2406.17557).

    Two documents of which a share s of the runs of `words` words is the same (Jaccard similarity) are taken as one with
    a probability of 1 − (1 − s^band_hashes)^bands: by default 0.77 at s = 0.75, 0.92 at 0.8, 0.05 at 0.5. Adds
    `near_duplicate_of` (id of the first document of the cluster; null for the first itself, and for a document without
    copies) and `near_duplicate_count` (documents in the cluster).
    """

    words: int = meaning(5, ge=1, le=100, description="words in a run; a character counts as one where none are spaced")
    bands: int = meaning(14, ge=1, le=256, description="keys of a document; more find copies that are less alike")
    band_hashes: int = meaning(8, ge=1, le=64, description="values in a key; more demand copies that are more alike")


class SemanticSettings(Settings):
    """Find sentences that mean the same, by their embeddings, as SemDeDup does (arXiv 2303.09540).

    Sentences with the same first code of the section `rvq` are compared with each other. Adds `semantic_duplicate_of`
    (id of the document with the first sentence that is as similar as `cosine` or more; null if no earlier one is),
    `semantic_duplicate_of_position` (its position there) and `semantic_duplicate_count` (sentences that are as similar,
    with this one).
    """

    cosine: float = meaning(0.95, gt=0, le=1, description="the least cosine of two embeddings that mean the same")


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
    applied: ClassVar[tuple[str, ...]] = ("normalise",)

    normalise: Normalise = meaning("light", description=NORMALISE)

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on the hashes alone."""
        return {}

    near: NearSettings | None = meaning(None, description="documents that are nearly the same as others (MinHash)")

    semantic: SemanticSettings | None = meaning(
        None, description="sentences that mean the same as others (needs encode and rvq)"
    )

    @property
    def semantic_duplicates(self) -> SemanticDuplicatesSettings | None:
        """The settings of the stage that compares embeddings."""
        return SemanticDuplicatesSettings(**self.semantic.model_dump()) if self.semantic else None

    @property
    def minhash(self) -> MinhashSettings | None:
        """The settings of the stage that makes the keys of documents."""
        return MinhashSettings(**self.near.model_dump()) if self.near else None

    @property
    def near_duplicates(self) -> NearDuplicatesSettings | None:
        """The settings of the stage that compares these keys."""
        return NearDuplicatesSettings(**self.near.model_dump()) if self.near else None

    @property
    def hashes(self) -> HashSettings:
        """The settings of the stage whose columns are compared."""
        return HashSettings(normalise=self.normalise)


class MinhashSettings(StageSettings, NearSettings):
    """Make the keys of every document by which nearly equal ones are found: `minhash`, in its first row."""

    name: ClassVar[str] = "minhash"
    version: ClassVar[int] = 3
    reads: ClassVar[tuple[str, ...]] = ("sentences.text", "sentences.doc")
    writes: ClassVar[tuple[str, ...]] = ("minhash",)

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on the text alone."""
        return {}


class NearDuplicatesSettings(StageSettings, NearSettings):
    """Find clusters of documents that have keys in common, directly or through others."""

    name: ClassVar[str] = "near"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("minhash.minhash",)
    writes: ClassVar[tuple[str, ...]] = ("near-duplicates",)
    corpus_wide: ClassVar[bool] = True

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on the keys alone."""
        return {}


class SemanticDuplicatesSettings(StageSettings, SemanticSettings):
    """Find the sentences with the same first code whose embeddings are similar."""

    name: ClassVar[str] = "semantic"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("embeddings.embedding", "status.status", "codes.codes")
    writes: ClassVar[tuple[str, ...]] = ("semantic-duplicates",)
    fits: ClassVar[tuple[str, ...]] = ("rvq",)
    corpus_wide: ClassVar[bool] = True

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on embeddings and codes alone."""
        return {}
