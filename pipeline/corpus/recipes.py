"""Recipes of stages and fingerprints of chunks and parts: what each result depends on, before anything is read."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import starting
from pipeline.config.frozen import Frozen
from pipeline.corpus.document_ids import Duplicates, find_record, read_duplicates, with_duplicates
from pipeline.corpus.fingerprint import fingerprint, fingerprint_bytes
from pipeline.corpus.tombstones import Tombstones, read_tombstones
from pipeline.inputs import Chunk, ChunkTable, InputSettings, LangDetect
from pipeline.inputs.chunk import PACKED
from pipeline.storage.store import Store
from stages.stage import StageSettings

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig

SEGMENT = "segment"
_WHERE_NOT_WHAT = {"path", "name", "limit"}  # moving the data changes nothing; a limit is part of the chunk


@dataclass(frozen=True)
class Recipes:
    """The recipe (a JSON value) of segmenting each input and of each row-wise stage, in order, and what is left out.

    first_only: the inputs whose files, if they share a chunk, keep one document of each id.
    """

    segment: dict[str, dict[str, Any]]
    stages: dict[str, dict[str, Any]]
    tombstones: Tombstones
    duplicates: Duplicates
    first_only: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: RunConfig) -> Recipes:
        """Return the recipes of a configuration."""
        return cls(
            segment={str(one.name): input_recipe(config, one) for one in config.input},
            stages={stage.name: stage_recipe(stage, config.frozen) for stage in config.row_stages()},
            tombstones=read_tombstones(Store(config.output)),
            duplicates=read_duplicates(Store(config.output), config.frozen.duplicates),
            first_only=frozenset(str(one.name) for one in config.input if one.id and first_only(config)),
        )

    def chunk_fingerprint(self, chunk: Chunk, purged: Collection[str] | None = None) -> str:
        """Return the fingerprint of a chunk's segmentation: of its recipe, its bytes, and what was purged of it.

        purged: the purged ids, if they are not those of the tombstones.
        """
        recipe = fingerprint(self.segment[chunk.input])
        of_chunk = [recipe, chunk.id, chunk.start, chunk.end, chunk.take, chunk.stamp]
        return fingerprint([*of_chunk, *self._left_out(chunk.id, chunk.input, chunk.format, purged)])

    def _left_out(self, chunk: str, name: str, kind: str, purged: Collection[str] | None = None) -> list[Any]:
        """Return the purged ids of a chunk, a digest of those ids that earlier documents of other chunks have, and
        whether documents of one id are looked for in all of its files.
        """
        purged = self.tombstones.of(chunk) if purged is None else purged
        later = self.duplicates.digest(chunk)
        out: list[Any] = [sorted(purged)] if purged else []
        out += [{"duplicate_ids": later}] if later else []
        return out + (["first of its files"] if kind == PACKED and name in self.first_only else [])

    def chunk_fingerprints(self, chunks: ChunkTable) -> pa.FixedSizeBinaryArray:
        """Return `chunk_fingerprint` of many chunks, as bytes; 6 µs each."""
        recipes = {name: fingerprint(recipe) for name, recipe in self.segment.items()}
        found = [
            b"".join(
                fingerprint_bytes([recipes[name], chunk, *rest, *self._left_out(chunk, name, kind)])
                for name, kind, chunk, *rest in zip(*lists, strict=True)
            )
            for lists in chunks.columns("input", "format", "id", "start", "end", "take", "stamp")
        ]
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(chunks), [None, pa.py_buffer(b"".join(found))])


def segment_recipe(config: RunConfig) -> dict[str, Any]:
    """Return what the sentences of any document depend on."""
    from stages.sonar.card import load_card

    card = load_card(config.segment.model)
    segment = config.segment.meaningful() | {"model": card.name}  # the digests of a card matter, its path does not
    if config.segment.uses_sat:
        from stages.segment.sat.card import load_sat_card

        segment["sat"] = load_sat_card(config.segment.sat).name
    return {
        "stage": SEGMENT,
        "version": config.segment.version,
        "segment": segment,
        "tokenizer": card.tokenizer_digest,
        **config.segment.artifacts(),
    }


def input_recipe(config: RunConfig, one: InputSettings) -> dict[str, Any]:
    """Return what the parts of an input depend on."""
    return segment_recipe(config) | reading_recipe(config, one) | {"part_sentences": config.part_sentences}


def reading_recipe(config: RunConfig, one: InputSettings) -> dict[str, Any]:
    """Return what the documents of an input depend on."""
    from stages.sonar.card import load_card

    reading = {key: value for key, value in one.meaningful().items() if key not in _WHERE_NOT_WHAT}
    recipe = {
        "tokenizer": load_card(config.segment.model).tokenizer_digest,  # with the languages that are known
        "split": config.split.meaningful(),
        "input": reading,
        "keep": list(config.stored_columns(one)),
    }
    if isinstance(one.lang, LangDetect):
        with starting("lang: detect"):
            from stages.language.identifier import identity

            recipe["detector"] = identity()
    if types := config.kept_types(one):
        recipe["keep_types"] = {name: kind.as_json() for name, kind in types.items()}
    return recipe | ({"duplicate_ids": "keep-all"} if config.duplicate_ids == "keep-all" and one.id else {})


def stage_recipe(stage: StageSettings, frozen: Frozen) -> dict[str, Any]:
    """Return the recipe of a row-wise stage, given what the corpus has decided."""
    settings = stage.meaningful()
    if stage.applied is not None:
        settings = {name: settings[name] for name in stage.applied}
    if "model" in settings:
        from stages.sonar.card import load_card

        settings["model"] = load_card(settings["model"]).name
    recipe = {
        "stage": stage.name,
        "version": stage.version,
        stage.name: settings,
        "artifacts": stage.artifacts(),
    }
    if stage.corpus_wide:
        recipe["corpus"] = frozen.compared
    return recipe | ({"fits": {name: frozen.fits[name].content for name in stage.fits}} if stage.fits else {})


def segment_part_fingerprint(chunk_fingerprint: str, number: int) -> str:
    """Return the fingerprint of the segmentation of the number-th part of a chunk."""
    return fingerprint([chunk_fingerprint, number])


def part_fingerprint(recipe: dict[str, Any], inputs: dict[str, str]) -> str:
    """Return the fingerprint of one row-wise stage on one part. `inputs`: digests of the columns that it reads."""
    return fingerprint([recipe, inputs])


def recipe_path(recipe: dict[str, Any]) -> str:
    """Return where a recipe is kept, so that `plan` can say what changed."""
    return f"recipes/{recipe['stage']}.{fingerprint(recipe)}.json"


def first_only(config: RunConfig) -> bool:
    """Return whether the first document of each id is the only one, also among files that share a chunk."""
    return config.duplicate_ids == "keep-first"


def ids_may_repeat(config: RunConfig) -> bool:
    """Return whether two documents can have the same id: from a column, or as text files of the same path in two
    inputs.
    """
    return len(config.input) > 1 or any(one.id for one in config.input)


def compares_ids(config: RunConfig) -> bool:
    """Return whether ids are compared over the whole corpus before anything is segmented."""
    return config.duplicate_ids in ("error", "keep-first") and ids_may_repeat(config)


def compared_chunks(config: RunConfig, chunks: ChunkTable) -> ChunkTable:
    """Return the chunks whose ids may repeat, ordered by input, path and record: those of inputs that name an id
    column, and of text files, whose ids are their paths. Ids that are made for other records are hashes.
    """
    order, ranks = in_input_order(config, chunks)
    named = np.asarray([one.id is not None for one in config.input])[ranks]
    formats = chunks.table["format"].combine_chunks().cast(pa.string())
    named |= pc.is_in(formats, pa.array(["text", PACKED])).to_numpy(zero_copy_only=False)
    return chunks.take(order[named[order]])


def in_input_order(config: RunConfig, chunks: ChunkTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the numbers of chunks in the order of their inputs, paths and records, and the input of each chunk."""
    numbers = {str(one.name): number for number, one in enumerate(config.input)}
    inputs = chunks.table["input"].combine_chunks()
    number_of = np.asarray([numbers[name] for name in inputs.dictionary.to_pylist()], np.int64)
    ranks = number_of[inputs.indices.to_numpy()]
    keys = pa.table({"input": ranks, "path": chunks.table["path"].cast(pa.string()), "start": chunks.table["start"]})
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    return order.to_numpy().astype(np.int64), ranks


