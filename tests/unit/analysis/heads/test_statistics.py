"""Statistics, similarity, rollout, distances and importance of heads, compared with scipy, scikit-learn and loops."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from manyheads.analysis.heads import (
    HeadStatistics,
    attention_distances,
    clusters,
    divergences,
    entropy,
    importance,
    place,
    rollout,
)
from manyheads.core.recording import record
from manyheads.models import bert, vit
from manyheads.models.presets import preset


def random_maps(batch: int = 2, heads: int = 3, tokens: int = 5, seed: int = 1) -> Tensor:
    scores = torch.randn(batch, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    return scores.mul(2).softmax(-1)


def test_entropy_equals_scipy() -> None:
    map = random_maps()
    np.testing.assert_allclose(entropy(map), scipy_entropy(map.numpy(), axis=-1), rtol=1e-5)
    assert entropy(torch.eye(4)).max() == 0
    assert entropy(torch.zeros(2, 4)).max() == 0
    assert entropy(torch.full((4,), 0.25)) == pytest.approx(math.log(4))


def test_statistics_average_real_tokens_for_any_batches() -> None:
    first, second = random_maps(seed=1), random_maps(seed=2)
    lengths = torch.tensor([5, 3])
    for map in (first, second):
        map[1, :, :, 3:] = 0  # padding is not looked at
        map[1] /= map[1].sum(-1, keepdim=True)
    mark = torch.zeros(2, 5, dtype=torch.bool)
    mark[:, 0] = True
    statistics = HeadStatistics()
    statistics.add({"a": first, "b": second}, lengths, {"[CLS]": mark})
    heads = statistics.heads()
    assert [(h.layer, h.head) for h in heads] == [(layer, h) for layer in "ab" for h in range(3)]
    rows = [(b, q) for b, length in enumerate((5, 3)) for q in range(length)]
    for head in heads[:3]:
        one = first[:, head.head]
        for name, value in (
            ("entropy", np.mean([scipy_entropy(one[b, q]) for b, q in rows])),
            ("distance", np.mean([sum(one[b, q, k] * abs(k - q) for k in range(5)) for b, q in rows])),
            ("previous", np.mean([one[b, q, q - 1] if q else 0.0 for b, q in rows])),
            ("itself", np.mean([one[b, q, q] for b, q in rows])),
            ("next", np.mean([one[b, q, q + 1] if q < 4 else 0.0 for b, q in rows])),
        ):
            assert getattr(head, name) == pytest.approx(float(value), abs=1e-6), name
        assert head.special["[CLS]"] == pytest.approx(float(np.mean([one[b, q, 0] for b, q in rows])))
    parts = HeadStatistics()
    parts.add({"a": first[:1], "b": second[:1]}, None, {"[CLS]": mark[:1]})
    parts.add({"a": first[1:], "b": second[1:]}, lengths[1:], {"[CLS]": mark[1:]})
    np.testing.assert_allclose([h[2:7] for h in parts.heads()], [h[2:7] for h in heads], atol=1e-6)
    assert len(str(statistics).splitlines()) == 7
    assert "[CLS]" in str(statistics)
    with pytest.raises(ValueError, match="no maps were added"):
        HeadStatistics().heads()


def test_divergences_equal_scipy_without_padding() -> None:
    maps = {"a": random_maps(seed=1), "b": random_maps(seed=2)}
    lengths = torch.tensor([5, 4])
    unlike = divergences(maps, lengths)
    heads = torch.cat(list(maps.values()), 1)
    for i in range(6):
        for j in range(6):
            each = [jensenshannon(heads[b, i, q], heads[b, j, q]) ** 2 for b, n in ((0, 5), (1, 4)) for q in range(n)]
            assert unlike[i, j] == pytest.approx(np.mean(each), abs=1e-6)


def test_similar_heads_are_close_and_in_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = random_maps(heads=1, seed=1), torch.eye(5).expand(2, 1, 5, 5)
    unlike = divergences({"a": torch.cat([one, other], 1), "b": torch.cat([other, one * 0.99 + 0.002], 1)})
    groups = clusters(unlike, 2).tolist()
    assert groups[0] == groups[3] != groups[1] == groups[2]
    points = place(unlike)
    assert (points[0] - points[3]).norm() < 0.1 * (points[0] - points[1]).norm()
    with pytest.raises(ValueError, match="5 clusters of 4 heads: expected two or more heads, and 1 to 4"):
        clusters(unlike, 5)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ValueError, match=r"pip install 'manyheads\[analysis\]'"):
        clusters(unlike, 2)


def test_points_in_a_plane_are_recovered() -> None:
    points = torch.randn(7, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    apart = torch.cdist(points, points)
    torch.testing.assert_close(torch.cdist(place(apart), place(apart)), apart)


def test_rollout_equals_the_product() -> None:
    maps = [random_maps(seed=seed) for seed in range(3)]
    mixed = rollout(maps)
    for row in range(2):
        wanted = np.eye(5)
        for map in maps:
            wanted = (0.5 * map[row].mean(0).numpy() + 0.5 * np.eye(5)) @ wanted
        np.testing.assert_allclose(mixed[row], wanted, rtol=1e-5)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(2, 5))
    torch.testing.assert_close(rollout(maps, residual=1.0), torch.eye(5).expand(2, 5, 5))
    with pytest.raises(ValueError, match=r"residual is 1\.5"):
        rollout(maps, residual=1.5)
    with pytest.raises(ValueError, match="no maps: expected"):
        rollout([])


@pytest.mark.parametrize("distilled", [False, True])
def test_vit_attention_distances_equal_a_loop_over_patches(distilled: bool) -> None:
    torch.manual_seed(1)
    config = preset("vit/2-8", width=8, layers=2, heads=2, feed_forward=8, patch=4, distilled=distilled)
    model, images = vit.ViT(config).train(), torch.randn(3, 1, 8, 8)
    distances = attention_distances(model, images)
    assert model.training
    model.eval()
    with torch.no_grad(), record(model) as maps:
        model(images)
    first, places = 1 + distilled, [(0, 0), (0, 4), (4, 0), (4, 4)]  # pixels
    for layer, calls in maps.items():
        for head in range(2):
            means = []
            for b in range(3):
                for q, here in enumerate(places):
                    weights = calls[0][b, head, first + q, first:]
                    away = [math.dist(here, there) for there in places]
                    means.append(float((weights * torch.tensor(away)).sum() / weights.sum()))
            assert float(distances[layer][head]) == pytest.approx(np.mean(means), rel=1e-5)


def test_importance_equals_the_loss_without_the_head() -> None:
    torch.manual_seed(1)
    settings = {"vocab": 20, "width": 8, "layers": 2, "heads": 2, "feed_forward": 8, "dropout": 0.0, "max_positions": 8}
    model = bert.Bert(preset("bert/tiny", **settings)).double().eval()
    for parameter in model.parameters():
        parameter.data.normal_()
    tokens = torch.randint(20, (2, 6))

    def loss() -> float:
        with torch.no_grad():
            return float(model.encode(tokens).square().sum(-1).log().sum() + model.encode(tokens)[..., 0].sum())

    silent = model.get_parameter("encoder.blocks.1.attention.output.weight").data
    silent[:, 4:] = 0  # of head 1
    growth = importance(model, loss)
    assert set(growth) == {"encoder.blocks.0.attention", "encoder.blocks.1.attention"}
    assert growth["encoder.blocks.1.attention"][1] == 0
    before = loss()
    weight = model.get_parameter("encoder.blocks.0.attention.output.weight").data
    weight[:, :4] = 0
    assert float(growth["encoder.blocks.0.attention"][0]) == pytest.approx(loss() - before, rel=1e-9)
    assert growth["encoder.blocks.0.attention"].abs().min() > 0
    assert list(importance(model, loss, layers=[1])) == ["encoder.blocks.1.attention"]
    with pytest.raises(ValueError, match="layer 2 does not exist: expected 0 to 1"):
        importance(model, loss, layers=[2])
    with pytest.raises(ValueError, match="the loss is nan with all heads"):
        importance(model, lambda: loss() + math.nan)


def test_senseless_settings_are_reported() -> None:
    map, statistics = torch.full((1, 2, 3, 3), 1 / 3), HeadStatistics()
    statistics.add({"a": map})
    with pytest.raises(ValueError, match="maps of b: expected a"):
        statistics.add({"b": map})
    with pytest.raises(ValueError, match="maps of no layer"):
        HeadStatistics().add({})
    with pytest.raises(ValueError, match="found 1 lengths up to 4: expected 1 lengths up to 3"):
        statistics.add({"a": map}, torch.tensor([4]))
    with pytest.raises(ValueError, match="1 head: expected two or more"):
        place(torch.zeros(1, 1))
    with pytest.raises(ValueError, match="1 clusters of 1 heads"):
        clusters(torch.zeros(1, 1), 1)
    with pytest.raises(ValueError, match=r"a map of shape \(1, 2, 3, 4\): expected the same tokens"):
        rollout([torch.zeros(1, 2, 3, 4)])
    model = vit.ViT(preset("vit/2-8"))
    with pytest.raises(ValueError, match="found 0 images and a ViT: expected images"):
        attention_distances(model, torch.zeros(0, 1, 8, 8))
