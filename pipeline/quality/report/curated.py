"""Makes the sections on what other curators look at: languages, noise and published rules, duplicates."""

from __future__ import annotations

from pipeline.quality.curation import ALL, LEVELS, REPEATS, SHARE, Curation
from pipeline.quality.report.page import Block, Cell, Note, Said, Section, Table, listed, number, share

MOST = 12  # rows of a table
WARNED = 5  # sources in one note


def warnings(found: Curation) -> list[Note]:
    """Say which sources have too many sentences in another language than stated."""
    told = found.suspicious
    if not told:
        return []
    more = f"; and {len(told) - WARNED} more" if len(told) > WARNED else ""
    return [Note(f"{'; '.join(one.said() for one in told[:WARNED])}{more}.", "look")]


def languages(found: Curation) -> Section | None:
    """Show which sources have sentences in another language than stated, with examples."""
    if not found.languages:
        return None
    cells: list[list[Cell]] = [
        [
            Said(one.source),
            one.stated,
            number(one.judged),
            number(one.differ),
            share(one.differ, one.judged),
            listed([f"{lang} {number(count)}" for lang, count in one.detected], 3) or "–",
        ]
        for one in found.languages[:MOST]
    ]
    head = ("source", "stated", "judged", "in another", "share", "detected in its place")
    blocks: list[Block] = [*warnings(found), Table(head, cells, text=2)]
    if not found.suspicious:
        blocks.insert(
            0, Note(f"No source has more than {SHARE:.0%} of its judged sentences in another language.", "good")
        )
    if found.differing:
        rows: list[list[Cell]] = [[stated, detected, Said(text)] for stated, detected, text in found.differing]
        blocks.append(Table(("stated", "detected", "sentence"), rows, "Examples", text=3, folded=True))
    lead = (
        "Sentences whose detected language differs, with confidence, from the one that their document states. "
        "`not lang_differs` selects the others."
    )
    return Section("languages", "Stated and detected languages", lead, blocks)


def noise(found: Curation) -> Section | None:
    """Show how much of sentences is noise, and what published rules would remove."""
    if not found.noisy and not found.rules:
        return None
    blocks: list[Block] = []
    if found.noisy:
        head = ("share of characters", *(f"> {level:.0%}" if level else "any" for level in LEVELS))
        cells: list[list[Cell]] = [
            [name, *(share(count, found.rows) for count in counts)] for name, counts in found.noisy.items()
        ]
        blocks.append(Table(head, cells, "Sentences with more than this share of noise"))
    if found.rules:
        whole: list[list[Cell]] = []
        single: list[list[Cell]] = []
        for one in found.rules:
            removed = [
                number(one.sentences),
                share(one.sentences, found.rows),
                "–" if one.documents is None else number(one.documents),
                "–" if one.documents is None else share(one.documents, found.documents),
            ]
            (whole if one.rule == ALL else single).append(
                [one.preset, *removed] if one.rule == ALL else [one.preset, one.rule, *removed]
            )
        head = ("sentences removed", "of all", "documents removed", "of all")
        blocks.append(Table(("preset", *head), whole, "What select: {preset: …} would remove"))
        blocks.append(Table(("preset", "rule", *head), single, "Each rule by itself", text=2, folded=True))
    lead = (
        "Cheap signals of every sentence, and the rules that other curators published over them. Nothing is removed "
        "unless `select` says so. Rules on documents remove all of their sentences."
    )
    return Section("noise", "Noise and published rules", lead, blocks)


def duplicates(found: Curation) -> Section | None:
    """Show how often sentences occur, and those that occur most."""
    if not found.repeats:
        return None
    cells: list[list[Cell]] = [
        [
            f"{low}–{high}" if high and high > low else f"{low} or more" if high is None else str(low),
            number(count),
            share(count, found.rows),
        ]
        for (low, high), count in zip(REPEATS, found.repeats, strict=True)
    ]
    blocks: list[Block] = [Table(("occurs in the corpus", "sentences", "of all"), cells, "How often sentences occur")]
    if found.repeated:
        rows: list[list[Cell]] = [[Said(text), number(count)] for count, text in found.repeated.values()]
        blocks.append(Table(("sentence", "times"), rows, "Sentences that occur most"))
    lead = "Equal sentences of the whole corpus. `duplicate_of is null` selects the first of each."
    return Section("duplicates", "Duplicates", lead, blocks)
