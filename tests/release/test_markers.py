"""Markers are searched in code; comments, docstrings and idle strings do not count."""

from __future__ import annotations

import ast
import json
import subprocess
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctdeploy.remote import payload
from ctdeploy.remote.payloads import calls, markers
from ctdeploy.remote.payloads.markers import Forbidden, Result, glob_match, read_pattern, search, split_glob
from tests.support.pythons import pythons

MARKER = "cudagraphs=False"
REDUCE = 'call:torch.compile(mode="reduce-overhead")'


def lines(code: str, marker: str = MARKER, name: str = "a.py") -> list[int]:
    return [hit.line for hit in search({name: textwrap.dedent(code).encode()}, [marker]).found[marker]]


def forbid(code: str, *patterns: str | Forbidden) -> Result:
    return search({"a.py": textwrap.dedent(code).encode()}, [], patterns or [REDUCE])


def test_the_print_of_the_story_is_found_with_its_line_and_text() -> None:
    code = 'x = 1\nprint(f"  {self.name} on {dev}: compiling forward (cudagraphs=False)", flush=True)\n'
    [hit] = search({"t.py": code.encode()}, [MARKER]).found[MARKER]
    assert (hit.path, hit.line) == ("t.py", 2)
    assert hit.text == 'print(f"  {self.name} on {dev}: compiling forward (cudagraphs=False)", flush=True)'


@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("x = 1  # cudagraphs=False\n", "in a comment"),
        ('"""Uses cudagraphs=False."""\n', "in a docstring"),
        ('def f():\n    """é\n    cudagraphs=False"""\n', "in a docstring"),
        ('x = 1\n"cudagraphs=False"\n', "in a string that nothing uses"),
        ('x = 1; f"cudagraphs=False"; y = 2\n', "in a string that nothing uses"),
        ('x = 1\n("one "  \n "cudagraphs=False")\n', "in a string that nothing uses"),
        ('class A:\n    b"cudagraphs=False"\n', "in a docstring"),
        ("#!/usr/bin/env python  cudagraphs=False\n", "in a comment"),
    ],
)
def test_text_outside_of_code_is_no_hit_but_is_said(code: str, where: str) -> None:
    result = search({"a.py": code.encode()}, [MARKER])
    assert result.missing == [MARKER]
    assert [(note.why, note.line) for note in result.seen] == [
        (where, 1 + code[: code.index(MARKER)].count("\n")),
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("f(cudagraphs=False)", [1]),
        ("f(cudagraphs = False)", []),
        ("x = 'cudagraphs=False'", [1]),
        ("x = ('a'\n     'cudagraphs=False')  # c", [2]),
        ("f('é', '# no comment', cudagraphs=False)", [1]),
        ("x = '''\n# cudagraphs=False\n'''", [2]),
        ("x = f'''{y}\ncudagraphs=False # {z}\n'''", [2]),
        ("x = 1 # c\r\nf(cudagraphs=False)\r\n", [2]),
        ("x = 1 # c\rf(cudagraphs=False)\r", [2]),
        ("x = 1\n\x0c\nf(cudagraphs=False)", [3]),
        ("f'{g(cudagraphs=False)}'", [1]),
        ("'é'; f(cudagraphs=False); 'é'", [1]),
        ("'éééééééééé';f(cudagraphs=False)", [1]),
        ("f(cudagraphs=False, # cudagraphs=False\n cudagraphs=False)", [1, 2]),
        ("", []),
    ],
)
def test_plain_text_counts_where_code_stands(code: str, expected: list[int]) -> None:
    assert lines(code) == expected


def test_blanking_never_makes_up_a_match_out_of_spaces() -> None:
    assert lines("x = 1 #      \ny = 2\n", "1        ") == []
    assert lines("x = ('a', #    \n 'b')\n", ", ") == [1]
    assert lines('("doc")\n', "(     )") == []


