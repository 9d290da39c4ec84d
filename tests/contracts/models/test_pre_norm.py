"""Pre-norm layers, compared with transformers."""

import pytest
import torch

from tests.unit.models.test_bert import small, texts


def test_pre_norm_roberta_is_prelayernorm() -> None:
    transformers = pytest.importorskip("transformers")
    mine = small("none", norm="pre")
    c = mine.config
    theirs = transformers.RobertaPreLayerNormModel(
        transformers.RobertaPreLayerNormConfig(
            vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
            intermediate_size=c.feed_forward, max_position_embeddings=c.max_positions + 1, pad_token_id=0,
            type_vocab_size=2, layer_norm_eps=c.norm_eps,
        ),
        add_pooling_layer=False,
    ).eval()  # fmt: skip
    block = {
        "attention.output": "attention.output.dense", "attention_norm": "attention.LayerNorm",
        "feed_forward.expand": "intermediate.dense", "feed_forward.contract": "output.dense",
        "feed_forward_norm": "intermediate.LayerNorm",
        **{f"attention.{name}": f"attention.self.{name}" for name in ("query", "key", "value")},
    }  # fmt: skip
    names = {
        f"encoder.blocks.{i}.{ours}": f"encoder.layer.{i}.{name}" for i in range(3) for ours, name in block.items()
    }
    names |= {"embedding": "embeddings.word_embeddings", "segments": "embeddings.token_type_embeddings",
              "embedding_norm": "embeddings.LayerNorm", "encoder.norm": "LayerNorm"}  # fmt: skip
    weights = mine.state_dict()
    positions = weights.pop("positions.table")
    state = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value for key, value in weights.items()}
    # its first position is the second of its table
    state["embeddings.position_embeddings.weight"] = torch.cat([torch.zeros(1, c.width), positions])
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert not [name for name in missing if "position_ids" not in name and "token_type_ids" not in name]
    tokens, lengths, segments = texts()
    places = torch.arange(1, 10).expand(3, 9)
    mask = (torch.arange(9) < lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask, token_type_ids=segments, position_ids=places).last_hidden_state
        found = mine(tokens, lengths, segments)
        assert torch.equal(mine.all_states(tokens, lengths, segments)[-1], found)
    assert torch.allclose(found[mask.bool()], expected[mask.bool()], atol=1e-5)
