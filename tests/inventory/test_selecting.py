"""How hosts.toml is found, and how a command line selects a container and an app."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctdeploy.errors import ConfigError, ExitCode, UsageError
from ctdeploy.inventory import find
from ctdeploy.inventory.find import Located
from ctdeploy.inventory.inventory import Inventory, load
from ctdeploy.inventory.parse import parse
from ctdeploy.remote.payloads.markers import Forbidden

TWO_HOSTS = """
[hosts.pve1]
address = "pve1"
[hosts.pve2]
address = "pve2"
[containers.train]
host = "pve1"
ct = 200
run_as = "trainer"
[containers.other]
host = "pve2"
ct = 200
[containers.eval]
host = "pve2"
ct = 201
"""


def inventory(text: str, base: Path = Path("/base")) -> Inventory:
    return Inventory(parse(text.encode(), "hosts.toml"), Located(base / "hosts.toml", base, "test"))


def refused(call: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.code == ExitCode.USAGE
    return caught.value


# Containers


def test_a_container_is_selected_by_name_id_and_address() -> None:
    found = inventory(TWO_HOSTS)
    assert found.container("train").address == "200@pve1"
    assert found.container("201").label == "eval"
    assert found.container("200@pve2").label == "other"


def test_an_id_on_two_hosts_is_an_error_that_lists_both() -> None:
    error = refused(lambda: inventory(TWO_HOSTS).container("200"))
    assert error.message == "200 is on several hosts: 200@pve1 (train), 200@pve2 (other)"
    assert error.next == "use --ct 200@pve1"


def test_an_address_reaches_a_container_that_the_file_does_not_have() -> None:
    container = inventory(TWO_HOSTS).container("300@pve1")
    assert (container.name, container.label, container.python) == (None, "300@pve1", "/usr/bin/python3")
    assert inventory(TWO_HOSTS).container("201@lab").python == "/opt/venv/bin/python"
    assert "did you mean" in refused(lambda: inventory(TWO_HOSTS).container("300@pve3")).message
    assert "from 100" in refused(lambda: inventory(TWO_HOSTS).container("99@pve1")).message


def test_an_unknown_container_names_the_nearest_one_or_the_way_to_reach_it() -> None:
    found = inventory(TWO_HOSTS)
    assert 'did you mean "train"?' in refused(lambda: found.container("trian")).message
    assert refused(lambda: found.container("300")).next == "use --ct 300@pve1, or add it to hosts.toml"


def test_the_lab_is_there_without_any_file_content() -> None:
    found = inventory("")
    assert found.hosts["lab"].is_lab
    assert found.container() == found.container("lab") == found.container("200") == found.container("200@lab")
    assert (found.container().ct, found.container().python) == (200, "/opt/venv/bin/python")


def test_the_built_in_lab_container_gives_way() -> None:
    host = '[hosts.h]\naddress = "h"\n'
    own_id = inventory(host + '[containers.mine]\nhost = "h"\nct = 200')
    assert own_id.container("200").label == "mine"
    assert own_id.container().label == "mine"
    assert own_id.container("lab").host.is_lab
    own_name = inventory(host + '[containers.lab]\nhost = "h"\nct = 300')
    assert own_name.container("lab").ct == 300
    assert "200" in refused(lambda: own_name.container("200")).message
    elsewhere = inventory('[containers.x]\nhost = "lab"\nct = 201')
    assert list(elsewhere.containers) == ["x"]


def test_without_a_selector_the_default_or_the_only_container_is_meant() -> None:
    assert inventory('[defaults]\nct = "201@pve2"\n' + TWO_HOSTS).container().label == "eval"
    assert inventory("[defaults]\nct = 201\n" + TWO_HOSTS).container().label == "eval"
    error = refused(lambda: inventory(TWO_HOSTS).container())
    assert error.message == "which container? There is no default (known: train, other, eval)"


# Apps


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("src/train.py", "src/other.py", "free.py", "-bad.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x = 1\n")
    return folder


APPS = '[apps.main]\nentry = "src/train.py"\nroot = "."\nmarkers = ["m"]\nforbidden = ["f"]\n'


def test_a_script_that_is_an_app_s_entry_means_that_app(base: Path, tmp_path: Path) -> None:
    found = inventory(APPS, base)
    (tmp_path / "link").symlink_to("project")
    for path, cwd in (("train.py", base / "src"), ("src/train.py", tmp_path), (str(base / "src/train.py"), tmp_path)):
        assert found.app_for_path(path, cwd).name == "main"
    assert found.app_for_path("link/src/train.py", tmp_path).name == "main"


def test_another_script_makes_an_app_of_its_own(base: Path) -> None:
    app = inventory(APPS, base).app_for_path("../free.py", base / "src")
    assert (app.name, app.entry, app.root, app.base) == ("free", base / "free.py", base, base)
    assert (app.markers, app.keep, app.configured) == ((), 5, False)
    assert inventory(APPS, base).app_for_path("free.py", base, "experiment").name == "experiment"


def test_the_working_folder_comes_before_the_folder_of_hosts_toml(base: Path, tmp_path: Path) -> None:
    (tmp_path / "free.py").write_text("")
    found = inventory(APPS, base)
    assert found.app_for_path("free.py", tmp_path).entry == tmp_path / "free.py"
    assert found.app_for_path("free.py", base / "src").entry == base / "free.py"


def test_a_script_that_is_not_there_says_where_it_was_looked_for(base: Path, tmp_path: Path) -> None:
    error = refused(lambda: inventory(APPS, base).app_for_path("no.py", tmp_path))
    assert error.message == f"there is no script no.py: looked for {tmp_path}/no.py and {base}/no.py"
    assert "not a regular file" in refused(lambda: inventory(APPS, base).app_for_path("src", base)).message


def test_an_app_s_name_is_never_shared_by_two_scripts(base: Path) -> None:
    found = inventory(APPS + '[apps.other]\nentry = "free.py"\n', base)
    error = refused(lambda: found.app_for_path("src/other.py", base))
    assert error.message == f'the app "other" belongs to {base}/free.py, not to {base}/src/other.py'
    assert refused(lambda: found.app_for_path("src/other.py", base, "main"))


def test_a_stem_that_cannot_be_a_folder_asks_for_a_name(base: Path) -> None:
    assert refused(lambda: inventory(APPS, base).app_for_path("-bad.py", base)).next == "use --app NAME"
    assert refused(lambda: inventory(APPS, base).app_for_path("free.py", base, "a/../b"))


def test_a_script_of_several_apps_needs_a_name_or_a_default(base: Path) -> None:
    several = APPS + '[apps.twin]\nentry = "src/train.py"\n'
    assert "main, twin" in refused(lambda: inventory(several, base).app_for_path("src/train.py", base)).message
    assert inventory(several, base).app_for_path("src/train.py", base, "twin").name == "twin"
    default = '[defaults]\napp = "twin"\n' + several
    assert inventory(default, base).app_for_path("src/train.py", base).name == "twin"


def test_without_a_name_the_default_or_the_only_app_is_meant(base: Path) -> None:
    assert inventory(APPS, base).app().name == "main"
    assert "no default" in refused(lambda: inventory("", base).app()).message
    assert 'did you mean "main"?' in refused(lambda: inventory(APPS, base).app("mian")).message


def test_an_app_s_source_takes_the_markers_of_the_command_line_too(base: Path) -> None:
    source = inventory(APPS, base).app().source(markers=["m", "n"], forbidden=["g"])
    assert (source.app, source.entry, source.root) == ("main", base / "src/train.py", base)
    assert source.markers == ("m", "n")
    assert source.forbidden == (Forbidden("f"), Forbidden("g"))


# Finding the file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_file_is_looked_for_in_the_documented_order(home: Path) -> None:
    cwd = home / "work/deep"
    cwd.mkdir(parents=True)
    assert find.locate(None, {}, cwd).built_in
    user = write(home / "config/ctdeploy/hosts.toml")
    assert find.locate(None, {}, cwd).path == user
    upwards = write(home / "work/hosts.toml")
    assert find.locate(None, {}, cwd).path == upwards
    by_variable = write(home / "variable.toml")
    env = {"CTDEPLOY_CONFIG": str(by_variable)}
    assert find.locate(None, env, cwd).path == by_variable
    named = write(home / "work/named/hosts.toml")
    assert find.locate("../named", env, cwd).base == cwd / "../named"
    assert find.locate(str(named), env, cwd).path == named


def test_a_named_file_that_is_not_there_is_an_error_not_the_next_one(home: Path) -> None:
    write(home / "hosts.toml")
    for config, env, how in (("no.toml", {}, "--config"), (None, {"CTDEPLOY_CONFIG": "no.toml"}, "CTDEPLOY_CONFIG")):
        with pytest.raises(ConfigError, match=f"no.toml, named by {how}, is not there"):
            find.locate(config, env, home)


def test_the_built_in_file_deploys_the_bundled_trainer_from_anywhere(home: Path) -> None:
    found = load(None, {}, home)
    assert found.located.built_in
    assert found.container().host.is_lab
    assert (found.located.base / "trainer" / "dflash").is_dir()
    assert found.app().entry == found.located.base / "trainer/dflash_train.py"


def test_the_built_in_file_of_a_wheel_lies_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write(tmp_path / "site/ctdeploy/inventory/find.py")
    monkeypatch.setattr(find, "__file__", os.fspath(module))
    shipped = write(tmp_path / "site/ctdeploy/inventory/builtin.toml")
    assert find.built_in() == Located(shipped, tmp_path / "site", "built in", True)


def test_the_file_is_named_in_errors_as_the_user_would_name_it(home: Path) -> None:
    write(home / "hosts.toml", "x = 1")
    (home / "deep").mkdir()
    for cwd, name in ((home, "hosts.toml"), (home / "deep", f"{home}/hosts.toml")):
        with pytest.raises(ConfigError) as caught:
            load(None, {}, cwd)
        assert caught.value.message.startswith(f"{name}:1: x: unknown key")


def test_a_file_that_cannot_be_read_is_a_config_error(home: Path) -> None:
    (home / "hosts.toml").mkdir()
    with pytest.raises(ConfigError, match="is not a regular file"):
        load(str(home), {}, home)