def test_other_files_are_searched_as_a_whole() -> None:
    files = {"run.sh": b"# cudagraphs=False\n", "recipe.toml": b"\xff\ncudagraphs=False\n", "x.py": b""}
    assert [(hit.path, hit.line) for hit in search(files, [MARKER]).found[MARKER]] == [
        ("recipe.toml", 2),
        ("run.sh", 1),
    ]


def test_python_is_known_by_name_by_shebang_and_by_the_caller() -> None:
    comment = b"# cudagraphs=False\n"
    assert search({"a.pyw": comment}, [MARKER]).missing
    assert search({"tool": b"#!/usr/bin/env python3\n" + comment}, [MARKER]).missing
    assert search({"tool": comment}, [MARKER], python=["tool"]).missing
    assert not search({"tool": comment}, [MARKER]).missing


@pytest.mark.parametrize(
    "data",
    [
        "\ufeffé = 1  # cudagraphs=False\nf('é', cudagraphs=False)\n".encode(),
        "# -*- coding: latin-1 -*-\nf('é', cudagraphs=False)  # é cudagraphs=False\n".encode("latin-1"),
        "# vim: set fileencoding=cp1252 :\nf('€', cudagraphs=False)\n".encode("cp1252"),
    ],
)
def test_encodings_are_read_as_python_reads_them(data: bytes) -> None:
    result = search({"a.py": data}, [MARKER])
    assert [hit.line for hit in result.found[MARKER]] == [2]
    assert result.unparsed == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"x = 1\nf(cudagraphs=False\n", 2),
        (b"x = 1\n\xff = f(cudagraphs=False)\n", 2),
        (b"# -*- coding: no-such -*-\nf(cudagraphs=False)\n", 1),
        (b"x = 1\nf(cudagraphs=False)\0\n", 1),
        (b"if x:\n\tf(cudagraphs=False)\n        y\n", 3),
    ],
)
def test_a_file_that_does_not_parse_is_reported_and_its_lines_are_unsure(data: bytes, line: int) -> None:
    result = search({"a.py": data}, [MARKER], [MARKER, "call:f(cudagraphs=False)"])
    assert result.missing == [MARKER]
    assert result.forbidden == []
    assert [each.line for each in result.unparsed] == [line]
    assert {note.pattern for note in result.unsure} == {MARKER, "call:f(cudagraphs=False)"}
    assert all("does not parse" in note.why for note in result.unsure)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('import torch\ntorch.compile(f, mode="reduce-overhead")', [2]),
        ("import torch as t\ng = t.compile(\n    f,\n    dynamic=False,\n    mode='reduce-overhead',\n)", [2]),
        ("from torch import compile as c\nc(f, mode='reduce-' 'overhead')", [2]),
        ("import torch\n@torch.compile(mode='reduce-overhead')\ndef f(): ...", [2]),
        ("import torch\nclass A:\n    @torch.compile(mode='reduce-overhead')\n    def f(self): ...", [3]),
        ("import torch._dynamo\ntorch.compile(mode='reduce-overhead')", [2]),
        ("def f():\n    import torch as tt\n    return tt.compile(g, mode='reduce-overhead')", [3]),
        ("import torch\nc = torch.compile\nd = c\nd(f, mode='reduce-overhead')", [4]),
        ("import torch\n(torch.compile if x else g)(f, mode='reduce-overhead')", [2]),
        ("import torch\ntorch.compile(f, **{'mode': 'reduce-overhead'})", [2]),
        ("import torch, functools\np = functools.partial(torch.compile, mode='reduce-overhead')", [2]),
        ("import torch\nx = f'{torch.compile(f, mode=\"reduce-overhead\")}'", [2]),
        ("import torch\ntorch.compile(f, mode='default')", []),
        ("import torch\ntorch.compile(f, mode=None, options={'a': 1})", []),
        ("import torch\ntorch.compile(f)", []),
        ("import torch\n# torch.compile(f, mode='reduce-overhead')\n'torch.compile(f, mode=\"reduce-overhead\")'", []),
        ("import jax\njax.compile(f, mode='reduce-overhead')", []),
        ("compile(f, mode='reduce-overhead')", []),
        ("from other import torch\ntorch.compile(f, mode='reduce-overhead')", []),
        ("import torch\ntorch.compile(f, mode='default' if x else 'max-autotune')", []),
    ],
)
def test_forbidden_calls_are_found_however_they_are_written(code: str, expected: list[int]) -> None:
    result = forbid(code)
    assert [hit.line for hit in result.forbidden] == expected
    assert result.undecidable == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import torch\ntorch.compile(f, mode=MODE)", "mode is not a literal"),
        ("import torch\ntorch.compile(f, mode='default' if x else 'reduce-overhead')", "mode is not a literal"),
        ("import torch\ntorch.compile(f, **kw)", "mode may come from **"),
        ("import torch\ntorch.compile(f, **{name: 'reduce-overhead'})", "mode may come from **"),
        ("import torch\ntorch.compile(f, options=options)", "options is not a literal"),
        ("from torch import *\ncompile(f, mode='reduce-overhead')", "torch.compile may come from an import of *"),
    ],
)
def test_a_call_that_cannot_be_read_is_undecidable_at_its_line(code: str, why: str) -> None:
    result = forbid(code)
    assert result.forbidden == []
    assert [(note.path, note.line, note.why) for note in result.undecidable] == [("a.py", 2, why)]


