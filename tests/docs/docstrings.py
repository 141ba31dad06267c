"""Which parameters, results and errors the docstrings of public functions leave out, read from the source alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("pipeline", "stages", "launchers")
PARAMETERS = 3  # functions with fewer say all in their first sentence
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$", re.M)
_ENTRY = re.compile(r"^    (\*{0,2}\w+): \S", re.M)
_NOTHING = {"None", "NoReturn"}
_COMMAND = re.compile(r"\b(typer\.(Option|Argument)|\w+Option|\w+Argument)\b")


@dataclass(frozen=True)
class Function:
    """A public function, or a public method of a public class."""

    path: Path
    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: ast.ClassDef | None = None

    @property
    def parameters(self) -> list[str]:
        """Return the names of the parameters, without `self` or `cls`."""
        given = self.node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        bound = self.owner is not None and not _decorated(self.node, "staticmethod")
        names = [one for one in names[bound:] if not one.startswith("_")] + [one.arg for one in given.kwonlyargs]
        return (
            names
            + [f"*{one.arg}" for one in (given.vararg,) if one]
            + [f"**{one.arg}" for one in (given.kwarg,) if one]
        )

    @property
    def docstring(self) -> str:
        """Return the docstring; that of a constructor may stand at its class."""
        text = ast.get_docstring(self.node) or ""
        if self.node.name == "__init__" and self.owner is not None:
            text += "\n\n" + (ast.get_docstring(self.owner) or "")
        return text


def public_functions(root: Path) -> Iterator[Function]:
    """Return the public functions of the packages in `root`: all without a leading underscore, and constructors."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield from _within(path.relative_to(root), ast.parse(path.read_text("utf-8")), None)


def left_out(functions: list[Function]) -> Iterator[str]:
    """Return a line for every public function of many parameters whose docstring leaves something out."""
    described = {(one.owner.name, one.node.name): one for one in functions if one.owner}
    classes = {one.owner.name: one.owner for one in functions if one.owner}
    for one in functions:
        if len(one.parameters) < PARAMETERS or _is_command(one) or _inherits(one, classes, described):
            continue
        sections = _sections(one.docstring)
        entries = set(_ENTRY.findall(sections.get("Args", "")))
        missing = [name for name in one.parameters if name not in entries]
        missing += ["Returns"] if _returns(one.node) and not {"Returns", "Yields"} & sections.keys() else []
        errors = sections.get("Raises", "")
        missing += [f"Raises {name}" for name in sorted(_raised(one.node.body)) if name not in errors]
        if missing:
            yield f"{one.path}:{one.node.lineno} {one.name}: {', '.join(missing)}"


def _within(path: Path, node: ast.Module | ast.ClassDef, owner: ast.ClassDef | None) -> Iterator[Function]:
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _within(path, child, child)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
            not child.name.startswith("_") or child.name == "__init__"
        ):
            yield Function(path, f"{owner.name}.{child.name}" if owner else child.name, child, owner)


def _decorated(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    return any(name in ast.unparse(one) for one in node.decorator_list)


def _is_command(one: Function) -> bool:
    """Return whether the parameters are options of a command, whose help stands beside each."""
    arguments = one.node.args
    return one.path.parts[0] == "pipeline" and any(
        argument.annotation is not None and _COMMAND.search(ast.unparse(argument.annotation))
        for argument in (*arguments.args, *arguments.kwonlyargs)
    )


def _inherits(
    one: Function, classes: Mapping[str, ast.ClassDef], described: Mapping[tuple[str, str], Function]
) -> bool:
    """Return whether a method is that of a protocol or of a class above it, which describes the parameters for all."""
    if one.owner is None or one.node.name == "__init__":
        return False
    protocols = {name for name, node in classes.items() if "Protocol" in map(_name, node.bases)} - {one.owner.name}
    asked = [other for (name, method), other in described.items() if name in protocols and method == one.node.name]
    if any(other.parameters == one.parameters for other in asked):
        return True
    owner = classes.get(one.owner.name)
    waiting = [_name(base) for base in owner.bases] if owner else []
    while waiting:
        name = waiting.pop()
        if "Args" in _sections(described[name, one.node.name].docstring if (name, one.node.name) in described else ""):
            return True
        waiting += [_name(base) for base in classes[name].bases] if name in classes else []
    return False


def _name(base: ast.expr) -> str:
    return ast.unparse(base).split("[")[0].split(".")[-1]


def _sections(docstring: str) -> dict[str, str]:
    parts = _SECTION.split(docstring)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _returns(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.returns is not None and ast.unparse(node.returns) not in _NOTHING and not _decorated(node, "property")


def _raised(body: Sequence[ast.AST]) -> set[str]:
    """Return the names of the errors that leave a body: not those of inner functions, nor those that it catches."""
    found: set[str] = set()
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(one, ast.Raise) and one.exc is not None:
            error = ast.unparse(one.exc.func if isinstance(one.exc, ast.Call) else one.exc).split(".")[-1]
            found |= {error} if error[:1].isupper() else set()
        elif isinstance(one, ast.Try):
            caught = " ".join(ast.unparse(handler.type) for handler in one.handlers if handler.type)
            found |= {name for name in _raised(one.body) if name not in caught}
            found |= _raised([*one.handlers, *one.orelse, *one.finalbody])
        else:
            found |= _raised(list(ast.iter_child_nodes(one)))
    return found
