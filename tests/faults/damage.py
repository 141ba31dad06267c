"""Every kind of file of a corpus, damaged in six ways: what each command says of it, and what repairing brings back.

    python -m tests.faults.damage docs/damage.md     (all of it in two processes, and the page of figures; some minutes)

Of each damage: status, inspect, verify, run, train and the training of another model, each on the corpus with that
damage; then what is left after `verify --repair`, `run` and `train`.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from pipeline.storage.store import Store
from pipeline.training.record import read_started
from pipeline.training.status import record_failure
from pipeline.training.trackers.about import about
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.processes import start
from tests.support.trainings import write_card

TRAIN = {
    "model": "small.yaml", "name": "m", "steps": 2, "batch_concepts": 64, "micro_concepts": 64, "log_every": 1,
    "validate_every": 0, "validation_concepts": 20, "evaluate_sentences": 0, "checkpoint_every": 1,
    "keep_checkpoints": 2, "plans": "column",
}  # fmt: skip
DUPLICATES = {"near": {}, "semantic": {"cosine": 0.9}}
DECODER = {"steps": 6, "batch_tokens": 256, "warmup": 2, "precision": "float32"}
RECORDS = {
    "header": "corpus.json",
    "view": "runs/*/view.json",
    "chunks": "runs/*/chunks.parquet",
    "settings": "runs/*/corpus.yaml",
    "estimate": "runs/*/estimate.json",
    "events": "runs/*/events/*",
    "progress": "runs/*/progress.json",
    "summary": "runs/*/summary.json",
    "view of an older run": "runs/*/view.json",
    "chunks of an older run": "runs/*/chunks.parquet",
    "settings of an older run": "runs/*/corpus.yaml",
    "ledger": "ledger/*",
    "lease": "lock/run-*.lease",
    "release of a lease": "lock/run-*.released",
    "lease of a training": "lock/train-m-*.lease",
    "recipe": "recipes/encode*",
    "recipe of segmenting": "recipes/segment*",
    "ids of documents": "ids/*",
    "purged documents": "tombstones/*.parquet",
    "purged documents are erased": "tombstones/*.erased",
    "chunk receipt": "chunks/*/*",
    "receipt": "receipts/encode/*/*-00001*",
    "receipt of segmenting": "receipts/segment/*/*-00001*",
    "receipt of plans": "receipts/plans/*/*-00001*",
    "receipt of hashes": "receipts/hashes/*/*-00001*",
    "receipt of duplicates": "receipts/duplicates/*/*-00001*",
    "receipt of semantic duplicates": "receipts/semantic/*/*-00001*",
    "record of a scaler": "fits/scaler*.json",
    "record of codebooks": "fits/rvq*.json",
    "record of a predictor": "fits/predictor*.json",
    "scaler": "fits/scaler*.safetensors",
    "predictor": "fits/predictor*.safetensors",
    "codebooks": "fits/rvq*.safetensors",
    "record of a decoder": "fits/decoder*.json",
    "weights of a decoder": "fits/decoder.*-??????.safetensors",
    "card of a decoder": "fits/decoder*.yaml",
    "checkpoint of a decoder": "fits/decoder*-checkpoint.safetensors",
    "record of an export": "exports/*",
    "report": "report/index.html",
    "interactive report": "report/interactive.html",
    "README": "README.md",
    "index": "train/index/*[0-9a-f].parquet",
    "parts of an index": "train/index/*.parts.parquet",
    "runs of an index": "train/index/*.train*",
    "record of a training": "train/m/run.json",
    "header of a model": "train/m/model.json",
    "weights": "train/m/model.safetensors",
    "scaler of a training": "train/m/scaler.safetensors",
    "metrics": "train/m/metrics.jsonl",
    "events for TensorBoard": "train/m/tensorboard/*",
    "what a training said when it failed": "train/m/failed.txt",
    "identity for trackers": "train/m/trackers.json",
    "figures of an evaluation": "train/m/evaluation/validation.json",
    "table of an evaluation": "train/m/evaluation/validation.csv",
    "marker": "train/m/checkpoints/*2.json",
    "plan of a checkpoint": "train/m/checkpoints/*2.*/plan.json",
    "share": "train/m/checkpoints/*2.*/*.safetensors",
}
ROWS = {
    name: f"{name}/*/*-00001*"
    for name in (
        "documents", "sentences", "language", "noise", "embeddings", "status", "plans", "plan-embeddings", "autobleu",
        "fragility", "fragility-predicted", "codes", "hashes", "minhash", "duplicates", "near-duplicates",
        "semantic-duplicates",
    )
} | {"quarantine": "quarantine/*/*"}  # fmt: skip
KINDS = RECORDS | ROWS
TOLD = ("status", "inspect", "verify", "run", "train", "train anew")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    else:
        data = bytearray(b"\1")
    path.write_bytes(data)


def exchange(path: Path) -> None:
    """For the whole content of another file of that format, of another kind."""
    suffix = path.suffix if path.suffix in (".parquet", ".safetensors") else ".json"
    others = sorted(_root_of(path).rglob(f"*{suffix}"))
    content = path.read_bytes()
    other = next(one for one in others if one.parent != path.parent and one.read_bytes() != content)
    path.write_bytes(other.read_bytes())


def confuse(path: Path) -> None:
    """For the whole content of another file of the same kind: another part's, run's, model's."""
    path.write_bytes(_like(path)[0].read_bytes())


