"""The notebooks in `examples/` run from top to bottom on the sample that ships, and show what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {  # texts of outputs, and pictures
    "first-look.ipynb": (("documents   18 in = 18 kept", "postgresql-eng", "score"), 1),
    "duplicates-and-map.ipynb": (("3 of 48 documents", "copy-of-2", "near_duplicate_of is null"), 1),
    "segmenter-and-cap.ipynb": (("sat-capped", "spacy-capped", "end like a sentence"), 1),
    "teach-a-model-to-answer.ipynb": (("answer_start int64", "[it goes on]", "ROUGE-L"), 0),
    "train-and-compare.ipynb": (("two-tower", "previous sentence", "[it goes on]"), 1),
    "what-sonar-cannot-represent.ipynb": (("with a digit", "below 20", "autobleu >= 20"), 0),
}


def test_every_notebook_is_run_and_none_is_stored_with_outputs() -> None:
    import json

    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == set(SHOWN)
    for name in SHOWN:
        cells = json.loads((EXAMPLES / name).read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert code and all(not cell["outputs"] and cell["execution_count"] is None for cell in code), name


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(str(one.get("text", "")) + str(one.get("data", {})) for one in outputs)
    words, pictures = SHOWN[name]
    for word in words:
        assert word in text, word
    drawn = [one for one in outputs if {"image/png", "image/svg+xml"} & set(one.get("data", {}))]
    assert len(drawn) == pictures
