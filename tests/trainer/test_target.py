"""What is captured from the target, and which targets are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dflash.errors import TrainerError
from dflash.target import (
    Target,
    TargetConfig,
    choose_layers,
    choose_mask_token,
    load_target,
    load_tokenizer,
    refuse_unsupported,
    rope_parameters,
)
from tests.trainer.tiny import KINDS, LAYER_IDS, tiny_model, tiny_target


@pytest.mark.parametrize(
    ("layers", "count", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (28, 5, (1, 7, 13, 19, 25)),
        (30, 5, (1, 8, 14, 20, 27)),
        (24, 5, (1, 6, 11, 16, 21)),
        (30, 3, (1, 14, 27)),
        (30, 1, (15,)),
    ],
)
def test_layers_are_chosen_as_published(layers: int, count: int, expected: tuple[int, ...]) -> None:
    assert choose_layers(layers, count) == expected


def test_layer_i_is_entry_i_plus_one_of_output_hidden_states(target: Target) -> None:
    tokens = torch.randint(0, 256, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        every = target.model(tokens, output_hidden_states=True).hidden_states
        features = target.features(tokens)
        _, again = target.step(tokens[:1], target.new_cache())
    expected = torch.cat([every[index + 1] for index in LAYER_IDS], dim=-1)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(again, expected[:1], rtol=0, atol=1e-5)


def test_layers_behind_the_last_captured_one_are_not_computed(target: Target) -> None:
    ran: list[int] = []
    for index, layer in enumerate(target.model.model.layers):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
    with torch.no_grad():
        target.features(torch.zeros(1, 8, dtype=torch.long))
    assert ran == list(range(LAYER_IDS[-1] + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_behind_a_row_does_not_change_its_features(kind: str) -> None:
    target = tiny_target(kind, torch.float64)
    row = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([row, torch.full((1, 8), 257)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(target.features(padded)[:, :12], target.features(row), rtol=0, atol=1e-9)


def test_the_last_layer_is_never_captured() -> None:
    model = tiny_model("llama")
    with pytest.raises(TrainerError, match="below the last layer 7"):
        Target(model, (1, 7))
    with pytest.raises(TrainerError, match="ascending"):
        Target(model, (3, 1))


def test_targets_that_scale_their_activations_are_refused_by_name() -> None:
    plain = {"model_type": "llama", "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    refuse_unsupported(SimpleNamespace(**plain))
    for extra, word in (
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"model_type": "gemma2"}, "Gemma"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic"}}, "rope scaling"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
    ):
        with pytest.raises(TrainerError, match=word):
            refuse_unsupported(SimpleNamespace(**{**plain, **extra}))


def test_partial_rotary_is_found_in_a_config_and_in_a_model() -> None:
    from transformers import GlmConfig

    config = GlmConfig(partial_rotary_factor=0.5)  # among rope_parameters in transformers 5.x, beside them in 4.x
    with pytest.raises(TrainerError, match="partial rotary"):
        refuse_unsupported(config)
    model = tiny_model("qwen3")
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:4]
    with pytest.raises(TrainerError, match="partial rotary"):
        Target(model, LAYER_IDS)


def test_models_that_are_built_otherwise_or_unknown_are_refused_by_name(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(str(tmp_path / "gpt2"))
    with pytest.raises(TrainerError, match="GPT2LMHeadModel"):
        load_target(TargetConfig(layer_ids=(0,)), str(tmp_path / "gpt2"), torch.device("cpu"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.json").write_text('{"model_type": "not-invented-yet", "architectures": ["New"]}')
    with pytest.raises(TrainerError, match="not-invented-yet"):
        load_target(TargetConfig(), str(tmp_path / "new"), torch.device("cpu"))
    with pytest.raises(TrainerError, match="tokenizer"):
        load_tokenizer(str(tmp_path / "new"))


def test_rope_is_read_in_the_forms_of_transformers_4_and_5() -> None:
    scaled = {"rope_type": "llama3", "factor": 8.0}
    assert rope_parameters(SimpleNamespace(rope_theta=1e6, rope_scaling=None)) == (1e6, None)
    assert rope_parameters(SimpleNamespace(rope_theta=5e5, rope_scaling=scaled)) == (5e5, scaled)
    new = {"rope_theta": 5e5, **scaled}
    assert rope_parameters(SimpleNamespace(rope_parameters=new, rope_scaling=new)) == (5e5, scaled)
    default = {"rope_theta": 1e4, "rope_type": "default"}
    assert rope_parameters(SimpleNamespace(rope_parameters=default)) == (1e4, None)


class Words:
    """A tokenizer as far as the choice of the mask token goes."""

    def __init__(self, size: int, mask: int | None = None) -> None:
        self.mask_token_id = mask
        self._size = size

    def __len__(self) -> int:
        return self._size


def test_the_mask_token_has_a_row_in_the_targets_table() -> None:
    assert choose_mask_token(Words(100), 128, 17) == 17
    assert choose_mask_token(Words(100, mask=5), 128, None) == 5
    assert choose_mask_token(Words(100), 128, None) == 100
    with pytest.raises(TrainerError, match="no row"):
        choose_mask_token(Words(100), 128, 128)
    with pytest.raises(TrainerError, match="no spare embedding row"):
        choose_mask_token(Words(128), 128, None)
