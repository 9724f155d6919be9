"""What a Python file imports, read from its syntax tree. Nothing is ever imported to find out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ctdeploy.remote.payloads.calls import Names, parse

CATCHES_IMPORT_ERROR = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
LOADS_BY_PATH = {"runpy.run_path", "importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader"}
LISTS_MODULES = {"pkgutil.iter_modules", "pkgutil.walk_packages"}
CHANGES_PATH = {"sys.path.append", "sys.path.insert", "sys.path.extend", "site.addsitedir"}


class Import(NamedTuple):
    """One import. `names` is None for `import module`, else what `from module import` names (possibly `*`)."""

    level: int
    module: str
    names: tuple[str, ...] | None
    line: int
    guarded: bool


@dataclass
class Scan:
    """The imports of one file; `dynamic` are (line, what) that cannot be followed, `path_changes` lines of sys.path."""

    imports: list[Import] = field(default_factory=list)
    dynamic: list[tuple[int, str]] = field(default_factory=list)
    path_changes: list[int] = field(default_factory=list)
    all_names: frozenset[str] | None = frozenset()


def scan(tree: ast.Module, is_entry: bool) -> Scan:
    """Read the imports of a module. `is_entry`: its `if __name__ == "__main__"` runs."""
    visitor = _Visitor(tree, is_entry)
    visitor.visit(tree)
    visitor.result.all_names = _all_names(tree)
    return visitor.result


def scan_lines(text: str) -> Scan:
    """The imports of a file that this interpreter cannot parse, line by line: a newer one may run it."""
    result = Scan()
    for match in re.finditer(r"^[ \t]*((?:import|from)[ \t]+[^\n(]+(?:\([^)]*\))?)", text, re.MULTILINE):
        try:
            tree = parse(match.group(1).strip())
        except (SyntaxError, ValueError):
            continue
        line = text.count("\n", 0, match.start()) + 1
        for each in scan(tree, False).imports:
            result.imports.append(each._replace(line=line, guarded=True))
    return result


def _all_names(tree: ast.Module) -> frozenset[str] | None:
    """The strings of `__all__`; None if it is not made of literals only."""
    names: set[str] = set()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            continue
        value = getattr(node, "value", None)
        if not isinstance(value, ast.List | ast.Tuple):
            return None
        for item in value.elts:
            if not (isinstance(item, ast.Constant) and isinstance(item.value, str)):
                return None
            names.add(item.value)
    return frozenset(names)


class _Visitor(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, is_entry: bool) -> None:
        self.names = Names(tree)
        self.is_entry = is_entry
        self.guarded = False
        self.result = Scan()

    @contextmanager
    def _guard(self, on: bool = True) -> Iterator[None]:
        before, self.guarded = self.guarded, self.guarded or on
        try:
            yield
        finally:
            self.guarded = before

    def _visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    def _visit_guarded(self, node: ast.AST) -> None:
        with self._guard():
            self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_guarded
    visit_While = visit_For = visit_AsyncFor = visit_Match = visit_IfExp = _visit_guarded

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(0, alias.name, None, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._add(node.level, node.module or "", tuple(alias.name for alias in node.names), node.lineno)

    def _add(self, level: int, module: str, names: tuple[str, ...] | None, line: int) -> None:
        self.result.imports.append(Import(level, module, names, line, self.guarded))

    def visit_If(self, node: ast.If) -> None:
        test, negated = node.test, False
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, negated = test.operand, True
        if self.names.meanings(test) & {"TYPE_CHECKING", "typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"}:
            # What type checkers alone see does not travel; the other branch always runs.
            self._visit_all(node.body if negated else node.orelse)
            return
        if _is_main_test(node.test):
            with self._guard(not self.is_entry):
                self._visit_all(node.body)
            self._visit_all(node.orelse)
            return
        self._visit_guarded(node)

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_try(node)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self._visit_try(node)

    def _visit_try(self, node: ast.Try | ast.TryStar) -> None:
        caught = any(handler.type is None or self._catches(handler.type) for handler in node.handlers)
        with self._guard(caught):
            self._visit_all(node.body)
        with self._guard():
            for handler in node.handlers:
                self._visit_all(handler.body)
        with self._guard(caught):
            self._visit_all(node.orelse)
        self._visit_all(node.finalbody)

    def visit_With(self, node: ast.With) -> None:
        suppressed = any(
            isinstance(item.context_expr, ast.Call)
            and "contextlib.suppress" in self.names.meanings(item.context_expr.func)
            and any(self._catches(arg) for arg in item.context_expr.args)
            for item in node.items
        )
        with self._guard(suppressed):
            self.generic_visit(node)

    def _catches(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple):
            return any(self._catches(each) for each in node.elts)
        return bool(self.names.meanings(node) & CATCHES_IMPORT_ERROR)

    def visit_Call(self, node: ast.Call) -> None:
        called = self.names.meanings(node.func)
        if called & {"importlib.import_module", "__import__", "runpy.run_module"}:
            self._import_call(node)
        elif called & LOADS_BY_PATH:
            self.result.dynamic.append((node.lineno, "loads a file by its path"))
        elif called & LISTS_MODULES:
            self.result.dynamic.append((node.lineno, "imports what it finds in a folder"))
        elif called & CHANGES_PATH:
            self.result.path_changes.append(node.lineno)
        self.generic_visit(node)

    def _import_call(self, node: ast.Call) -> None:
        arguments = dict(zip(("name", "package"), node.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        name = arguments.get("name", arguments.get("mod_name"))
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            self.result.dynamic.append((node.lineno, "imports a module whose name is computed"))
            return
        module = name.value.lstrip(".")
        level = len(name.value) - len(module)
        package = arguments.get("package")
        if level and isinstance(package, ast.Constant) and isinstance(package.value, str):
            kept = package.value.split(".")
            self._add(0, ".".join([*kept[: len(kept) - level + 1], module]), None, node.lineno)
        elif level and not (isinstance(package, ast.Name) and package.id in ("__package__", "__name__")):
            self.result.dynamic.append((node.lineno, "imports a module relative to a package that is computed"))
        else:
            self._add(level, module, None, node.lineno)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._note_path_change(node.targets, node.lineno)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._note_path_change([node.target], node.lineno)
        self.generic_visit(node)

    def _note_path_change(self, targets: list[ast.expr], line: int) -> None:
        for target in targets:
            whole = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(whole, ast.Attribute) and "sys.path" in self.names.meanings(whole):
                self.result.path_changes.append(line)


def _is_main_test(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, test.comparators[0]]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )
