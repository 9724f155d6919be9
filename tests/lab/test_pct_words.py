"""The parts of the lab's pct that need no lab: command lines, .conf files, error lines, locks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctdeploy.lab import conf
from ctdeploy.lab.pct.caller import cut
from ctdeploy.lab.pct.copy import _mode
from ctdeploy.lab.pct.errors import TaskError, UsageError
from ctdeploy.lab.pct.getopt import Command, parse

COPY = Command("push", ("vmid", "file", "destination"), (("perms", "text"), ("user", "text"), ("group", "text")))
EXEC = Command("exec", ("vmid",), (("keep-env", "boolean"),), rest=True)
STATUS = Command("status", ("vmid",), (("verbose", "boolean"),))


def test_options_and_arguments_mix() -> None:
    call = parse(COPY, ["--perms", "600", "101", "f", "-user", "1000", "/root/p", "--group=33"])
    assert call.arguments == ["101", "f", "/root/p"]
    assert call.options == {"perms": "600", "user": "1000", "group": "33"}


def test_the_beginning_of_an_option_is_enough() -> None:
    assert parse(COPY, ["101", "f", "g", "--per", "0600"]).options == {"perms": "0600"}


def test_a_mandatory_value_may_look_like_an_option() -> None:
    assert parse(COPY, ["101", "f", "g", "--perms", "-1"]).options == {"perms": "-1"}


@pytest.mark.parametrize(
    ("words", "verbose"),
    [
        (["101"], False),
        (["101", "--verbose"], True),
        (["101", "--verbose", "0"], False),
        (["--verbose=1", "101"], True),
        (["101", "--verb"], True),
        (["101", "--verbose", "yes"], True),
    ],
)
def test_a_boolean_takes_an_optional_value(words: list[str], verbose: bool) -> None:
    assert parse(STATUS, words).flag("verbose") is verbose


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        (STATUS, ["-verbose", "101"], "400 not enough arguments\npct status <vmid> [OPTIONS]\n"),
        (STATUS, ["101", "x"], "400 too many arguments\npct status <vmid> [OPTIONS]\n"),
        (
            EXEC,
            ["101", "--keep-env", "env"],
            "400 unable to parse boolean option\npct exec <vmid> [<extra-args>] [OPTIONS]\n",
        ),
        (
            STATUS,
            ["abc"],
            "400 Parameter verification failed.\n"
            "vmid: type check ('integer') failed - got 'abc'\npct status <vmid> [OPTIONS]\n",
        ),
        (
            STATUS,
            ["99"],
            "400 Parameter verification failed.\n"
            "vmid: invalid format - value does not look like a valid VM ID\n\npct status <vmid> [OPTIONS]\n",
        ),
    ],
)
def test_a_bad_call_is_refused_with_its_usage(command: Command, words: list[str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(command, words)
    assert refused.value.text == says


def test_each_unknown_option_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unable to parse option"):
        parse(EXEC, ["101", "python3", "-c", "print()", "-la"])
    assert capfd.readouterr().err == "Unknown option: c\nUnknown option: la\n"


def test_only_the_first_double_dash_is_eaten() -> None:
    assert parse(EXEC, ["101", "echo", "a", "--", "-n", "--", "b"]).rest == ["echo", "a", "-n", "--", "b"]


@given(st.lists(st.text()))
def test_words_after_the_double_dash_are_kept_exactly(words: list[str]) -> None:
    assert parse(EXEC, ["101", "--", *words]).rest == words


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("755", 0o755),
        ("0644", 0o644),
        ("", 0),
        ("7", 7),
        ("1777", 0o1777),
        ("100644", 0o644),
        ("0x1ff", 0o777),
        ("0b111", 7),
    ],
)
def test_perms_are_octal_hexadecimal_or_binary(text: str, mode: int) -> None:
    assert _mode(text) == mode


@pytest.mark.parametrize(("text", "shown"), [("999", "0999"), ("abc", "0abc"), ("0o644", "0o644"), ("600 ", "0600 ")])
def test_other_perms_are_refused_in_pcts_words(text: str, shown: str) -> None:
    with pytest.raises(TaskError, match=f"^invalid mode: '{shown}'$"):
        _mode(text)


def test_an_error_line_loses_a_byte_at_its_end_for_each_extra_byte() -> None:
    assert cut("failed to create file: /nodir/äöü.txt: No such file or directory") == (
        "failed to create file: /nodir/äöü.txt: No such file or directo"
    )
    assert cut("plain") == "plain"


def test_a_conf_file_is_read_with_its_oddities() -> None:
    found = conf.parse(
        101,
        "#first line\n#second%3A line\nhostname: train1\nmemory: lots\nbogus: 1\nnot a setting\n"
        "lxc.mount.entry: /a b none bind 0 0\nlxc.cap.drop = x\n\n"
        "[before]\nhostname: old\n\n[pve:pending]\ndelete: cores\n",
    )
    assert found.value("hostname") == "train1"
    assert found.value("bogus") == "1"
    assert found.value("description") == "first line\nsecond: line\n"
    assert found.main.raw == [("lxc.mount.entry", "/a b none bind 0 0"), ("lxc.cap.drop", "x")]
    assert found.sections["before"].values == {"hostname": "old"}
    assert found.invalid == {"memory": "type check ('integer') failed - got 'lots'"}
    assert found.warnings == [
        "vm 101 - unable to parse value of 'memory' - type check ('integer') failed - got 'lots'",
        "vm 101 - unable to parse value of 'bogus' - unknown setting 'bogus'",
        "vm 101 - unable to parse config: not a setting",
    ]


@given(st.text())
def test_any_text_can_be_read_as_a_conf_file(text: str) -> None:
    conf.parse(101, text)


@given(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])))
def test_a_description_shows_on_one_line_and_reads_back(text: str) -> None:
    shown = conf.escape(text)
    assert shown.isascii()
    assert conf._unescape(shown) == text


@pytest.mark.parametrize("name", ["train", "a.b-c.example", "x" * 63])
def test_host_names_are_dns_names(name: str) -> None:
    assert conf.check_hostname(name) is None


@pytest.mark.parametrize("name", ["", "-bad", "bad-", "a..b", "a b", "ä", "x" * 64, "a\nlock: backup"])
def test_what_is_no_host_name_is_refused(name: str) -> None:
    assert conf.check_hostname(name)


def test_pct_starts_without_the_slow_modules() -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import ctdeploy.lab.pct.main, ctdeploy.lab.pct.query, ctdeploy.lab.containers.namespaces
print(*sorted(sys.modules))
"""
    argv = [sys.executable, "-IS", "-c", program, str(Path(conf.__file__).parents[2])]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert not {"dataclasses", "typing", "re", "enum", "collections", "json", "pathlib"} & set(loaded)
