"""Finds the local files that an entry script needs, by reading its imports; nothing is ever imported.

The search follows CPython's path finder for what runs in the container: `sys.path[0]` is the entry's folder, so a local
module wins over one of the standard library of the same name; in one folder a regular package wins over a module, and
a module over a namespace package, which in turn loses to anything later on `sys.path`. A module that stands only in the
app's root is taken along too, with a warning, because a script may add the root to `sys.path` itself.

Taken: the modules, the `__init__.py` of each parent package, and the data files of each regular package (all that is
not Python, below its folder, but hidden files, tool litter, subpackages that nothing imports, and files above
DATA_LIMIT). Data beside a module outside a package travels if the code names it from `__file__` (see data_files).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import FrozenImporter
from pathlib import Path
from typing import NamedTuple

from ctdeploy.release.data_files import DATA_LIMIT, beside_module, package_data
from ctdeploy.release.exclude import is_litter
from ctdeploy.release.imports import Import, Scan, scan, scan_lines
from ctdeploy.release.model import ExternalImport, Warning
from ctdeploy.release.python_file import decode, tree_of
from ctdeploy.remote.payloads.markers import glob_match

# Not in the standard library of every Python from 3.9 to 3.14: the launch interpreter has to be asked.
NOT_EVERYWHERE = frozenset(
    {
        *("tomllib", "annotationlib", "compression", "distutils", "imp", "asynchat", "asyncore", "smtpd", "binhex"),
        *("formatter", "parser", "symbol", "aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3"),
        *("mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib", "uu"),
        "xdrlib",
    }
)
STDLIB = frozenset(sys.stdlib_module_names) | {"__main__"}


@dataclass
class Found:
    """What an entry script needs: `files` maps a path in the release to the local file."""

    files: dict[str, Path] = field(default_factory=dict)
    external: tuple[ExternalImport, ...] = ()
    warnings: list[Warning] = field(default_factory=list)


class _Place(NamedTuple):
    """Where a module name leads: one file, or the folders of a package."""

    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    is_namespace: bool = False


class _Module(NamedTuple):
    path: Path
    name: str
    package: str | None
    guarded: bool


def find(root: Path, entry: Path, exclude: tuple[str, ...] = (), included: Iterable[Path] = ()) -> Found:
    """Find what `entry` needs below `root` (both absolute; `exclude` globs are relative to the root).

    `included` are Python files that travel anyway; what they import comes along. Files are read and parsed, none is
    run. A file that does not parse is searched line by line.
    """
    return _Finder(root, entry, exclude).run(included)


class _Finder:
    def __init__(self, root: Path, entry: Path, exclude: tuple[str, ...]) -> None:
        self.root = root
        self.entry = entry
        self.exclude = exclude
        self.found = Found()
        self.queue: deque[_Module] = deque()
        self.seen: dict[tuple[Path, str | None], bool] = {}
        self.scans: dict[Path, Scan] = {}
        self.external: dict[str, ExternalImport] = {}
        self.from_root: dict[str, tuple[Path, int, bool]] = {}
        self.packages: set[Path] = set()
        self.listings: dict[Path, frozenset[str]] = {}
        self.warned: set[Warning] = set()

    def run(self, included: Iterable[Path]) -> Found:
        self.found.files[self._path(self.entry)] = self.entry
        if self.entry.is_symlink() and self.entry.resolve().parent != self.entry.parent.resolve():
            text = "is a symlink: here Python looks for modules beside its target, in the container beside the link"
            self._warn(self.entry, 0, text)
        self._reach(self.entry, "__main__", None, False)
        for file in included:
            self._reach_included(file)
        # Unguarded imports first, so that a module counts as guarded only if every way to it is.
        while self.queue:
            module = self.queue.popleft()
            if self.seen[module.path, module.package] == module.guarded:
                self._follow(module)
        self._judge_root_imports()
        local = {top for path in self.found.files for top in self._tops(path)}
        external = [each for name, each in self.external.items() if name not in local or name in self.from_root]
        self.found.external = tuple(sorted(external, key=lambda each: each.name))
        self.found.warnings.sort(key=lambda each: (each.path, each.line, each.text))
        return self.found

    def _reach(self, path: Path, name: str, package: str | None, guarded: bool) -> None:
        known = self.seen.get((path, package))
        if known is None or (known and not guarded):
            self.seen[path, package] = guarded
            module = _Module(path, name, package, guarded)
            self.queue.append(module) if guarded else self.queue.appendleft(module)

    def _reach_included(self, file: Path) -> None:
        """Nothing says by which name it is imported, if at all: its path from the entry's folder is the best guess."""
        beside = file.is_relative_to(self.entry.parent)
        folders = file.relative_to(self.entry.parent if beside else self.root).parts[:-1]
        self._take(file)
        if file != self.entry:
            self._reach(file, ".".join((*folders, file.stem)), ".".join(folders) or None, True)

    def _follow(self, module: _Module) -> None:
        result = self._scan(module.path)
        for each in result.imports:
            self._import(module, each._replace(guarded=each.guarded or module.guarded))

    def _scan(self, path: Path) -> Scan:
        if path in self.scans:
            return self.scans[path]
        result = Scan()
        try:
            data = path.read_bytes()
        except OSError:
            data = b""  # building the release reads it again, and says what is wrong
        tree = tree_of(data)
        if tree is None:
            result = scan_lines(decode(data))
            self._warn(path, 0, "does not parse here; its imports were read line by line")
        else:
            result = scan(tree, path == self.entry)
            for file in beside_module(tree, path, self.root) if b"__file__" in data else ():
                self._take(file)
        for line, what in result.dynamic:
            self._warn(path, line, f"{what}; what it loads travels only if `include` names it")
        self.scans[path] = result
        return result

    def _import(self, module: _Module, wanted: Import) -> None:
        target = wanted.module
        if wanted.level:
            kept = module.package.split(".") if module.package else []
            if len(kept) < wanted.level:
                if not wanted.guarded:
                    self._warn(module.path, wanted.line, "relative import beyond the top-level package: fails when run")
                return
            kept = kept[: len(kept) - wanted.level + 1]
            target = ".".join([*kept, wanted.module] if wanted.module else kept)
        place, missing = self._walk(target, module, wanted)
        if missing:
            self._not_found(target, missing, module, wanted)
            return
        if place is None or wanted.names is None or not place.folders:
            return
        for name in self._imported_names(place, wanted.names):
            found = self._locate(name, place.folders)
            if found is not None:
                self._take_module(f"{target}.{name}", found, wanted.guarded)
            elif place.is_namespace and name != "*":
                self._not_found(f"{target}.{name}", name, module, wanted)

    def _imported_names(self, place: _Place, names: tuple[str, ...]) -> list[str]:
        """`from package import *` imports the submodules that `__all__` names; all, if it is computed."""
        if "*" not in names or not place.files:
            return list(names)
        listed = self._scan(place.files[0]).all_names
        if listed is None:
            listed = frozenset(name.split(".")[0] for folder in place.folders for name in self._listing(folder))
        return sorted(name for name in listed if name != "__init__")

    def _walk(self, dotted: str, module: _Module, wanted: Import) -> tuple[_Place | None, str]:
        """Follow a dotted name, taking each module on the way; the second value is the part that is missing."""
        parts = dotted.split(".")
        folders = self._top_folders(parts, module, wanted)
        steps: list[tuple[str, _Place]] = []
        for index, part in enumerate(parts):
            place = self._locate(part, folders)
            if place is None:
                break
            steps.append((".".join(parts[: index + 1]), place))
            folders = place.folders
        if steps and steps[0][1].is_namespace and parts[0] in STDLIB:
            return None, ""  # a folder without __init__.py loses to the standard library
        for name, step in steps:
            self._take_module(name, step, wanted.guarded)
        if len(steps) < len(parts):
            return None, parts[len(steps)]
        if wanted.names is None and all(step.is_namespace for _, step in steps):
            return None, parts[-1]  # an empty name, unless another import names a module in it
        return steps[-1][1], ""

    def _top_folders(self, parts: list[str], module: _Module, wanted: Import) -> tuple[Path, ...]:
        """The entry's folder, or the root where the name stands only there."""
        beside = (self.entry.parent,)
        here = self._locate(parts[0], beside)
        if self.entry.parent == self.root or (here is not None and not here.is_namespace):
            return beside
        there = self._locate(parts[0], (self.root,))
        if there is None or (there.is_namespace and (here is not None or not self._inside(parts, wanted))):
            return beside
        if here is None:
            known = self.from_root.get(parts[0])
            if known is None or (known[2] and not wanted.guarded):
                self.from_root[parts[0]] = (module.path, wanted.line, wanted.guarded)
            return (self.root,)
        return beside

    def _inside(self, parts: list[str], wanted: Import) -> bool:
        """Whether a namespace folder of the root really holds what is imported from it."""
        folders: tuple[Path, ...] = (self.root,)
        for part in parts:
            place = self._locate(part, folders)
            if place is None:
                return False
            folders = place.folders
        names = wanted.names or ()
        return place is not None and (not place.is_namespace or any(self._locate(name, folders) for name in names))

    def _locate(self, name: str, folders: tuple[Path, ...]) -> _Place | None:
        portions = []
        for folder in folders:
            listing = self._listing(folder)
            inner = folder / name
            is_folder = name in listing and inner.is_dir()
            if is_folder and "__init__.py" in self._listing(inner):
                init = inner / "__init__.py"
                return None if self._excluded(init) else _Place((init,), (inner,))
            binaries = [n for n in listing if n.startswith(f"{name}.") and n.endswith((".so", ".pyd"))]
            if binaries:
                return _Place(tuple(folder / n for n in sorted(binaries)), ())
            if f"{name}.py" in listing and (folder / f"{name}.py").is_file():
                file = folder / f"{name}.py"
                return None if self._excluded(file) else _Place((file,), ())
            if is_folder and not is_litter(name):
                portions.append(inner)
        return _Place((), tuple(portions), True) if portions else None

    def _listing(self, folder: Path) -> frozenset[str]:
        """Names in a folder: asking it, not the file, tells upper from lower case on every file system."""
        if folder not in self.listings:
            try:
                self.listings[folder] = frozenset(each.name for each in folder.iterdir())
            except OSError:
                self.listings[folder] = frozenset()
        return self.listings[folder]

    def _take_module(self, dotted: str, place: _Place, guarded: bool) -> None:
        for file in place.files:
            self._take(file)
            if file.suffix == ".py":
                is_package = bool(place.folders)
                self._reach(file, dotted, dotted if is_package else dotted.rpartition(".")[0] or None, guarded)
            else:
                self._warn(file, 0, "is compiled code: it has to fit the container's Python and system")
        if place.files and place.folders:
            self._take_data(place.folders[0])
        if "." not in dotted and place.files and _is_built_in(dotted):
            self._warn(place.files[0], 0, f"is never imported: Python's own {dotted} comes first")

    def _take_data(self, package: Path) -> None:
        if package in self.packages:
            return
        self.packages.add(package)
        files, too_large = package_data(package)
        files = [file for file in files if not self._excluded(file)]
        for file in files:
            self._take(file)
        for file in too_large:
            if not self._excluded(file):
                self._warn(file, 0, "is too large to travel by itself; name it in `include` if the code needs it")
        size = sum(file.stat().st_size for file in files)
        if size > DATA_LIMIT:
            text = (
                f"its {len(files)} data files ({size >> 20} MiB) travel with the package; `exclude` what nothing needs"
            )
            self._warn(package, 0, text)

    def _not_found(self, dotted: str, missing: str, module: _Module, wanted: Import) -> None:
        top = _top(dotted)
        place = self._locate(top, (self.entry.parent,)) or (self._locate(top, (self.root,)) if top != missing else None)
        if place is not None and not place.is_namespace:
            if not wanted.guarded:
                what = f"{dotted} is not in {self._path(place.folders[0] if place.folders else place.files[0])}"
                self._warn(module.path, wanted.line, f"{what}; the import fails when run")
            return
        if top not in STDLIB or top in NOT_EVERYWHERE:
            self._add_external(ExternalImport(top, self._path(module.path), wanted.line, wanted.guarded))

    def _add_external(self, new: ExternalImport) -> None:
        known = self.external.get(new.name)
        if known is None or (known.guarded and not new.guarded):
            self.external[new.name] = new

    def _judge_root_imports(self) -> None:
        changes = [(path, line) for path, result in self.scans.items() for line in result.path_changes]
        folder = self._path(self.entry.parent) or "."
        for name, (path, line, guarded) in self.from_root.items():
            if changes:
                where, at = changes[0]
                text = f"{name} stands in the root: found only if {self._path(where)}:{at} puts the root on sys.path"
                self._warn(path, line, text)
            else:
                text = f"{name} stands in the root, but Python looks in the entry's folder ({folder}) only"
                self._warn(path, line, text)
                self._add_external(ExternalImport(name, self._path(path), line, guarded))

    def _tops(self, path: str) -> tuple[str, ...]:
        """The folder in the root, and the one in the entry's folder, that a file which travels lies in."""
        beside = path.removeprefix(f"{self._path(self.entry.parent)}/")
        return tuple(each.split("/")[0] for each in (path, beside) if "/" in each)

    def _take(self, file: Path) -> None:
        if not self._excluded(file):
            self.found.files[self._path(file)] = file

    def _excluded(self, file: Path) -> bool:
        path = self._path(file)
        return file != self.entry and any(glob_match(glob, path) for glob in self.exclude)

    def _path(self, file: Path) -> str:
        path = file.relative_to(self.root).as_posix()
        return "" if path == "." else path

    def _warn(self, file: Path, line: int, text: str) -> None:
        warning = Warning(self._path(file), line, text)
        if warning not in self.warned:
            self.warned.add(warning)
            self.found.warnings.append(warning)


def _top(dotted: str) -> str:
    return dotted.partition(".")[0]


@cache
def _is_built_in(name: str) -> bool:
    return name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None