def _like(path: Path) -> list[Path]:
    """Other files of the same kind, with other content."""
    root, content = _root_of(path), path.read_bytes()
    inside = str(path.relative_to(root))
    same = re.sub(r"[0-9a-f]*[0-9][0-9a-f.T-]*(?=[./]|$)", "*", re.sub(r"/[0-9a-f]{2}/", "/*/", inside))
    same = re.sub(r"/m/", "/*/", re.sub(r"-m-", "-*-", same))
    return [one for one in sorted(root.glob(same)) if one != path and one.read_bytes() != content]


def _root_of(path: Path) -> Path:
    return next(one for one in path.parents if one.name == "out")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]),
    "bit": flip,
    "other": exchange,
    "same": confuse,
}
MEANING = {
    "deleted": "is not there",
    "empty": "is empty",
    "truncated": "has only its first two thirds",
    "bit": "has one bit in its middle flipped",
    "other": "has the content of a file of another kind",
    "same": "has the content of another file of the same kind: of another part, run, fit or model",
}


@dataclass
class Seen:
    """What came of a damage. `told`: the commands that ended with 1; `wrong`: what nothing should do."""

    told: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    repair: str = "!"
    unchecked: bool = False  # rows are compared with their digests by `verify` alone: a training took them

    def cell(self) -> str:
        """In the table of the page."""
        letters = "".join(_LETTERS[one] if one in self.told else "·" for one in TOLD)
        letters = letters[:-1] + "x" if self.unchecked else letters
        return f"`{letters} {self.repair}`"


_LETTERS = dict(zip(TOLD, "sivrtT", strict=True))