def test_an_undecidable_call_does_not_fulfil_a_marker() -> None:
    result = search({"a.py": b"import torch\ntorch.compile(f, dynamic=x)"}, ["call:torch.compile(dynamic=False)"])
    assert result.missing == ["call:torch.compile(dynamic=False)"]
    assert [note.why for note in result.undecidable] == ["dynamic is not a literal"]


@pytest.mark.parametrize(
    ("pattern", "call", "expected"),
    [
        ("call:g", "g()", True),
        ("call:g()", "g(1, a=2)", True),
        ("call:a.b.g(1)", "a.b.g(1, 2)", True),
        ("call:g(1)", "g(True)", False),
        ("call:g(1)", "g()", False),
        ("call:g(x=...)", "g(x=anything())", True),
        ("call:g(x=...)", "g(y=1)", False),
        ("call:g(x=-1.5)", "g(x=-1.5)", True),
        ("call:g(o={'a': True})", "g(o={'b': 2, 'a': True})", True),
        ("call:g(o={'a': True})", "g(o={'a': False, **z})", False),
        ("call:g(o=[1, 2])", "g(o=[1, 2])", True),
        ("call:g(x=False)", "g(x=0)", False),
        ("call:g", "x.g()", False),
        ("call:g", "\U0001d420()", True),
    ],
)
def test_call_patterns(pattern: str, call: str, expected: bool) -> None:
    assert bool(forbid(call, pattern).forbidden) is expected


