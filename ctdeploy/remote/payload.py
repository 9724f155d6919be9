"""Packs the payload modules into one text that Python's own `exec` can start in a container."""

from __future__ import annotations

import base64
import zlib
from functools import cache
from importlib import resources

PACKAGE = "ctdeploy.remote.payloads"

_LOADER = """
import sys, types
def start(name):
    import importlib
    module = importlib.import_module(name)
    return module.main(PAYLOAD) if name.endswith('session') else module.main()
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in SOURCES or name in PACKAGES:
            from importlib.machinery import ModuleSpec
            return ModuleSpec(name, Finder, is_package=name in PACKAGES)
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        name = module.__name__
        if name in SOURCES:
            exec(compile(SOURCES[name], name, 'exec', dont_inherit=True), module.__dict__)
sys.meta_path.insert(0, Finder)
"""


@cache
def modules() -> bytes:
    """The modules and their loader; `start(NAME)` at its end runs one of them."""
    sources = {}
    for file in resources.files(PACKAGE).iterdir():
        if file.name.endswith(".py"):
            name = PACKAGE if file.name == "__init__.py" else f"{PACKAGE}.{file.name[:-3]}"
            sources[name] = file.read_text(encoding="utf-8")
    packages = ["ctdeploy", "ctdeploy.remote", PACKAGE]
    return f"SOURCES={dict(sorted(sources.items()))!r}\nPACKAGES={packages!r}\n{_LOADER}".encode()


def session() -> bytes:
    """What the bootstrap in the container executes: `<length>\\n<source>`."""
    # PAYLOAD is this text without its last line: the session hands it on to the supervisor that it starts.
    packed = base64.b85encode(zlib.compress(modules(), 9))
    source = (
        b"PAYLOAD=s[:s.rindex(b'\\nstart(')]\n"
        b"import base64,zlib\n"
        b"exec(zlib.decompress(base64.b85decode(b'" + packed + b"')))"
        b"\nstart('ctdeploy.remote.payloads.session')\n"
    )
    return b"%d\n" % len(source) + source