class Damaged:
    """A finished corpus with two models, which can be had with a damage again and again, at the same place."""

    def __init__(self, folder: Path) -> None:
        self.place, self._whole = folder / "corpus", folder / "whole"
        self.config, self.out = self.place / "corpus.yaml", self.place / "out"
        documents = [
            one | {"topics": ["A page of help", one["title"]]} for one in sample_documents("libreoffice-eng", 9)
        ]
        bad = {"id": "bad", "lang": "xxx_Xxxx", "text": "Nobody knows this language."}
        write_jsonl(self.place / "in/some.jsonl", [*documents, bad])
        write_jsonl(self.place / "in/more.jsonl", [*sample_documents("libreoffice-deu", 2), bad])
        write_card(self.place)
        sections = {
            "input": [{
                "path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title", "topics"],
            }],
            "plans": {"column": "topics"}, "language": {}, "noise": {}, "scaler": {},
            "rvq": {"codebooks": 2, "units": 4},
            "split": {"validation": 0.3},
            "autobleu": {"sample": 0.1, "length_extra": 1, "length_factor": 1.0},
            "fragility": {"sample": 0.3, "noise_levels": [0.1], "precision": "float32"}, "predictor": {},
        }  # fmt: skip
        write_config(
            self.place, **sections, decoder=DECODER, duplicate_ids="keep-first", duplicates=DUPLICATES, train=TRAIN
        )
        self._done("run", "--until", "rvq", "--set", "rvq.units=8", "--set", "scaler.clip=3")
        self._done("export", "--format", "parquet", "--vectors", "none", "--to", str(self.place / "older"))
        for one in (documents[1], documents[3]):
            (self.place / "ids.txt").write_text(one["id"] + "\n")
            self._done("purge", "--ids", str(self.place / "ids.txt"))
            self._done("run", "--until", "rvq")
        self._done("run", "--until", "decoder", "--set", "decoder.steps=4")
        unfinished = ("--until", "decoder", "--set", "decoder.steps=9", "--set", "decoder.checkpoint_seconds=1e-9")
        process = start("run", self.config, *unfinished, die_before=(3, self.out / "fits/.decoder"))
        assert process.wait() == -signal.SIGKILL, process.communicate()[0]
        self._done("run", "--set", "train.name=other", "--set", "train.seed=3")
        process = start("run", self.config)  # which is gone afterwards: a lease of this process would hold the corpus
        assert process.wait() == 0, process.communicate()[0]
        self._done("export", "--format", "parquet", "--vectors", "none", "--to", str(self.place / "newer"))
        self._done("report")
        self._done("report", "--interactive")
        indexes = set(self.out.glob("train/index/*"))
        self._done("evaluate", "--split", "validation", "--sentences", "20", "--metrics", "l2")
        for path in set(self.out.glob("train/index/*")) - indexes:  # without plans: only those of trainings are damaged
            path.unlink()
        store = Store(str(self.out))
        for name in ("m", "other"):  # as trackers and devices that break would have them made
            about(store, f"train/{name}", read_started(store, f"train/{name}"))
            record_failure(store, f"train/{name}", f"the device of {name} broke")
        shutil.copytree(self.place, self._whole)
        self.data, self.weights = self.results()
        self.inspected = pipeline("inspect", self.config).stdout
        self.status = _stable(pipeline("status", self.config).stdout)
        self._done("train", "--set", "train.name=anew")
        self.anew = self._weights("anew")

    def _done(self, *arguments: str) -> None:
        done = pipeline(arguments[0], self.config, *arguments[1:])
        assert done.returncode == 0, said(done)

    def damaged(self, kind: str) -> Path:
        """The file of a kind that is damaged: the newest one, unless an older one is meant."""
        found = sorted(self.out.glob(KINDS[kind]), key=lambda path: (path.stat().st_mtime_ns, path))
        return found[0 if "older" in kind else -1]

    def possible(self, kind: str, damage: str) -> bool:
        """Whether the corpus, as it is whole, has what that damage needs."""
        self._restore()
        return damage != "same" or bool(_like(self.damaged(kind)))

    def again(self, kind: str, damage: str) -> None:
        self._restore()
        DAMAGE[damage](self.damaged(kind))

    def _restore(self) -> None:
        shutil.rmtree(self.place)
        shutil.copytree(self._whole, self.place)

    def results(self) -> tuple[dict[str, str], bytes]:
        return data_digests(self.out), self._weights("m")

    def _weights(self, name: str) -> bytes:
        return (self.out / f"train/{name}/model.safetensors").read_bytes()

    def look(self, kind: str, damage: str) -> Seen:
        """Everything about one damage. A traceback would come through: commands are called in this process."""
        seen = Seen()
        unfinished = damage == "deleted" and "receipt" in kind  # what no receipt vouches for is not there; it is said

        def ask(command: str, *arguments: str) -> tuple[bool, str]:
            """Whether a command ended well, and what it printed."""
            try:
                done = pipeline(command, self.config, *arguments)
            except Exception as error:  # what no command may let through
                seen.tracebacks.append(f"{command}: {error!r}")
                return False, ""
            if done.returncode not in (0, 1, 2) or "Traceback" in said(done):
                seen.tracebacks.append(f"{command}: {done.returncode} {said(done)}")
            return done.returncode == 0, said(done) if done.returncode else done.stdout

        def expect(true: bool, what: str) -> None:
            if not true:
                seen.wrong.append(what)

        def note(name: str, well: bool) -> bool:
            if not well:
                seen.told.append(name)
            return well

        self.again(kind, damage)
        well, shown = ask("status")
        if note("status", well) and not unfinished:
            expect(_stable(shown) == self.status, f"status: {shown}")
        well, shown = ask("inspect")
        if note("inspect", well) and not unfinished:  # or it says what it leaves out, and why
            expect(shown == self.inspected or "until the next pipeline run" in shown, f"inspect: {shown}")
        whole, _ = ask("verify")
        if note("verify", whole):  # then it makes no difference
            expect(kind in RECORDS and self.results() == (self.data, self.weights), "verify: nothing found")
        for command in ("run", "train"):
            self.again(kind, damage)
            if note(command, ask(command)[0]):
                expect(self._weights("m") == self.weights, f"{command}: other weights")
                if command == "run" and kind in RECORDS:  # of rows, with nothing to do, it reads none
                    expect(ask("inspect")[0], "run: well, and nobody can read it")
                    expect(data_digests(self.out) == self.data, "run: other rows")
        self.again(kind, damage)
        well, shown = ask("train", "--set", "train.name=anew")
        if note("train anew", well):
            less = unfinished and "not segmented yet: the model is trained without them" in shown
            same = less or self._weights("anew") == self.anew
            seen.unchecked = kind in ROWS and not same
            expect(same or seen.unchecked, "train anew: other weights")
        self.again(kind, damage)
        repaired, shown = ask("verify", "--repair")
        expect(repaired or not whole, "verify --repair: finds more than verify")  # leases go with the lock
        fitted = re.findall(r"pipeline run (--refit) (\w+)", shown)
        if "cannot be made again" in shown and not fitted:
            return seen
        well, told = ask("run", *(fitted[0] if fitted else ()))
        expect(well, f"run after verify --repair: {shown} {told}")
        again, told = ask("verify")
        expect(again, f"verify after the repair: {told}")
        data, weights = self.results()
        if fitted:  # on other documents: other codes and noise, and what follows from them
            other = ("codes/", "semantic-duplicates/", "fragility/", "fragility-predicted/")
            data = {path: self.data[path] if path.startswith(other) else digest for path, digest in data.items()}
        expect((data, weights) == (self.data, self.weights), "the repair gives other results")
        seen.repair = "~" if fitted else "="
        return seen


