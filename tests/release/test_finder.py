"""The files that the finder picks run alone in an empty place, and print what the original prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctdeploy.release.data_files import DATA_LIMIT
from ctdeploy.release.finder import Found, find

Tree = dict[str, str]


def lay(root: Path, tree: Tree) -> Path:
    for path, text in tree.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def run(root: Path, entry: str) -> tuple[int, str, str]:
    """Run the script alone: no environment, no site-packages, its folder as sys.path[0]."""
    argv = [sys.executable, "-B", "-E", "-s", "-S", str(root / entry)]
    done = subprocess.run(argv, cwd="/", env={}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def copy(found: Found, target: Path) -> Path:
    for path, local in found.files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, target / path)
    return target


def deploy(tmp_path: Path, tree: Tree, entry: str = "train.py") -> Found:
    """Check that the found files behave in an empty folder as all of them do in theirs."""
    root = lay(tmp_path / "root", tree)
    found = find(root, root / entry)
    code, out, err = run(root, entry)
    assert code == 0, err
    assert out
    assert run(copy(found, tmp_path / "empty"), entry) == (code, out, err)
    return found


NOISE = {"unused.py": "1/0", "other/__init__.py": "", "notes.txt": "x"}

CASES: dict[str, tuple[Tree, set[str]]] = {
    "a module beside": ({"train.py": "import a\nprint(a.x)", "a.py": "x = 1"}, {"a.py"}),
    "a package": (
        {"train.py": "import p.q.r\nprint(p.q.r.x)", "p/__init__.py": "", "p/q/__init__.py": "", "p/q/r.py": "x = 1"},
        {"p/__init__.py", "p/q/__init__.py", "p/q/r.py"},
    ),
    "a submodule by from": (
        {"train.py": "from p import r, y\nprint(r.x, y)", "p/__init__.py": "y = 2", "p/r.py": "x = 1", "p/z.py": ""},
        {"p/__init__.py", "p/r.py"},
    ),
    "relative imports": (
        {
            "train.py": "from p.deep import m\nprint(m.total)",
            "p/__init__.py": "",
            "p/one.py": "x = 1",
            "p/deep/__init__.py": "from . import two",
            "p/deep/two.py": "y = 2",
            "p/deep/m.py": "from ..one import x\nfrom .two import y\nfrom .. import three\ntotal = x + y + three.z",
            "p/three.py": "z = 3",
        },
        {"p/__init__.py", "p/one.py", "p/deep/__init__.py", "p/deep/two.py", "p/deep/m.py", "p/three.py"},
    ),
    "a namespace package": (
        {
            "train.py": "import ns.m\nfrom ns.sub import k\nprint(ns.m.x, k.y)",
            "ns/m.py": "x = 1",
            "ns/sub/k.py": "y = 2",
        },
        {"ns/m.py", "ns/sub/k.py"},
    ),
    "a relative import in a namespace package": (
        {"train.py": "import ns.m\nprint(ns.m.x)", "ns/m.py": "from . import n\nx = n.x", "ns/n.py": "x = 1"},
        {"ns/m.py", "ns/n.py"},
    ),
    "a module named like one of the standard library": (
        {
            "train.py": "import random, colorsys\nprint(random.x, colorsys.x)",
            "random.py": "x = 1",
            "colorsys.py": "x = 2",
        },
        {"random.py", "colorsys.py"},
    ),
    "a package named like one of the standard library": (
        {"train.py": "import wsgiref.own\nprint(wsgiref.own.x)", "wsgiref/__init__.py": "", "wsgiref/own.py": "x = 1"},
        {"wsgiref/__init__.py", "wsgiref/own.py"},
    ),
    "a folder named like one of the standard library loses": (
        {"train.py": "from json import dumps\nprint(dumps(1))", "json/dumps.py": "1/0", "json/x.json": "{}"},
        set(),
    ),
    "a built-in module cannot be replaced": (
        {"train.py": "import time\nprint(hasattr(time, 'monotonic'))", "time.py": "1/0"},
        {"time.py"},
    ),
    "an import inside a function": (
        {"train.py": "def f():\n    from late import x\n    return x\nprint(f())", "late.py": "x = 1"},
        {"late.py"},
    ),
    "a re-export": (
        {
            "train.py": "from p import Model\nprint(Model.name)",
            "p/__init__.py": "from .impl.model import Model as Model",
            "p/impl/__init__.py": "",
            "p/impl/model.py": "class Model:\n    name = 'm'",
        },
        {"p/__init__.py", "p/impl/__init__.py", "p/impl/model.py"},
    ),
    "a star import of a module": ({"train.py": "from a import *\nprint(x)", "a.py": "x = 1"}, {"a.py"}),
    "a star import of a package with __all__": (
        {
            "train.py": "from p import *\nprint(one.x)",
            "p/__init__.py": "__all__ = ['one']",
            "p/one.py": "x = 1",
            "p/n.py": "",
        },
        {"p/__init__.py", "p/one.py"},
    ),
    "a star import of a package with a computed __all__": (
        {"train.py": "from p import *\nprint(one.x)", "p/__init__.py": "__all__ = ['on' + 'e']", "p/one.py": "x = 1"},
        {"p/__init__.py", "p/one.py"},
    ),
    "TYPE_CHECKING": (
        {
            "train.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import types_only\n"
            "else:\n    import real\nprint(real.x)",
            "real.py": "x = 1",
            "types_only.py": "1/0",
        },
        {"real.py"},
    ),
    "import_module of a literal": (
        {
            "train.py": "import importlib as il\nprint(il.import_module('p.plugin').x)\nprint(__import__('a').x)",
            "p/__init__.py": "",
            "p/plugin.py": "import importlib\nx = importlib.import_module('.leaf', __package__).x\n"
            "importlib.import_module('..a', package='p.q')",
            "p/leaf.py": "x = 1",
            "p/a.py": "",
            "a.py": "x = 2",
        },
        {"p/__init__.py", "p/plugin.py", "p/leaf.py", "p/a.py", "a.py"},
    ),
    "a fallback after ImportError": (
        {
            "train.py": "try:\n    import no_such\nexcept ImportError:\n    import own as no_such\nprint(no_such.x)",
            "own.py": "x = 1",
        },
        {"own.py"},
    ),
    "imports in a cycle": (
        {
            "train.py": "import a\nif __name__ == '__main__':\n    print(a.b.x)",
            "a.py": "import b",
            "b.py": "import a\nimport train\nx = 1",
        },
        {"a.py", "b.py"},
    ),
    "a package wins over a module": (
        {"train.py": "import p\nprint(p.x)", "p/__init__.py": "x = 1", "p.py": "1/0"},
        {"p/__init__.py"},
    ),
    "a module wins over a folder": (
        {"train.py": "import p\nprint(p.x)", "p/q.py": "1/0", "p.py": "x = 1"},
        {"p.py"},
    ),
    "data in a package": (
        {
            "train.py": "import p.m\nprint(p.m.text)",
            "p/__init__.py": "",
            "p/m.py": "from importlib.resources import files\ntext = (files('p') / 'words' / 'w.txt').read_text()",
            "p/words/w.txt": "w",
            "p/unused/__init__.py": "",
            "p/unused/big.bin": "x",
            "p/__pycache__/m.pyc": "x",
            "p/.secret": "x",
        },
        {"p/__init__.py", "p/m.py", "p/words/w.txt"},
    ),
    "data beside a module": (
        {
            "train.py": "import a\nprint(a.text)",
            "a.py": "from pathlib import Path\nHERE = Path(__file__).parent\n"
            "text = (HERE / 'data' / 'w.txt').read_text()",
            "data/w.txt": "w",
            "data/not_named.txt": "x",
        },
        {"a.py", "data/w.txt"},
    ),
    "data beside a module, by an f-string": (
        {"train.py": "import os\nHERE = os.path.dirname(__file__)\nprint(open(f'{HERE}/w.txt').read())", "w.txt": "w"},
        {"w.txt"},
    ),
    "data beside the entry, by os.path": (
        {
            "train.py": "import os\nprint(open(os.path.join(os.path.dirname(__file__), 'data', 'w.txt')).read())",
            "data/w.txt": "w",
        },
        {"data/w.txt"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_pushed_copy_runs_in_an_empty_place(name: str, tmp_path: Path) -> None:
    tree, expected = CASES[name]
    found = deploy(tmp_path, NOISE | tree)
    assert set(found.files) == {"train.py"} | expected
    assert [each for each in found.external if not each.guarded] == []


def test_a_symlinked_module_and_package_travel_as_content_under_their_own_path(tmp_path: Path) -> None:
    lay(tmp_path / "elsewhere", {"real.py": "x = 1", "pkg/__init__.py": "from .m import y", "pkg/m.py": "y = 2"})
    root = lay(tmp_path / "root", {"train.py": "import linked, p\nprint(linked.x, p.y)"})
    (root / "linked.py").symlink_to(tmp_path / "elsewhere/real.py")
    (root / "p").symlink_to("../elsewhere/pkg")
    found = deploy(tmp_path, {})
    assert set(found.files) == {"train.py", "linked.py", "p/__init__.py", "p/m.py"}


def test_a_loop_of_symlinks_in_package_data_ends(tmp_path: Path) -> None:
    root = lay(tmp_path / "root", {"train.py": "import p\nprint(1)", "p/__init__.py": "", "p/d/w.txt": "w"})
    (root / "p/d/again").symlink_to("../d")
    assert set(deploy(tmp_path, {}).files) == {"train.py", "p/__init__.py", "p/d/w.txt"}


def test_an_entry_in_a_subfolder_sees_its_own_folder_first(tmp_path: Path) -> None:
    tree = {"src/train.py": "import a\nprint(a.x)", "src/a.py": "x = 'beside'", "a.py": "x = 'root'"}
    assert set(deploy(tmp_path, tree, "src/train.py").files) == {"src/train.py", "src/a.py"}


def test_a_module_of_the_root_that_the_script_puts_on_the_path_travels_with_a_warning(tmp_path: Path) -> None:
    tree = {
        "src/train.py": "import sys, os\nsys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))\n"
        "import lib.a\nprint(lib.a.x)",
        "lib/a.py": "x = 1",
    }
    found = deploy(tmp_path, tree, "src/train.py")
    assert set(found.files) == {"src/train.py", "lib/a.py"}
    assert found.external == ()
    assert [str(each) for each in found.warnings] == [
        "src/train.py:3: lib stands in the root: found only if src/train.py:2 puts the root on sys.path"
    ]


def test_a_module_of_the_root_that_nothing_puts_on_the_path_is_external_and_warned_of(tmp_path: Path) -> None:
    root = lay(tmp_path, {"src/train.py": "import lib", "lib.py": "x = 1"})
    found = find(root, root / "src/train.py")
    assert run(root, "src/train.py")[0] == 1
    assert [(each.name, each.line, each.guarded) for each in found.external] == [("lib", 1, False)]
    assert "Python looks in the entry's folder (src) only" in str(found.warnings[0])


EXTERNALS = {
    "import torch": ("torch", False),
    "import torch.nn.functional as F": ("torch", False),
    "from torch import nn": ("torch", False),
    "import tomllib": ("tomllib", False),
    "try:\n    import torch\nexcept ImportError:\n    pass": ("torch", True),
    "try:\n    import torch\nexcept (ValueError, ModuleNotFoundError):\n    pass": ("torch", True),
    "try:\n    import torch\nexcept ValueError:\n    pass": ("torch", False),
    "try:\n    pass\nfinally:\n    import torch": ("torch", False),
    "from contextlib import suppress\nwith suppress(ImportError):\n    import torch": ("torch", True),
    "def f():\n    import torch": ("torch", True),
    "class A:\n    import torch": ("torch", False),
    "if x:\n    import torch": ("torch", True),
    "if __name__ == '__main__':\n    import torch": ("torch", False),
    "import typing as t\nif not t.TYPE_CHECKING:\n    import torch": ("torch", False),
    "def f():\n    import torch\nimport torch": ("torch", False),
    "import importlib\nimportlib.import_module('torch')": ("torch", False),
    "import ns": ("ns", False),
    "from ns import nothing": ("ns", False),
}


@pytest.mark.parametrize("code", EXTERNALS)
def test_what_is_not_local_is_external_and_knows_whether_it_is_guarded(code: str, tmp_path: Path) -> None:
    lay(tmp_path, {"train.py": code, "ns/data.csv": "1"})
    found = find(tmp_path, tmp_path / "train.py")
    assert [(each.name, each.guarded) for each in found.external] == [EXTERNALS[code]]


def test_what_only_type_checkers_import_is_not_external(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import os, sys, json.decoder\nfrom typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import torch"
        },
    )
    assert find(tmp_path, tmp_path / "train.py").external == ()


def test_a_module_that_is_only_reached_by_guarded_imports_guards_its_own(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {"train.py": "import a\ndef f():\n    import plots, b", "plots.py": "import pandas", "b.py": "import torch"},
    )
    lay(tmp_path, {"a.py": "import b"})
    external = {each.name: each.guarded for each in find(tmp_path, tmp_path / "train.py").external}
    assert external == {"pandas": True, "torch": False}


WARNINGS = {
    "import importlib\nimportlib.import_module(name)": "train.py:2: imports a module whose name is computed",
    "from importlib import import_module as im\nim(f'a.{x}')": "train.py:2: imports a module whose name is computed",
    "import pkgutil\npkgutil.iter_modules(['x'])": "train.py:2: imports what it finds in a folder",
    "import runpy\nrunpy.run_path('a.py')": "train.py:2: loads a file by its path",
    "from . import a": "train.py:1: relative import beyond the top-level package",
    "import p.nothing": "train.py:1: p.nothing is not in p; the import fails",
    "import p.m.deeper": "train.py:1: p.m.deeper is not in p; the import fails",
    "import time": "time.py: is never imported: Python's own time comes first",
    "import ext": "ext.cpython-311-x86_64-linux-gnu.so: is compiled code",
    "import broken": "broken.py: does not parse here",
}


@pytest.mark.parametrize("code", WARNINGS)
def test_what_cannot_be_followed_is_warned_of_at_its_line(code: str, tmp_path: Path) -> None:
    lay(tmp_path, {"p/__init__.py": "", "p/m.py": "", "time.py": "", "ext.cpython-311-x86_64-linux-gnu.so": ""})
    lay(tmp_path, {"train.py": code, "broken.py": "x = (\n"})
    [warning] = find(tmp_path, tmp_path / "train.py").warnings
    assert str(warning).startswith(WARNINGS[code])


def test_a_file_that_does_not_parse_here_is_followed_line_by_line(tmp_path: Path) -> None:
    code = "import a\ntype X[T = int] = §\nfrom b import (\n    c,\n    d,\n)\n    import p.q\n"
    lay(tmp_path, {"train.py": code, "a.py": "", "b.py": "", "p/__init__.py": "", "p/q.py": ""})
    assert set(find(tmp_path, tmp_path / "train.py").files) == {"train.py", "a.py", "b.py", "p/__init__.py", "p/q.py"}


def test_large_data_stays_here_and_is_warned_of(tmp_path: Path) -> None:
    root = lay(tmp_path, {"train.py": "import p", "p/__init__.py": "", "p/small.bin": "x"})
    with (root / "p/large.bin").open("wb") as file:
        file.truncate(DATA_LIMIT + 1)
    found = find(root, root / "train.py")
    assert set(found.files) == {"train.py", "p/__init__.py", "p/small.bin"}
    assert str(found.warnings[0]).startswith("p/large.bin: is too large to travel by itself")


def test_a_lot_of_package_data_is_warned_of(tmp_path: Path) -> None:
    root = lay(tmp_path, {"train.py": "import p\nimport p", "p/__init__.py": ""})
    for name in ("a.bin", "b.bin"):
        with (root / "p" / name).open("wb") as file:
            file.truncate(DATA_LIMIT)
    warnings = find(root, root / "train.py").warnings
    assert [str(each) for each in warnings] == [
        "p: its 2 data files (32 MiB) travel with the package; `exclude` what nothing needs"
    ]


def test_a_symlinked_entry_is_warned_of_because_python_leaves_its_folder(tmp_path: Path) -> None:
    lay(tmp_path, {"real/train.py": "import a\nprint(a.x)", "real/a.py": "x = 'real'", "app/a.py": "x = 'app'"})
    (tmp_path / "app/train.py").symlink_to("../real/train.py")
    found = find(tmp_path / "app", tmp_path / "app/train.py")
    assert run(tmp_path / "app", "train.py")[1] == "real\n"
    assert run(copy(found, tmp_path / "empty"), "train.py")[1] == "app\n"
    assert str(found.warnings[0]).startswith("train.py: is a symlink: here Python looks for modules beside its target")


def test_excluded_modules_do_not_travel(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {"train.py": "import a\nfrom p import m", "a.py": "", "p/__init__.py": "", "p/m.py": "", "p/d.txt": ""},
    )
    found = find(tmp_path, tmp_path / "train.py", ("a.py", "p/*.txt"))
    assert set(found.files) == {"train.py", "p/__init__.py", "p/m.py"}
    assert [each.name for each in found.external] == ["a"]


def test_names_are_told_apart_by_case(tmp_path: Path) -> None:
    lay(tmp_path, {"train.py": "import Helper", "helper.py": ""})
    assert [each.name for each in find(tmp_path, tmp_path / "train.py").external] == ["Helper"]


def test_nothing_is_imported_to_find_out(tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    lay(tmp_path, {"train.py": "import a", "a.py": f"open({os.fspath(canary)!r}, 'w')"})
    find(tmp_path, tmp_path / "train.py")
    assert not canary.exists()


MODULES = ["a", "b", "p", "p.m", "p.n", "p.q", "p.q.r", "ns.k", "random", "glob"]
PACKAGES = {"p", "p.q"}


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Packages whose modules import each other in a random acyclic way, each in one of many styles, and print."""
    tree: Tree = {}
    for index, name in enumerate(MODULES):
        body = ""
        for other in draw(st.lists(st.sampled_from(MODULES[:index]), max_size=2, unique=True)) if index else []:
            parent, _, leaf = other.rpartition(".")
            styles = [
                f"import {other}",
                f"import {other} as alias",
                f"from {other} import NAME",
                f"from {other} import *",
            ]
            styles += [f"__import__({other!r})", f"import importlib\nimportlib.import_module({other!r})"]
            styles += [
                f"def late():\n    import {other}\nlate()",
                f"try:\n    import {other}\nexcept ImportError:\n    pass",
            ]
            if parent:
                styles.append(f"from {parent} import {leaf}")
            if name.startswith("p.") and other.startswith("p.") and not other.startswith(name):
                dots = "." * (name.count(".") + (name in PACKAGES))
                inner = other.removeprefix("p.")
                styles += [f"from {dots}{inner} import NAME", f"from {dots} import {inner.split('.')[0]}"]
            body += draw(st.sampled_from(styles)) + "\n"
        body += f"NAME = {name!r}\nprint('loaded', NAME)\n"
        tree[name.replace(".", "/") + ("/__init__.py" if name in PACKAGES else ".py")] = body
    imports = draw(st.lists(st.sampled_from(MODULES), min_size=1, max_size=3, unique=True))
    tree["train.py"] = "".join(f"import {name}\n" for name in imports) + "print('end')\n"
    return tree


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), number=st.integers())
def test_generated_packages_run_in_an_empty_place(
    tree: Tree, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = deploy(tmp_path_factory.mktemp("tree"), tree)
    assert found.external == ()
    assert found.warnings == []
