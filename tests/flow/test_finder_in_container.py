"""What the import finder found, run in a container that has nothing else of the project."""

from __future__ import annotations

import json

import pytest

from tests.support.container import Container
from tests.support.program import Program

FILES = {
    "main.py": """\
import json as standard
import colorsys
from package import exported
from package.inner import relative_import
from spread.part import NAME as namespace_package
import linked

def late():
    from inside import VALUE
    return VALUE

print(standard.dumps([colorsys.LOCAL, exported, relative_import, namespace_package, linked.VALUE, late()]))
""",
    "colorsys.py": 'LOCAL = "a local module named like one of the standard library"\n',
    "package/__init__.py": "from package.inner import exported\n",
    "package/inner.py": """\
from pathlib import Path

from . import sibling

exported = "re-export"
relative_import = sibling.VALUE + " and " + (Path(__file__).parent / "data.txt").read_text()
""",
    "package/sibling.py": 'VALUE = "relative import"\n',
    "package/data.txt": "a data file beside a module",
    "spread/part.py": 'NAME = "namespace package"\n',
    "elsewhere/real.py": 'VALUE = "symlinked module"\n',
    "inside.py": 'VALUE = "import inside a function"\n',
    "not_imported.py": "raise SystemExit('nobody imports this')\n",
}
EXPECTED = [
    "a local module named like one of the standard library",
    "re-export",
    "relative import and a data file beside a module",
    "namespace package",
    "symlinked module",
    "import inside a function",
]


@pytest.mark.usefixtures("lab")
def test_the_pushed_copy_runs_in_an_empty_container(program: Program, container: Container):
    for name, text in FILES.items():
        program.write(name, text)
    (program.folder / "linked.py").symlink_to("elsewhere/real.py")
    pushed = program.ok("push", "--ct", "200", "--app", "found", "main.py", "--json").json
    ran = program.ok("run", "--app", "found", "--follow")
    assert json.loads(ran.out.splitlines()[0]) == EXPECTED
    there = container.run("/bin/sh", "-c", f"cd /opt/ctdeploy/found/releases/{pushed['release']} && find . -type f")
    assert "./linked.py" in there.split()
    assert "not_imported" not in there
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/found")