def _stable(shown: str) -> str:
    """What `status` says of the corpus, without speeds and the record of the run."""
    return "\n".join(line for line in shown.splitlines() if re.match(r"(sentences|documents|chunks|embeddings)", line))


def page(table: Mapping[tuple[str, str], Seen]) -> str:
    """Return the page of figures."""
    every = Counter({"cases": len(table)})
    for seen in table.values():
        every["tracebacks"] += len(seen.tracebacks)
        every["silent"] += len(seen.wrong)
        every[seen.repair] += 1
        every["unchecked"] += seen.unchecked
        every.update(seen.told)
    kinds = list(dict.fromkeys(kind for kind, _ in table))
    return "\n".join([
        "# Damage",
        "",
        "This page shows what each command says of a damaged corpus. It is written by",
        "",
        "    .venv/bin/python -m tests.faults.damage docs/damage.md",
        "",
        "which damages a finished corpus with purged documents, fits and models, file by file. `make faults` runs the",
        "same damages as tests.",
        "",
        "| figure | |",
        "|---|--:|",
        f"| kinds of files | {len(kinds)} |",
        f"| damages | {every['cases']} |",
        f"| commands run | {every['cases'] * (len(TOLD) + 3)} |",
        f"| tracebacks | {every['tracebacks']} |",
        f"| commands that ended with code 0 and another result | {every['silent']} |",
        f"| trainings of another model on damaged rows, which only `verify` finds | {every['unchecked']} |",
        f"| damages after which `verify --repair` and `run` give the same bytes again | {every['=']} |",
        f"| damages that need `run --refit`, as `verify --repair` says | {every['~']} |",
        f"| damages that cannot be repaired, as `verify --repair` says | {every['!']} |",
        *(f"| reported by `{name}` | {every[name]} |" for name in TOLD if " " not in name),
        f"| reported by the training of another model | {every['train anew']} |",
        "",
        "Each cell has one letter for each command that ends with exit code 1 and says why: `s` status, `i`",
        "inspect, `v` verify, `r` run, `t` train, `T` the training of another model. A point stands for a command",
        "that succeeds with the same result, because it does not need the file or makes it again. `x`: the",
        "training of another model used the damaged rows, which only `verify` finds. The sign at the end is",
        "`=` if `verify --repair` and `run` give the same bytes as before, `~` if `verify` asks for `run --refit`,",
        "which fits the corpus as it is now, so that codes and scores may change, and `!` if `verify` says that the",
        "file is lost.",
        "",
        *(f"- **{name}**: the file {MEANING[name]}" for name in DAMAGE),
        "",
        "| file | " + " | ".join(DAMAGE) + " |",
        "|---|" + "---|" * len(DAMAGE),
        *(
            f"| {kind} (`{KINDS[kind]}`) | "
            + " | ".join(table[kind, damage].cell() if (kind, damage) in table else "" for damage in DAMAGE)
            + " |"
            for kind in kinds
        ),
        "",
    ])  # fmt: skip


def looked_at(kinds: list[str]) -> dict[tuple[str, str], Seen]:
    """Return what comes of every damage of these kinds of files, and print it."""
    table: dict[tuple[str, str], Seen] = {}
    with tempfile.TemporaryDirectory() as folder:
        damaged = Damaged(Path(folder))
        for kind in kinds:
            for damage in DAMAGE:
                if damaged.possible(kind, damage):
                    seen = table[kind, damage] = damaged.look(kind, damage)
                    print(f"{kind}, {damage}: {seen.cell()}", *seen.tracebacks, *seen.wrong, sep="\n  ", flush=True)
    return table


def main() -> None:
    """Write the page, in two processes; what it says of kills stays."""
    kinds = list(KINDS)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        first, second = pool.map(looked_at, (kinds[::2], kinds[1::2]))
    table, path = first | second, Path(sys.argv[1])
    _, heading, kills = path.read_text("utf-8").partition("\n## Kills") if path.exists() else ("", "", "")
    path.write_text(page({key: table[key] for key in sorted(table, key=_place)}) + heading + kills, "utf-8")


def _place(key: tuple[str, str]) -> tuple[int, int]:
    """Return the place in the table."""
    return list(KINDS).index(key[0]), list(DAMAGE).index(key[1])


if __name__ == "__main__":
    main()
