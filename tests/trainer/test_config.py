"""Recipes and overrides."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dflash.config import Config, load_config
from dflash.errors import TrainerError

REPOSITORY = Path(__file__).resolve().parents[2]


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text('[data]\ntrain = "data.jsonl"\n' + text)
    return path


def test_sections_become_typed_values_and_the_rest_keeps_its_defaults(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path, '[topology]\ndrafters = ["cpu", "cpu"]\n[optimizer]\nclip = 2\n'), [])
    assert config.topology.drafters == ("cpu", "cpu")
    assert config.optimizer.clip == 2.0
    assert type(config.optimizer.clip) is float
    assert config.run == Config().run


def test_paths_are_relative_to_the_recipe_and_on_the_command_line_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load_config(recipe(tmp_path, ""), ["data.heldout=held.jsonl"])
    assert config.data.train == str(tmp_path / "data.jsonl")
    assert config.data.heldout == str(elsewhere / "held.jsonl")


def test_overrides_win_and_keep_their_type(tmp_path: Path) -> None:
    path = recipe(tmp_path, "[run]\nsteps = 5\n")
    config = load_config(path, ["run.steps=7", "target.model=some/model", 'topology.drafters=["cpu"]', "loss.gamma=3"])
    assert config.run.steps == 7
    assert config.target.model == "some/model"
    assert config.topology.drafters == ("cpu",)
    assert config.loss.gamma == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\nstepps = 5\n", r"Unknown key 'run\.stepps'.*did you mean 'steps'"),
        ("[rum]\nsteps = 5\n", r"Unknown key 'rum'.*did you mean 'run'"),
        ('[run]\nsteps = "5"\n', r"run\.steps must be of type int, not str '5'"),
        ("[run]\nsteps = true\n", r"run\.steps must be of type int, not bool"),
        ("[run]\nsteps = 5.0\n", r"run\.steps must be of type int, not float"),
        ("[topology]\ndrafters = [1]\n", r"topology\.drafters\[0\] must be of type str"),
        ('[topology]\ndrafters = "cpu"\n', r"topology\.drafters must be a list"),
        ("run = 3\n", "run must be a table"),
        ("[drafter]\nmask_token_id = 'x'\n", r"drafter\.mask_token_id must be of type int"),
        ("[drafter]\nblock_size = 1\n", r"drafter\.block_size must be between"),
        ("[anchors]\nper_sequence = 4000\n", r"anchors\.per_sequence"),
        ("[compile]\nmode = 'reduce-overhead'\n", "refused"),
        ("[topology]\ntargets = ['cuda:90']\n", "CUDA devices"),
        ("[topology]\ntargets = ['gpu']\n", "no device"),
        ("[topology]\ncpu_threads = -1\n", r"topology\.cpu_threads must be at least 0"),
        ("[run]\nsave_every = -2\n", r"run\.save_every must be at least 0"),
        ("[target]\ndtype = 'float16x'\n", r"target\.dtype is no dtype: 'float16x'"),
        ("[drafter]\ncompute_dtype = 'bf16'\n", r"drafter\.compute_dtype is no dtype: 'bf16'"),
        ("[run]\ncheckpoint_dtype = 'bloat16'\n", r"run\.checkpoint_dtype is no dtype: 'bloat16'"),
        ("[run\n", "not TOML"),
    ],
)
def test_mistakes_are_named_by_their_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    first = text if text.startswith("run = ") else ""
    rest = "" if first else text
    path.write_text(f'{first}[data]\ntrain = "data.jsonl"\n{rest}')
    with pytest.raises(TrainerError) as caught:
        load_config(path, [])
    assert re.search(message, str(caught.value)), str(caught.value)


def test_rows_of_drafters_on_cuda_are_whole_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    path = recipe(tmp_path, "max_length = 600\n[topology]\ndrafters = ['cpu', 'cuda:0']\n")
    with pytest.raises(TrainerError, match=r"data\.max_length must be a multiple of 128.*not 600.*= 640"):
        load_config(path, [])
    load_config(path, ["data.max_length=640"])
    load_config(path, ["compile.enabled=false"])  # dense attention


def test_a_folder_of_the_target_is_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for written in ("models/tiny", "./models/tiny"):
        config = load_config(recipe(tmp_path, f'[target]\nmodel = "{written}"\n'), [])
        assert config.target.model == str(tmp_path / "models/tiny")
    assert load_config(recipe(tmp_path, '[target]\nmodel = "models/other"\n'), []).target.model == "models/other"
    assert load_config(recipe(tmp_path, ""), ["target.model=../models/tiny"]).target.model == config.target.model


def test_an_override_without_a_key_is_refused(tmp_path: Path) -> None:
    for text in ("run.steps", "=3", "run..steps=3"):
        with pytest.raises(TrainerError, match=r"section\.key=value"):
            load_config(recipe(tmp_path, ""), [text])


def test_the_resolved_config_is_plain_json(tmp_path: Path) -> None:
    resolved = load_config(recipe(tmp_path, ""), []).resolved()
    assert json.loads(json.dumps(resolved))["optimizer"]["learning_rate"] == 6e-4


def test_the_shipped_recipe_is_valid_and_names_files_that_exist() -> None:
    config = load_config(REPOSITORY / "trainer/recipes/demo.toml", [])
    assert Path(config.data.train).is_file()
    assert Path(config.data.heldout).is_file()
    assert len(config.topology.drafters) == 2
