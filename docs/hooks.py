"""What MkDocs builds of the site besides the pages in this folder.

Generated pages: the configuration reference (from the schema of the settings), the command reference (from the command
line itself), and copies of documents that live elsewhere in the repository (benchmarks, CONTRIBUTING, CHANGELOG).

Mermaid diagrams are shown as SVG files: the theme would fetch Mermaid from the network. Each picture in `diagrams/` is
named after a digest of its source, so a diagram that was edited without rendering it again fails the build.
`python docs/hooks.py` prints the sources that have no picture yet; CONTRIBUTING.md says how to render them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DIAGRAMS = DOCS / "diagrams"
FENCE = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
SHORT = re.compile(r"<code>(?=(?:[^\s<]{1,24}|[^<\n]{1,10})</code>)")  # such as `--dry-run`, `make test`
DATE = re.compile(r"<td>([^<]*)(\d{4}-\d\d-\d\d)(?=</td>)")
COPIES = {
    "benchmarks.md": "benchmarks/README.md",
    "benchmarks-gpu.md": "benchmarks/GPU.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}  # page of the site → document of the repository

Schema = dict[str, Any]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages. MkDocs calls this."""
    from mkdocs.structure.files import File

    pages = {page: copied(source) for page, source in COPIES.items()}
    pages["reference/configuration.md"] = configuration()
    pages["reference/commands.md"] = commands()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put pictures in the place of Mermaid sources, which stay readable below; a click enlarges. MkDocs calls this."""
    depth = page.file.src_uri.count("/")

    def shown(found: re.Match[str]) -> str:
        name = diagram_of(found[1])
        if not (DIAGRAMS / name).exists():
            raise SystemExit(f"{page.file.src_uri}: a diagram has no picture docs/diagrams/{name}; see CONTRIBUTING.md")
        source = "\n".join(f"    {line}" for line in found[0].replace("```mermaid", "```text").splitlines())
        place = f"{'../' * depth}diagrams/{name}"
        return f'[![diagram]({place}){{ .diagram }}]({place})\n\n??? note "Source"\n\n{source}\n'

    return FENCE.sub(shown, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Mark what no line may end within: short code, and dates in tables. MkDocs calls this."""
    return DATE.sub(r'<td>\1<span class="whole">\2</span>', SHORT.sub(r'<code class="whole">', html))


def diagram_of(source: str) -> str:
    """The file name of a diagram's picture."""
    return f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def copied(source: str) -> str:
    """A document of the repository as a page of the site: its links are rewritten for their new place."""
    folder = (ROOT / source).parent
    pages = {(ROOT / path).resolve(): page for page, path in COPIES.items()}

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = (folder / target).resolve()
        if path in pages:
            return f"[{text}]({pages[path]}{anchor})"
        if path.is_relative_to(DOCS):
            return f"[{text}]({path.relative_to(DOCS)}{anchor})"
        return f"{text} (`{path.relative_to(ROOT)}`)"

    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)#]+)(#[^)]*)?\)", link, (ROOT / source).read_text("utf-8"))


def configuration() -> str:
    """The configuration reference: every setting with its type, default, limits, and what a change of it does."""
    from pipeline.config.run_config import RunConfig

    schema = RunConfig.model_json_schema()
    definitions: dict[str, Schema] = schema["$defs"]
    sections = {name: key for key, name in _sections(schema["properties"]).items()}
    lines = [_CONFIGURATION, "## Top level", "", *_table(schema, sections), ""]
    ordered = [*sections, *(name for name in definitions if name not in sections)]
    for name in ordered:
        lines += [f"## {_title(name, sections)}", "", _plain(definitions[name].get("description", "")), ""]
        lines += [*_table(definitions[name], sections), ""]
    return "\n".join(lines)


_CONFIGURATION = """# Configuration reference

Every setting of `corpus.yaml`, made from the schema that checks the file when it is loaded
(`pipeline schema` prints that schema for editors).

The column *changes* says what another value does:

- **meaning**: another value makes another corpus. Results that depend on the setting become stale, and `pipeline plan`
  names the key, the old and the new value. In the section `train`, a training continues only with the values it began
  with; `--fresh` starts again.
- **execution**: another value changes how the work is done (batch sizes, processes, places) and never the result.

A section is a stage: leave it out and the stage does not run. `encode:` or `encode: {}` means all its defaults,
`encode: null` that it is left out. Any
setting can be overridden on the command line: `--set encode.batch_tokens=4096`. `--set train=null` leaves a section
out.
"""


def _sections(properties: Mapping[str, Schema]) -> dict[str, str]:
    """Section of the file → name of its definition."""
    return {key: refs[0] for key, field in properties.items() if (refs := list(_references(field)))}


def _references(field: Schema) -> Iterator[str]:
    choices = [field, field.get("items", {}), *field.get("anyOf", ()), *field.get("oneOf", ())]
    return (one["$ref"].rpartition("/")[2] for one in choices if "$ref" in one)


def _title(definition: str, sections: Mapping[str, str]) -> str:
    return f"`{sections[definition]}`" if definition in sections else _words(definition)


