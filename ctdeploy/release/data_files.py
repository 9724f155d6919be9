"""Files that are no modules but that modules read."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from ctdeploy.release.exclude import is_hidden, is_litter

# A data file that nobody named travels up to this size; beyond it, it is more likely an output or a checkpoint.
DATA_LIMIT = 16 * 1024 * 1024
PYTHON_SUFFIXES = (".py", ".pyi", ".pyw")


def package_data(package: Path) -> tuple[list[Path], list[Path]]:
    """The data files of a regular package, and those above DATA_LIMIT. Subpackages answer for themselves."""
    files: list[Path] = []
    too_large: list[Path] = []
    visited = set()
    for folder, folders, names in os.walk(package, followlinks=True):
        here = Path(folder)
        real = here.resolve()
        if real in visited or (here != package and "__init__.py" in names):
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not is_litter(name) and not is_hidden(name))
        for name in sorted(names):
            file = here / name
            if name.endswith(PYTHON_SUFFIXES) or is_litter(name) or is_hidden(name) or not file.is_file():
                continue
            (files if file.stat().st_size <= DATA_LIMIT else too_large).append(file)
    return files, too_large


def beside_module(tree: ast.Module, module: Path, root: Path) -> list[Path]:
    """Files that a module names from its own place, such as `Path(__file__).parent / "words.txt"`.

    Any expression is read that holds `__file__`, or a variable that was made from it, together with string literals.
    Each literal, and all of one expression joined, is looked up from the module's folder and its parents up to the
    root; regular files up to DATA_LIMIT that are no Python are returned.
    """
    derived = _names_from_file(tree)
    found: dict[Path, None] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp | ast.Call) or not _holds_file(node, derived):
            continue
        words = [n.value for n in _in_order(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        for text in {*words, "/".join(words)}:
            for file in _lookup(text, module.parent, root):
                found[file] = None
    return list(found)


def _lookup(text: str, folder: Path, root: Path) -> Iterator[Path]:
    text = text.lstrip("/")  # f"{HERE}/words.txt"
    if not text or "\0" in text or ".." in text.split("/") or is_hidden(text) or is_litter(text):
        return
    if text.endswith(PYTHON_SUFFIXES):
        return
    while True:
        file = folder / text
        try:
            if file.is_file() and file.stat().st_size <= DATA_LIMIT:
                yield file
        except OSError:  # a literal too long for a file name
            return
        if folder in (root, folder.parent):
            return
        folder = folder.parent


def _names_from_file(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for _ in range(3):  # HERE = Path(__file__).parent; DATA = HERE / "data"
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _holds_file(node.value, names):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _holds_file(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and (n.id == "__file__" or n.id in names) for n in ast.walk(node))


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
