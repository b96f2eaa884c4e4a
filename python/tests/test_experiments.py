"""The small experiments: what they count, and that what they show is so."""

import math

import numpy as np
import pytest

from rosetta_experiments import layer_costs, score_variance


def test_the_counts_are_those_of_the_paper():
    costs = layer_costs.costs(n=70, d=16, k=3)
    assert costs["recurrent"] == layer_costs.Cost(70 * 16**2, 70, 70)
    assert costs["convolutional"] == layer_costs.Cost(3 * 70 * 16**2, 1, 4)  # 3^4 = 81 >= 70
    assert costs["self-attention"] == layer_costs.Cost(70**2 * 16, 1, 1)
    assert [layer_costs.costs(n, 1, 3)["convolutional"].path for n in (1, 3, 9, 10, 243)] == [1, 1, 2, 3, 5]


def test_self_attention_is_quadratic_and_the_others_are_not():
    few, many = (layer_costs.costs(n, 64, 3) for n in (512, 1024))
    ratio = {layer: many[layer].operations / few[layer].operations for layer in layer_costs.LAYERS}
    assert ratio == {"recurrent": 2, "convolutional": 2, "self-attention": 4}


def test_the_layers_are_what_their_formulas_say():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 3)), rng.standard_normal((2, 3, 3))
    h = np.zeros(3)
    for row, got in zip(x, layer_costs.recurrent(x, w[0]), strict=True):
        h = np.tanh(w[0] @ h + row)
        np.testing.assert_allclose(got, h)
    y = layer_costs.convolutional(x, w)
    np.testing.assert_allclose(y[0], w[0] @ x[0])
    np.testing.assert_allclose(y[3], w[0] @ x[3] + w[1] @ x[2])
    assert layer_costs.convolutional(x[:1], w).shape == (1, 3)
    assert layer_costs.self_attention(x).shape == (4, 3)


def test_the_tables_can_be_drawn(capsys):
    layer_costs.main(["--n", "4,8", "--d", "4", "--repeats", "1"])
    printed = capsys.readouterr().out
    for word in (*layer_costs.LAYERS, "operations", "sequential steps", "longest path", "x "):
        assert word in printed
    score_variance.main(["--head-dims", "1,4", "--keys", "3", "--queries", "2"])
    assert "largest weight" in capsys.readouterr().out


def test_dot_products_have_the_variance_of_the_head_size():
    for head_dim in (16, 256):
        plain = score_variance.spread(head_dim, 64, 256, scaled=False)
        scaled = score_variance.spread(head_dim, 64, 256, scaled=True)
        assert plain.variance == pytest.approx(head_dim, rel=0.1)
        assert scaled.variance == pytest.approx(1, rel=0.1)
        assert scaled.largest < 0.15
        assert scaled.entropy > 0.85 * math.log(64)
    assert plain.largest > 0.85
    assert plain.entropy < 0.4


def test_the_same_seed_gives_the_same_numbers():
    one, two = (score_variance.spread(8, 4, 4, scaled=True, seed=3) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("arguments", [["--k", "1"], ["--n", "0"], ["--n", "x"], ["--d", "0"]], ids=str)
def test_refusals(arguments, capsys):
    with pytest.raises(SystemExit):
        layer_costs.main(arguments)
    assert "error" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        score_variance.main(["--keys", "0"])


@pytest.mark.parametrize("module", [layer_costs, score_variance])
def test_help(module, capsys):
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    assert f"python -m {module.__name__}" in capsys.readouterr().out