def _words(definition: str) -> str:
    """`LangColumn` → `lang column`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", definition.removesuffix("Settings")).lower()


def _table(definition: Schema, sections: Mapping[str, str]) -> list[str]:
    if not definition["properties"]:
        return ["It has no settings: an empty mapping, `{}`, turns it on."]
    lines = ["| setting | type and limits | default | changes | what it is |", "|---|---|---|---|---|"]
    for name, field in definition["properties"].items():
        required = name in definition.get("required", ())
        cells = [
            f"`{name}`",
            _type(field, sections),
            "required" if required else _default(field),
            field["role"],
            _plain(field["description"]),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines


def _type(field: Schema, sections: Mapping[str, str]) -> str:
    if choices := field.get("anyOf", field.get("oneOf")):
        return " or ".join(dict.fromkeys(_type(one, sections) for one in choices))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        anchor = sections.get(name, _words(name).replace(" ", "-"))
        return f"[{sections.get(name, _words(name))}](#{anchor})"
    if values := field.get("enum", [field["const"]] if "const" in field else None):
        return ", ".join(f"`{value}`" for value in values)
    kind = field.get("type", "value")
    if kind == "array":
        items = field.get("items") or {"type": "value"}
        return f"list of {_type(items, sections)}{_bounds(field, 'minItems', 'maxItems', ' entries')}"
    if kind == "object":
        return "mapping"
    pattern = f" matching `{field['pattern']}`" if "pattern" in field else ""
    words = {"string": "text", "null": "`null`", "boolean": "`true`, `false`"}
    return str(words.get(kind, kind)) + _bounds(field, "minimum", "maximum") + pattern


def _bounds(field: Schema, least: str, most: str, unit: str = "") -> str:
    signs = ((least, "≥"), (most, "≤"), ("exclusiveMinimum", ">"), ("exclusiveMaximum", "<"))
    found = [f"{sign} {field[key]:,}".replace(",", "\N{NO-BREAK SPACE}") for key, sign in signs if key in field]
    return f" {', '.join(found)}{unit}" if found else ""


def _default(field: Schema) -> str:
    value = field.get("default")
    if isinstance(value, dict) and len(value) > 1:
        return "all its defaults"
    if value is None:
        return "–"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _plain(text: str) -> str:
    """Text of the code, where braces and brackets are not Markdown."""
    return re.sub(r"(?<!`)(\{[^}`]*\})(?!`)", r"`\1`", text)


def commands() -> str:
    """The command reference: the help text, arguments and options of every command."""
    from typer.main import get_command

    from pipeline.cli import app

    lines = ["# Commands", "", "What `pipeline COMMAND --help` says. Exit codes: 0 done, 1 failed, 2 wrong usage or"]
    lines += ["configuration, 130 interrupted, 141 if nothing reads the output any more.", ""]
    panel = None
    for command in (one for one in getattr(get_command(app), "commands").values() if not one.hidden):  # noqa: B009
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            lines += [f"## {panel}", ""]
        usage = " ".join(["pipeline", command.name, "[OPTIONS]", *(_argument(one) for one in _arguments(command))])
        lines += [f"### `pipeline {command.name}`", "", "```text", usage, "```", "", *_help(command.help), ""]
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
        if options:
            lines += ["| option | default | what it does |", "|---|---|---|"]
            lines += [_option(one) for one in options]
            lines.append("")
    return "\n".join(lines)


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _argument(one: Any) -> str:
    return str(one.metavar) if one.required else f"[{one.metavar}]"


def _option(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in one.opts + one.secondary_opts)
    metavar = f" `{one.metavar}`" if one.metavar else ""
    default = f"`{one.default}`" if one.default not in (None, False, ()) and not callable(one.default) else "–"
    text = _unescaped(one.help or "").replace("|", "\\|")
    return f"| {names}{metavar} | {'required' if one.required else default} | {text} |"


def _unescaped(text: str) -> str:
    """A help text without the backslashes that keep Rich from taking brackets for markup."""
    return re.sub(r"\\(?=\[)", "", text)


def _help(text: str) -> Iterator[str]:
    """A help text as Markdown: its examples, which are indented, become one block of code."""
    about, _, examples = _unescaped(text).partition("\nExample")
    yield about.strip()
    listed = [line.strip("\b").rstrip() for line in examples.partition(":")[2].splitlines()]
    listed = [line for line in listed if line.strip()]
    if listed:
        indent = min((len(line) - len(line.lstrip()) for line in listed), default=0)
        yield from ("", "Examples:", "", "```text", *(line[indent:] for line in listed), "```")


def _missing_diagrams() -> dict[str, str]:
    """Name of a picture that is missing → its Mermaid source."""
    sources = [found[1] for page in sorted(DOCS.rglob("*.md")) for found in FENCE.finditer(page.read_text("utf-8"))]
    return {diagram_of(one): one for one in sources if not (DIAGRAMS / diagram_of(one)).exists()}


if __name__ == "__main__":
    json.dump(_missing_diagrams(), sys.stdout, indent=1)