def test_a_bare_decorator_is_a_call_without_keywords() -> None:
    code = "import torch\n@torch.compile\ndef f(): ..."
    assert [hit.line for hit in forbid(code, "call:torch.compile").forbidden] == [2]
    assert forbid(code, REDUCE).forbidden == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "empty"),
        (" \t", "empty"),
        ("a\0b", "NUL"),
        ("call:", "not a Python call"),
        ("call:torch.compile(mode=", "not a Python call"),
        ("call:torch.compile(mode=MODE)", "literals"),
        ("call:f()(x=1)", "dotted name"),
        ("call:f(**{'a': 1})", "cannot be asked"),
    ],
)
def test_a_pattern_that_cannot_be_read_says_why(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        search({}, [pattern])


@pytest.mark.parametrize(
    ("pattern", "text", "glob"),
    [
        ("a=1@*.py", "a=1", "*.py"),
        ("a=1@dflash/compile.py", "a=1", "dflash/compile.py"),
        ("a=1@train.py", "a=1", "train.py"),
        ("@torch.compile", "@torch.compile", ""),
        ("@torch.compile@*.py", "@torch.compile", "*.py"),
        ("x = a @ b", "x = a @ b", ""),
        ("x = a @ b.T", "x = a @ b.T", ""),
        ("me@host.org@", "me@host.org", ""),
        ("f('a@b.py')", "f('a@b.py')", ""),
        ('call:f(x="@")@**/a.py', 'call:f(x="@")', "**/a.py"),
    ],
)
def test_a_glob_follows_the_last_at_sign(pattern: str, text: str, glob: str) -> None:
    assert split_glob(pattern) == (text, glob)


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "x/y/a.py", True),
        ("x/*.py", "x/a.py", True),
        ("x/*.py", "x/y/a.py", False),
        ("x/**/*.py", "x/a.py", True),
        ("x/**/*.py", "x/y/z/a.py", True),
        ("**/a.py", "a.py", True),
        ("tests", "tests/deep/a.py", True),
        ("tests/", "x/tests/a.py", True),
        ("x/tests/", "x/tests/a.py", True),
        ("test", "tests/a.py", False),
        ("a.py", "b/xa.py", False),
        ("a?.py", "a/.py", False),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("./x/a.py", "x/a.py", True),
        ("/a.py", "x/a.py", False),
        ("a.py", "aXpy", False),
        ("(a+b).py", "(a+b).py", True),
    ],
)
def test_globs(glob: str, path: str, expected: bool) -> None:
    assert glob_match(glob, path) is expected


def test_a_glob_narrows_and_except_spares() -> None:
    files = {"compile.py": b"import torch\ntorch.compile(mode='reduce-overhead')", "a.py": b"f(cudagraphs=False)"}
    assert search(files, [MARKER + "@compile.py"]).missing == [MARKER + "@compile.py"]
    assert not search(files, [MARKER + "@a.py"]).missing
    assert search(files, [], [Forbidden(REDUCE, ("compile.py",))]).forbidden == []
    assert search(files, [], [{"pattern": REDUCE, "except": ["a.py"]}]).forbidden[0].path == "compile.py"


def test_a_glob_that_fits_no_file_is_told() -> None:
    result = search({"a.py": b""}, ["x@*.pyy"], [Forbidden("y", ("b.py",)), "z@b/*"])
    assert result.unmatched == ["x@*.pyy: *.pyy fits no file", "y: b.py fits no file", "z@b/*: b/* fits no file"]


def test_hits_never_carry_terminal_escapes_or_endless_lines() -> None:
    code = "x = 'cudagraphs=False \x1b[2J' " + "+ 'y'" * 400
    [hit] = search({"a.py": code.encode()}, [MARKER]).found[MARKER]
    assert "\x1b" not in hit.text
    assert len(hit.text) <= markers.TEXT_LIMIT + 3


def test_the_result_goes_through_json() -> None:
    result = search({"a.py": b"f(cudagraphs=False)\nbroken("}, [MARKER, "z"], ["q@b.py"])
    plain = json.loads(json.dumps(result.as_dict()))
    assert plain["missing"] == [MARKER, "z"]
    assert plain["unsure"][0]["line"] == 1
    assert plain["unmatched"]
    assert set(plain) == set(Result._fields)


@pytest.mark.parametrize("module", [calls, markers])
def test_the_modules_are_for_python_3_9_and_need_nothing_else(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 9))
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    known = {"__future__", "ast", "bisect", "io", "re", "tokenize", "typing", "unicodedata", "warnings"}
    assert imported - {calls.__name__} <= known


