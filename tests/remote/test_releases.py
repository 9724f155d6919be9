"""Releases in a container: placed, verified, stored, activated, pruned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctdeploy.errors import HostError, VerifyError
from tests.support.box import SCRIPT, Box, bundle, manifest, sha
from tests.support.container import until


def test_a_release_becomes_active_with_number_and_manifest(box: Box):
    stored = box.deploy(main=SCRIPT)
    assert stored["number"] == 1
    assert box.active == f"releases/{stored['name']}"
    assert (Path(stored["path"]) / "main.py").read_bytes() == SCRIPT
    assert box.deploy(main=SCRIPT + b"#2\n")["number"] == 2


def test_numbers_are_never_used_twice_even_after_a_release_was_removed(box: Box):
    box.deploy(main=SCRIPT)
    second = box.deploy(main=SCRIPT + b"#2\n")
    box.deploy(main=SCRIPT + b"#3\n")
    shutil.rmtree(box.dest / "app" / "releases" / second["name"])
    for path in (box.dest / "app" / "releases").glob("3-*"):
        shutil.rmtree(path)
    (box.dest / "app" / "current").unlink()
    assert box.deploy(main=SCRIPT + b"#4\n")["number"] == 4


@pytest.mark.parametrize("damage", ["short", "changed", "gone"])
def test_a_bundle_that_did_not_arrive_whole_is_refused_and_the_active_release_stays(box: Box, damage: str):
    before = box.deploy(main=SCRIPT)
    new = SCRIPT + b"# new\n"
    sent = bundle(box.folder, new)
    path = Path(sent["path"])
    if damage == "short":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "changed":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    else:
        path.unlink()
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        with pytest.raises(VerifyError, match="pct push"):
            session.call("place", manifest=manifest(main=new), bundle=sent)
    assert box.active == f"releases/{before['name']}"
    assert [path.name for path in (box.dest / "app" / "releases").iterdir()] == [before["name"]]


def test_a_path_that_leads_out_of_the_release_is_refused(box: Box):
    wanted = manifest(main=SCRIPT)
    wanted["files"][0]["path"] = "../../../evil.py"
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        with pytest.raises(VerifyError, match="leads out"):
            session.call("place", manifest=wanted, bundle=bundle(box.folder, SCRIPT))
    assert not (box.folder / "evil.py").exists()


def test_content_of_older_releases_is_used_but_only_what_still_has_the_hash(box: Box):
    old = box.deploy(main=SCRIPT, helper=b"x = 1\n")
    wanted = manifest(main=SCRIPT + b"#2\n", helper=b"x = 1\n")
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        assert session.call("missing", files=wanted["files"])["missing"] == [sha(SCRIPT + b"#2\n")]
        (Path(old["path"]) / "helper.py").write_bytes(b"x = 2\n")
        missing = session.call("missing", files=wanted["files"])["missing"]
        assert missing == sorted([sha(SCRIPT + b"#2\n"), sha(b"x = 1\n")])
        with pytest.raises(VerifyError, match="did not arrive"):
            session.call("place", manifest=wanted, bundle=bundle(box.folder, SCRIPT + b"#2\n"))


def test_an_active_release_that_lost_its_manifest_can_be_replaced(box: Box):
    stored = box.deploy(main=SCRIPT)
    for text in (None, "{ not json"):
        path = Path(stored["path"]) / "RELEASE.json"
        path.unlink() if text is None else path.write_text(text)
        with box.session() as session, pytest.raises(VerifyError, match=r"no readable RELEASE\.json"):
            session.call("verify")
        stored = box.deploy(main=SCRIPT)
        assert box.active == f"releases/{stored['name']}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: (path / "main.py").write_bytes(SCRIPT + b"#"), "main.py: 59 bytes, expected 58"),
        (lambda path: (path / "main.py").write_bytes(SCRIPT.replace(b"False", b"Falsy")), "main.py: content differs"),
        (lambda path: (path / "main.py").unlink(), "main.py: missing"),
        (lambda path: (path / "extra.py").write_text("1"), "extra.py: not part of the release"),
        (
            lambda path: ((path / "main.py").unlink(), (path / "main.py").symlink_to("/etc/passwd")),
            "main.py: not a regular file",
        ),
    ],
)
def test_drift_is_told_file_by_file(box: Box, change: Callable[[Path], Any], says: str):
    stored = box.deploy(main=SCRIPT)
    change(Path(stored["path"]))
    with box.session() as session:
        drift = session.call("verify", markers=["cudagraphs=False"])["drift"]
    assert len(drift) == 1
    assert drift[0].startswith(says)


def test_verify_compiles_with_this_interpreter_and_writes_nothing(box: Box):
    stored = box.deploy(main=SCRIPT, helper=b"def f(:\n    pass\n")
    with box.session() as session:
        answer = session.call("verify")
    assert [(error["path"], error["line"]) for error in answer["errors"]] == [("helper.py", 1)]
    assert sorted(path.name for path in Path(stored["path"]).iterdir()) == ["RELEASE.json", "helper.py", "main.py"]


def test_a_real_directory_in_the_place_of_current_is_an_error_not_a_loss(box: Box):
    box.deploy(main=SCRIPT)
    current = box.dest / "app" / "current"
    current.unlink()
    current.mkdir()
    (current / "precious").write_text("data")
    with pytest.raises(HostError, match="not a symlink"):
        box.session()
    assert (current / "precious").read_text() == "data"


def test_imports_are_looked_for_in_the_environment_of_the_run(box: Box):
    library = box.folder / "lib"
    library.mkdir()
    (library / "only_by_pythonpath.py").write_text("raise SystemExit('was imported')\n")
    wanted = dict(manifest(main=SCRIPT), imports=["json", "only_by_pythonpath", "nowhere_at_all"])
    with box.session() as session:
        session.call("lock", why="test", wait_s=0)
        placed = session.call("place", manifest=wanted, bundle=bundle(box.folder, SCRIPT))
        asked = {"path": placed["path"], "manifest": placed["manifest"], "user": "root"}
        assert session.call("verify", **asked, env={"PYTHONPATH": str(library)})["imports_missing"] == [
            "nowhere_at_all"
        ]
        assert "only_by_pythonpath" in session.call("verify", **asked, env={})["imports_missing"]


def test_folders_are_for_everybody_to_read_whatever_the_umask_of_the_login(box: Box):
    before = os.umask(0o077)
    try:
        stored = box.deploy(main=SCRIPT)
    finally:
        os.umask(before)
    assert Path(stored["path"]).stat().st_mode & 0o777 == 0o755
    assert (Path(stored["path"]) / "main.py").stat().st_mode & 0o777 == 0o644
    assert box.dest.stat().st_mode & 0o777 == 0o755


def test_only_the_newest_releases_are_kept_and_those_in_use(box: Box):
    box.keep = 3
    first = box.deploy(main=b"import time\ntime.sleep(600)\n")
    with box.session() as session:
        box.launch(session, first)
    for number in range(2, 8):
        box.deploy(main=SCRIPT + b"#%d\n" % number)
    names = sorted(path.name for path in (box.dest / "app/releases").iterdir())
    assert [name.split("-")[0] for name in names] == ["1", "5", "6", "7"]
    with box.session() as session:
        session.call("stop", run="r1", grace_s=1)
        until(lambda: session.call("wait", run="r1", wait_s=1)["run"]["state"] == "stopped")
    box.deploy(main=SCRIPT + b"#8\n")
    assert sorted(path.name.split("-")[0] for path in (box.dest / "app/releases").iterdir()) == ["6", "7", "8"]
    assert box.active.startswith("releases/8-")
