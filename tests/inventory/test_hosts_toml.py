"""hosts.toml is read into typed values; what is wrong in it is told with file, line, key and way out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctdeploy.errors import ConfigError, ExitCode
from ctdeploy.inventory import show
from ctdeploy.inventory.find import Located
from ctdeploy.inventory.inventory import Inventory
from ctdeploy.inventory.parse import parse
from ctdeploy.inventory.toml_lines import key_lines
from ctdeploy.remote.payloads.markers import Forbidden

REPO = Path(__file__).resolve().parents[2]

EVERYTHING = """
[defaults]
ct = "lab"
app = "dflash_train"

[hosts.pve1]                     # the host `lab` needs no table
address = "pve1.example.net"     # or an alias of ~/.ssh/config
port = 2222
user = "deploy"
identity = "~/.ssh/id"
jump = "me@gate"
staging = "/var/tmp/stage"
become = "sudo"                  # sudo -n /usr/sbin/pct
[hosts.pve1.api]                 # optional
url = "https://pve1.example.net:8006"
token_id = "deploy@pve!ctdeploy"
token_env = "PVE1_TOKEN"         # secrets are named, never written here
fingerprint = "AB:CD:…"          # or ca_file

[containers.lab]
host = "lab"
ct = 200
python = "/opt/venv/bin/python"

[containers.train]
host = "pve1"
ct = 200
tags = ["gpu"]
python = "/opt/venv/bin/python"
run_as = "trainer"
env = { HF_HOME = "/data/hf" }
dest = "/srv/apps/"

