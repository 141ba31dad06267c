"""Says how the rows of a condition are used elsewhere: in corpus.yaml, on the command line, in Python."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import yaml

from pipeline.conditions.condition import Condition
from pipeline.corpus.reader import Corpus


@dataclass(frozen=True)
class Use:
    """Texts to copy. `remark`: what a person has to know about `select`."""

    select: str
    inspect: str
    python: str
    remark: str


def use_of(corpus: Corpus, where: Condition | None) -> Use:
    """Return the section `select` of these rows, a command that writes them, and Python that reads them.

    `select` refuses a clause on a column that has nulls if it does not say what null means. A clause on one column
    alone never holds for a null, so `… is not null` in front keeps the same rows; for other clauses the remark says
    that a person has to decide.
    """
    text = " ".join(where.text.split("\n")).strip() if where else ""
    clauses = where.clauses if where else ()
    undecided = where.undecided({one.name for one in corpus.catalogue.values() if one.nullable}) if where else ()
    mixed = {name for clause in clauses if len(clause.columns) > 1 for name in clause.columns}
    alone, open_ = ([name for name in undecided if (name in mixed) == wanted] for wanted in (False, True))
    added = [f"{_named(name)} is not null" for name in alone]
    selected = " and ".join([*added, f"({text})"]) if added else text
    remarks = []
    if alone:
        remarks.append(f"Sentences without {', '.join(alone)} never satisfy the filter; select wants that written out.")
    if open_:
        remarks.append(
            f"{', '.join(open_)} can be null, and the condition does not say what becomes of those sentences: select "
            "refuses it until it says “… is null or …” or “… is not null and …”."
        )
    quoted = f'"{text}"' if text and not set(text) & set('"$`!\\') else shlex.quote(text)
    columns = ", ".join(repr(name) for name in ("text", "lang", "embedding") if name in corpus.catalogue)
    return Use(
        select=yaml.safe_dump({"select": selected}, allow_unicode=True, width=10_000).strip() if selected else "",
        inspect=f"pipeline inspect {shlex.quote(corpus.url)} --to rows.parquet"
        + (f" --where {quoted}" if text else ""),
        python="from pipeline import Corpus\n\n"
        f"corpus = Corpus({corpus.url!r})\nfor batch in corpus.batches({columns}"
        + (f", where={text!r}" if text else "")
        + "):\n    print(batch.table)",
        remark=" ".join(remarks),
    )


def _named(name: str) -> str:
    return name if name.isidentifier() and name.lower() not in ("and", "or", "not", "in", "is", "null") else f"`{name}`"