def in_another_python(python: str) -> dict[str, Any]:
    """Search CORPUS as the container does: from the text that is sent there."""
    program = payload.modules().decode()
    program += "\nimport json\nfrom ctdeploy.remote.payloads.markers import search\n"
    program += "files, patterns = json.loads(sys.argv[1])\n"
    program += "result = search({k: v.encode() for k, v in files.items()}, patterns, [patterns[1]])\n"
    program += "print(json.dumps(result._replace(unparsed=[], unsure=[]).as_dict()))"
    argv = [python, "-I", "-S", "-", json.dumps([CORPUS, PATTERNS])]
    done = subprocess.run(argv, input=program, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


CORPUS = {
    "text.py": """
'''doc cudagraphs=False'''
print(f'{x!r:>{w}} cudagraphs=False {y}')  # cudagraphs=False
x = f'''{y}
# cudagraphs=False
'''
""",
    "call.py": """
from torch import compile as c
@c(mode='reduce-overhead')
def f():
    'cudagraphs=False'
c(f, **kw)
""",
    "é.py": """
é = 'é'; 'cudagraphs=False'; f(é, cudagraphs=False)
x = f'{c("a")}' 'cudagraphs=False'
""",
    "broken.py": "f(cudagraphs=False",
    "data.toml": "# cudagraphs=False",
}
PATTERNS = [MARKER, REDUCE, MARKER + "@call.py"]


@pytest.mark.parametrize("python", pythons())
def test_other_interpreters_find_the_same(python: str) -> None:
    """The container's interpreter searches with its own tokenizer, which differs most between 3.11 and 3.12."""
    ours = search({path: text.encode() for path, text in CORPUS.items()}, PATTERNS, [REDUCE])
    expected = json.loads(json.dumps(ours._replace(unparsed=[], unsure=[]).as_dict()))
    assert in_another_python(python) == expected
    assert [(hit.path, hit.line) for hit in ours.found[MARKER]] == [
        ("data.toml", 1),
        ("text.py", 3),
        ("text.py", 5),
        ("é.py", 2),
        ("é.py", 3),
    ]
    assert [(hit.path, hit.line) for hit in ours.forbidden] == [("call.py", 3)]
    assert [(note.path, note.line) for note in ours.undecidable] == [("call.py", 6)]


# Statements by whether the marker @@ in them is code. Each is one or more whole lines at any indentation.
IN_CODE = [
    "f(@@)",
    "x = '@@'",
    "x = f'{y} @@'",
    "x = ('a',\n{i}     '@@')",
    "x = '''\n@@ # z\n'''",
    "assert f(@@), 'é' # é",
]
IDLE = [
    "pass  # @@",
    "'@@'",
    "'''é\n@@ {{'''",
    "# é @@",
    "x = 'é'  # '@@'",
    "('a' # @@\n{i} '@@')",
    "b'@@'; pass",
    "f'@@'",
]
IDLE += ["x = [1, # @@\n{i}     2]", "pass; '@@'"]


@given(st.lists(st.tuples(st.sampled_from(IN_CODE + IDLE), st.integers(0, 2)), max_size=12))
def test_every_hit_is_code_and_all_code_is_hit(statements: list[tuple[str, int]]) -> None:
    code, expected, depth = "", [], 0
    for template, wish in statements:
        wish = min(wish, depth + 1)
        if wish > depth:
            code += "    " * depth + ("def f():\n" if wish == 1 else "if é:\n")
            if template == "# é @@":
                code += "    " * wish + "pass\n"
        depth = wish
        text = "    " * depth + template.replace("{i}", "    " * depth).replace("{{", "{") + "\n"
        if template in IN_CODE:
            expected.append(code.count("\n") + text[: text.index("@@")].count("\n") + 1)
        code += text.replace("@@", MARKER)
    result = search({"a.py": code.encode()}, [MARKER])
    assert result.unparsed == []
    assert [hit.line for hit in result.found[MARKER]] == expected


@given(st.text(max_size=60), st.text(min_size=1, max_size=8))
def test_any_text_and_any_pattern_give_an_answer_or_a_value_error(code: str, pattern: str) -> None:
    try:
        read_pattern(pattern)
    except ValueError:
        return
    result = search(
        {"a.py": code.encode("utf-8", "surrogatepass"), "b": code.encode("utf-8", "replace")}, [pattern], [pattern]
    )
    json.dumps(result.as_dict())