[apps.dflash_train]
entry = "trainer/dflash_train.py"
root = "trainer"
include = ["trainer/recipes/*.toml", "trainer/data/*.jsonl"]
exclude = ["trainer/tests"]
requires_python = ">=3.11"
requirements = "trainer/requirements.txt"
markers = ["cudagraphs=False"]
forbidden = ['call:torch.compile(mode="reduce-overhead")', { pattern = "x", except = ["a.py"] }]
markers_at_start = [{ pattern = 'compiling forward \\(cudagraphs=(False|step)\\)', count = 2 }]
ready = "step 1 done"
args = ["--config", "recipes/demo.toml"]
env = { A = "1" }
keep = 3
"""


def inventory(text: str, base: Path = Path("/base")) -> Inventory:
    return Inventory(parse(text.encode(), "hosts.toml"), Located(base / "hosts.toml", base, "test"))


def test_every_key_of_the_contract_is_accepted_and_typed() -> None:
    found = inventory(EVERYTHING)
    host = found.hosts["pve1"]
    assert (host.address, host.port, host.user, host.become) == ("pve1.example.net", 2222, "deploy", "sudo")
    assert (host.identity, host.jump, host.staging) == (Path("~/.ssh/id").expanduser(), "me@gate", "/var/tmp/stage")
    assert host.api is not None
    assert (host.api.token_env, host.api.fingerprint) == ("PVE1_TOKEN", "AB:CD:…")
    train = found.containers["train"]
    assert (train.ct, train.host, train.tags, train.run_as) == (200, host, ("gpu",), "trainer")
    assert (train.env, train.dest, train.address) == ({"HF_HOME": "/data/hf"}, "/srv/apps", "200@pve1")
    app = found.apps["dflash_train"]
    assert (app.entry, app.root) == (Path("/base/trainer/dflash_train.py"), Path("/base/trainer"))
    assert app.forbidden == (Forbidden('call:torch.compile(mode="reduce-overhead")'), Forbidden("x", ("a.py",)))
    assert (app.markers_at_start[0].count, app.ready, app.keep) == (2, "step 1 done", 3)
    assert app.requirements == Path("/base/trainer/requirements.txt")
    assert found.defaults.ct == "lab"


def test_defaults_are_filled_in() -> None:
    found = inventory('[hosts.h]\naddress = "h"\n[containers.c]\nhost = "h"\nct = 100\n[apps.a]\nentry = "x/a.py"\n')
    container, app = found.containers["c"], found.apps["a"]
    assert (container.python, container.run_as, container.dest) == ("/usr/bin/python3", "root", "/opt/ctdeploy")
    assert (app.root, app.keep, app.ready, app.args) == (Path("/base/x"), 5, None, ())
    assert found.hosts["h"].port is None


def test_the_repository_s_own_file_and_the_first_file_are_valid() -> None:
    own = Inventory(parse((REPO / "hosts.toml").read_bytes(), "hosts.toml"), Located(REPO, REPO, ""))
    assert own.container().label == "lab"
    assert own.app().name == "dflash_train"
    assert inventory(show.first_hosts_toml()).container().ct == 200
    first = inventory(show.first_hosts_toml('src/my "script".v2.py'))
    assert first.app().entry == Path('/base/src/my "script".v2.py')
    assert first.app().name == "my-script-v2"


ERRORS: dict[str, tuple[str, str]] = {
    "unknown key": (
        "[containers.train]\nhost = 'lab'\nct = 200\nhots = 'x'\n",
        'hosts.toml:4: containers.train.hots: unknown key; did you mean "host"? (known here: host, ct, tags, ',
    ),
    "unknown table": ("\n[container.x]\nct = 1", 'hosts.toml:2: container: unknown key; did you mean "containers"?'),
    "unknown key of a list's table": (
        "[apps.a]\nentry = 'a.py'\nforbidden = [\n  'x',\n  { pattern = 'y', excpet = [] },\n]",
        'hosts.toml:5: apps.a.forbidden[1].excpet: unknown key; did you mean "except"? (known here: pattern, except)',
    ),
    "the name of our own field": (
        "[apps.a]\nentry = 'a.py'\nforbidden = [{ pattern = 'y', excepts = [] }]",
        'hosts.toml:3: apps.a.forbidden[0].excepts: unknown key; did you mean "except"?',
    ),
    "unknown key of the api": (
        "[hosts.h]\naddress='h'\napi.url='https://h'\napi.token_id='t'\napi.token_env='T'\napi.token='s3cret'",
        'hosts.toml:6: hosts.h.api.token: unknown key; did you mean "token_id"?',
    ),
    "wrong type": (
        "[containers.c]\nhost='lab'\nct = '200'",
        "3: containers.c.ct: expected a whole number, found a text",
    ),
    "bool is no number": ("[containers.c]\nhost='lab'\nct = true", "expected a whole number, found true or false"),
    "text for a list": (
        "[apps.a]\nentry='a'\nargs = '--x'",
        "3: apps.a.args: expected a list in square brackets, found a text",
    ),
    "number in a list": (
        "[apps.a]\nentry='a'\nargs = ['--x',\n 1]",
        "4: apps.a.args[1]: expected a text in quotes, found a whole",
    ),
    "text for a table": ("containers = 'x'", "1: containers: expected a table, found a text"),
    "text for a named table": ("[containers]\nc = 'x'", "2: containers.c: expected a table, found a text"),
    "a date": ("[apps.a]\nentry = 2020-01-01", "2: apps.a.entry: expected a text in quotes, found a date or time"),
    "missing": ("[containers.c]\nhost='lab'\n", "1: containers.c.ct: is required"),
    "missing, inline": ("containers.c = {host='lab'}", "1: containers.c.ct: is required"),
    "ct too small": ("[containers.c]\nhost='lab'\nct = 99", "3: containers.c.ct: expected 100 or more, found 99"),
    "ct too large": ("[containers.c]\nhost='lab'\nct = 1000000000", "expected 999999999 or less, found 1000000000"),
    "port": ("[hosts.h]\naddress='h'\nport = 0", "3: hosts.h.port: expected 1 or more, found 0"),
    "become": ("[hosts.h]\naddress='h'\nbecome = 'doas'", "3: hosts.h.become: expected 'sudo'"),
    "dangling host": (
        "[hosts.pve1]\naddress='h'\n[containers.c]\nct=100\nhost = 'pve2'",
        '5: containers.c.host: there is no host "pve2"; did you mean "pve1"? (known: lab, pve1)',
    ),
    "dangling default container": (
        "[defaults]\nct = 'trian'\n[containers.train]\nhost='lab'\nct=100",
        '2: defaults.ct: there is no container "trian"; did you mean "train"? (known: train)',
    ),
    "dangling default id": ("[defaults]\nct = 300", "2: defaults.ct: there is no container with the id 300"),
    "dangling default host": (
        "[defaults]\nct = '300@lob'",
        '2: defaults.ct: there is no host "lob"; did you mean "lab"?',
    ),
    "dangling default app": ("[defaults]\napp = 'x'", '2: defaults.app: there is no app "x" (known: none)'),
    "ambiguous default id": (
        "[defaults]\nct=100\n[hosts.h]\naddress='h'\n[containers]\na={host='lab',ct=100}\nb={host='h',ct=100}",
        "2: defaults.ct: 100 is on several hosts: 100@lab, 100@h",
    ),
    "duplicate container": (
        "[containers]\na = { host='lab', ct=100 }\nb = { host='lab', ct=100 }",
        "3: containers.b.ct: 100@lab is already containers.a, at line 2",
    ),
    "reserved host": ("\n[hosts.lab]\naddress='h'", '2: hosts.lab: the host "lab" is built in'),
    "container named like an id": (
        "[containers.200]\nhost='lab'\nct=100",
        "1: containers.200: expected a name of letters",
    ),
    "app that is no folder name": ("[apps.'../x']\nentry='a'", '1: apps."../x": expected a name of letters'),
    "relative interpreter": (
        "[containers.c]\nhost='lab'\nct=100\npython='python3'",
        "4: containers.c.python: expected an absolute",
    ),
    "dest above": (
        "[containers.c]\nhost='lab'\nct=100\ndest='/opt/../etc'",
        "4: containers.c.dest: expected an absolute path",
    ),
    "dest is the root": (
        "[containers.c]\nhost='lab'\nct=100\ndest='//'",
        "4: containers.c.dest: expected an absolute path",
    ),
    "env name": (
        "[apps.a]\nentry='a'\nenv = { 'A-B' = 'x' }",
        "3: apps.a.env: expected names of letters, digits and '_'",
    ),
    "env of ours": (
        "[apps.a]\nentry='a'\nenv = { CTDEPLOY_RUN_ID = 'x' }",
        "CTDEPLOY_RUN_ID is set by ctdeploy itself",
    ),
    "env number": (
        "[apps.a]\nentry='a'\n[apps.a.env]\nN = 1",
        "4: apps.a.env.N: expected a text in quotes, found a whole number",
    ),
    "marker": (
        "[apps.a]\nentry='a'\nmarkers = [\n'a',\n'call:f(']",
        "5: apps.a.markers[1]: 'call:f(': not a Python call",
    ),
    "forbidden": (
        "[apps.a]\nentry='a'\nforbidden = ['']",
        "3: apps.a.forbidden[0]: a marker must not be empty",
    ),
    "regex": ("[apps.a]\nentry='a'\nready = '('", "3: apps.a.ready: expected a regular expression: missing )"),
    "requires_python": (
        "[apps.a]\nentry='a'\nrequires_python = '3.11'",
        "3: apps.a.requires_python: expected a version clause",
    ),
    "keep": ("[apps.a]\nentry='a'\nkeep = 0", "3: apps.a.keep: expected 1 or more, found 0"),
    "api by http": (
        "[hosts.h]\naddress='h'\n[hosts.h.api]\nurl='http://h'\ntoken_id='t'\ntoken_env='T'",
        "4: hosts.h.api.url: expected https://NAME:PORT",
    ),
    "api checked twice": (
        "[hosts.h]\naddress='h'\n[hosts.h.api]\nurl='https://h'\ntoken_id='t'\ntoken_env='T'\nfingerprint='a'\nca_file='b'",
        "3: hosts.h.api: expected fingerprint or ca_file, found both",
    ),
    "empty text": ("[hosts.h]\naddress=' '", "2: hosts.h.address: expected a text that is not empty"),
    "control character": (
        '[hosts.h]\naddress="a\\nb"',
        "2: hosts.h.address: expected a text without control characters",
    ),
    "syntax": ("[defaults]\nct = \n", "hosts.toml:2:6: Invalid value"),
    "syntax at the end": ("[defaults]\nct = [1,\n", "hosts.toml:2"),
    "double key": ("[apps.a]\nentry='a'\nentry='b'", "hosts.toml:3:"),
}


def error(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text if isinstance(text, bytes) else text.encode(), "hosts.toml")
    assert caught.value.code == ExitCode.CONFIG
    assert caught.value.next
    return caught.value


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_gives_file_line_key_and_what_was_expected(name: str) -> None:
    text, expected = ERRORS[name]
    message = error(text).message
    assert message.startswith("hosts.toml:")
    assert expected in message
    assert "\n" not in message


def test_all_errors_are_told_in_the_order_of_their_lines() -> None:
    message = error("[apps.a]\nentry = 1\nkeep = 'x'\n[containers.c]\nhost = 'lab'\n").message
    assert [int(line.split(":")[1]) for line in message.splitlines()] == [2, 3, 4]


def test_many_errors_are_cut() -> None:
    lines = error("[apps.a]\nentry='a'\n" + "".join(f"k{n} = 1\n" for n in range(30))).message.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "and 20 more errors"


def test_a_value_that_may_be_a_secret_is_not_repeated() -> None:
    text = "[hosts.h]\naddress='h'\npassword='hunter2'\nport='hunter2'\nuser=['hunter2']\n"
    assert "hunter2" not in error(text).message


def test_bytes_that_are_not_utf_8_give_their_line_and_a_byte_order_mark_is_dropped() -> None:
    assert error(b"[defaults]\n# \xff\n").message == "hosts.toml:2: is not UTF-8 (byte 0xff)"
    assert parse(b"\xef\xbb\xbf" + EVERYTHING.encode(), "h").tables.defaults.app == "dflash_train"


def test_crlf_lines_are_counted_once() -> None:
    assert error(b"[defaults]\r\n\r\napp = 2\r\n").message.startswith("hosts.toml:3: defaults.app: ")


def test_config_show_tells_the_origin_of_each_value() -> None:
    settings = {each.key: each for each in show.effective(inventory(EVERYTHING))}
    lines = EVERYTHING.splitlines()
    assert settings["containers.train.run_as"].value == "trainer"
    assert settings["hosts.pve1.api.token_env"].value == "PVE1_TOKEN"
    for each in settings.values():
        if each.origin != "default":
            number = int(each.origin.removeprefix("hosts.toml:"))
            assert each.key.rsplit(".", 1)[1] in lines[number - 1]
    assert settings["containers.lab.run_as"] == ("containers.lab.run_as", "root", "default")
    built_in = {each.key: each for each in show.effective(inventory(""))}
    assert built_in["containers.lab.ct"] == ("containers.lab.ct", 200, "built in")


def test_the_key_tables_in_the_docs_are_those_of_the_models() -> None:
    page = (REPO / "docs/hosts.md").read_text()
    assert show.with_reference(page) == page, "run: python -m ctdeploy.inventory.show docs/hosts.md"
    for key in ("`fingerprint`", "`requires_python`", "`except`"):
        assert key in page


def test_every_key_has_a_description() -> None:
    assert not re.search(r"\|\s+\|$", show.reference(), re.MULTILINE)


# Lines of keys

TRICKY = r'''
a.b."c.d" = 1
'lit"eral' = { x = [ 1, { y = "]}#" } ], z = 2 } # comment = 3
text = """
[no.table]
key = "no" \""" """""
raw = \'\'\'
x = 1
\'\'\'\'
[[list]]
n = 1
[list.sub]
m = 1
[[list]]
n = [
  # comment, ]
  "a", 'b',

  """c
  """, 1979-05-27T07:32:00Z,
]
[ "quoted \u0041" . e ]
f = inf
[a.z]
'''.replace("\\'", "'")


def test_lines_of_keys_in_every_shape() -> None:
    tomllib.loads(TRICKY)
    lines = key_lines(TRICKY)
    assert lines["a", "b", "c.d"] == 2
    assert lines['lit"eral', "x", 1, "y"] == 3
    assert lines['lit"eral', "z"] == 3
    assert ("no", "table") not in lines
    assert lines["text",] == 4
    assert lines["raw",] == 7
    assert lines["list", 0] == 10
    assert lines["list", 0, "sub", "m"] == 13
    assert [lines["list", 1, "n", n] for n in range(4)] == [17, 17, 19, 20]
    assert lines["quoted A", "e", "f"] == 23
    assert lines["a", "z"] == 24


def paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return {path} - {()} | {each for key, item in inner for each in paths(item, (*path, key))}


KEYS = st.sampled_from(["a", "b-1", '"q.[x]"', "'l#'", '"\\"é"', '"\\u0041"'])
SCALARS = st.sampled_from(
    [
        "1",
        "-1.5e3",
        "true",
        '"x"',
        "'y'",
        '"]#\\""',
        "'}'",
        '"""a\n#b\n"""',
        "'''c\n]'''",
        '""""q""""',
        "2020-01-01 10:00:00",
    ]
)
ONE_LINE = SCALARS.filter(lambda text: "\n" not in text)


def listed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    gap = st.sampled_from([" ", "\n", " # ] }\n", ""])
    return st.lists(st.tuples(gap, inner), max_size=3).map(lambda xs: "[" + "".join(f"{g}{x}{g}," for g, x in xs) + "]")


def inlined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.dictionaries(KEYS, inner, max_size=3).map(
        lambda d: "{ " + ", ".join(f"{k} = {v}" for k, v in d.items()) + " }"
    )


VALUES = st.recursive(SCALARS, lambda inner: st.one_of(listed(inner), inlined(inner)), max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Valid TOML of every shape, each key of a table on a line that ends in a comment of its own."""
    text = draw(st.sampled_from(["", "# [x]\n\n"]))
    for number in range(draw(st.integers(0, 4))):
        header = draw(st.sampled_from(["[t{}]", "[[l]]", '[ t{} . "x y" ]', "# {}"])).format(number)
        text += header + "\n"
        for index, key in enumerate(draw(st.lists(KEYS, max_size=3, unique=True))):
            dot = draw(st.sampled_from(["", "k. d", "k .'e'"]))
            name = f"n{number}_{index}" if header.startswith("#") else key
            text += f"{name}{'.' + dot if dot else ''} = {draw(VALUES)} # c\n\n"
    return text


@given(documents())
def test_every_key_of_a_valid_document_has_a_line_on_which_it_stands(text: str) -> None:
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    assert set(lines) == paths(value)
    source = text.split("\n")
    for path, line in lines.items():
        names = [part for part in path if isinstance(part, str)]
        if path[-1] in ("a", "b-1", "k", "d", "e", "x y"):
            assert names[-1] in source[line - 1]