def with_comparison(config: RunConfig, chunks: Sequence[Chunk]) -> RunConfig:
    """Return the configuration with a digest of all chunks in order, if some stage compares the whole corpus.

    Their fingerprints cover every text, so a comparison of other chunks never passes for one of these.
    """
    if not any(stage.corpus_wide for stage in config.asked_stages()):
        return config
    table = ChunkTable.of(chunks)
    order, _ = in_input_order(config, table)
    prints = Recipes.of(config).chunk_fingerprints(table).take(pa.array(order))
    digest = hashlib.blake2b(b"".join(prints.to_pylist()), digest_size=16).hexdigest()
    return config.with_frozen(replace(config.frozen, compared=digest))


def compared_digest(config: RunConfig, ordered: ChunkTable) -> tuple[list[str], str]:
    """Return a key of what each chunk's ids depend on, and a digest of all of them in order.

    The digest for `duplicate_ids: error` is another one, because its record also says that no id occurs twice within a
    chunk.
    """
    recipes = {str(one.name): fingerprint(reading_recipe(config, one)) for one in config.input}
    keys = [
        fingerprint([recipes[name], *rest])
        for lists in ordered.columns("input", "id", "start", "end", "take", "stamp")
        for name, *rest in zip(*lists, strict=True)
    ]
    everything = "".join([*keys, *(["error"] if config.duplicate_ids == "error" else [])])
    return keys, hashlib.blake2b(everything.encode(), digest_size=8).hexdigest()


def with_known_duplicates(store: Store, config: RunConfig, chunks: Sequence[Chunk]) -> RunConfig:
    """Return the configuration with the record of what is left out of these chunks.

    If there is none yet, the newest record is used, which is right for all documents except new ones and those after
    them.

    Args:
        store: the corpus.
        config: the configuration of the run.
        chunks: all chunks of the view.

    Returns:
        The configuration itself if it does not compare ids.
    """
    if not compares_ids(config):
        return config
    _, digest = compared_digest(config, compared_chunks(config, ChunkTable.of(chunks)))
    return with_duplicates(config, find_record(store, digest))
