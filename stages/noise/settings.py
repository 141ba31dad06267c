"""Settings of the noise stage, its columns, and the published rules over them."""

from __future__ import annotations

from typing import ClassVar

from stages.stage import StageSettings

SENTENCE_COLUMNS = (
    "sentence_words",
    "digit_share",
    "punctuation_share",
    "uppercase_share",
    "other_script_share",
    "url_share",
    "markup_share",
    "identifier_share",
)
TOP_NGRAMS = (2, 3, 4)
DUPLICATE_NGRAMS = (5, 6, 7, 8, 9, 10)
DOCUMENT_COLUMNS = (
    "doc_words",
    "doc_word_length",
    "doc_symbol_ratio",
    "doc_alphabetic_share",
    "doc_stop_words",
    "doc_bullet_share",
    "doc_ellipsis_share",
    "doc_terminal_share",
    "doc_short_share",
    "doc_duplicate_line_share",
    "doc_duplicate_line_chars",
    *(f"doc_top_{n}gram_chars" for n in TOP_NGRAMS),
    *(f"doc_duplicate_{n}gram_chars" for n in DUPLICATE_NGRAMS),
)

# Marks that end a sentence: of Latin and East Asian scripts, Devanagari and its kin, Armenian, Arabic and Urdu,
# Ethiopic, Burmese, Khmer, Tibetan, Santali.
END_MARKS = ".!?…。！？।॥։؟۔።፧။។៕།༎᱾᱿"

# Rules of other curators as conditions: a sentence stays if all hold. Their lines are our paragraphs.
_DUPLICATE_CHARS = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)
_TOP_CHARS = (0.20, 0.18, 0.16)
PRESETS = {
    # Rae et al. 2021 (arXiv 2112.11446), appendix A.1.1, quality. Stop words are English ones.
    "gopher-quality": (
        "doc_words >= 50 and doc_words <= 100000 and doc_word_length >= 3 and doc_word_length <= 10 "
        "and doc_symbol_ratio <= 0.1 and doc_bullet_share <= 0.9 and doc_ellipsis_share <= 0.3 "
        "and doc_alphabetic_share >= 0.8 and (lang != 'eng_Latn' or doc_stop_words >= 2)"
    ),
    # The same, repetition, table A1.
    "gopher-repetition": " and ".join(
        [
            "doc_duplicate_line_share <= 0.3 and doc_duplicate_line_chars <= 0.2",
            *(f"doc_top_{n}gram_chars <= {most}" for n, most in zip(TOP_NGRAMS, _TOP_CHARS, strict=True)),
            *(
                f"doc_duplicate_{n}gram_chars <= {most}"
                for n, most in zip(DUPLICATE_NGRAMS, _DUPLICATE_CHARS, strict=True)
            ),
        ]
    ),
    # Penedo et al. 2024 (arXiv 2406.17557), section 3.5, with datatrove's thresholds.
    "fineweb": "doc_terminal_share >= 0.12 and doc_short_share <= 0.67 and doc_duplicate_line_chars <= 0.01",
    # Raffel et al. 2020 (arXiv 1910.10683), section 2.2: the rules for lines, here of sentences.
    "c4-lines": (
        f"sentence_words >= 5 and matches(text, '([{END_MARKS}][\"”’»)]*|[\"”»」』])$') "
        "and not matches(text, '(?i)javascript')"
    ),
}


class NoiseSettings(StageSettings):
    """Measure noise: shares of characters of each sentence, and the signals of Gopher and FineWeb of each document.

    Words are runs of characters between white space, so the signals in words suit languages that are written with
    spaces. A sentence has the values of its document in the columns `doc_…`; of a document that was cut into
    sub-documents, each is measured by itself.
    """

    name: ClassVar[str] = "noise"
    version: ClassVar[int] = 5
    reads: ClassVar[tuple[str, ...]] = (
        "sentences.text",
        "sentences.lang",
        "sentences.doc",
        "sentences.paragraph",
        "sentences.start",
        "sentences.end",
    )
    writes: ClassVar[tuple[str, ...]] = ("noise",)

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends on the text alone."""
        return {}
