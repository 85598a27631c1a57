"""Layers of published networks: totals that their authors and libraries print, and what image sizes change."""

import pytest

from recipes.planning.networks import Network, known_network, network, network_names, profiled_network

# Parameters: torchvision 0.29's `sum(p.numel() for p in model.parameters())`, auxiliary outputs left out.
PARAMETERS = {
    "alexnet": 61_100_840,
    "densenet121": 7_978_856,
    "googlenet": 6_624_904,
    "inception3": 23_834_568,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
}
# Multiply-adds of one forward in 10^9, as torchvision's documentation of weights prints GFLOPS, 2 digits.
GIGA = {"resnet18": 1.81, "resnet50": 4.09, "resnet152": 11.51, "vgg16": 15.47, "alexnet": 0.71, "densenet121": 2.83}


def side_of(name: str) -> int:
    return 299 if name == "inception3" else 224


def test_every_network_has_a_total_here() -> None:
    assert sorted(PARAMETERS) == network_names()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_exact(name: str) -> None:
    assert network(name, side_of(name)).num_parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", GIGA)
def test_multiply_adds_are_those_published(name: str) -> None:
    assert network(name, 224).multiply_adds / 1e9 == pytest.approx(GIGA[name], rel=0.01)


def test_most_of_resnet50_is_ready_early_in_backward() -> None:
    done, ready, after = 0, 0, {}
    net = network("resnet50", 224)
    for layer in reversed(net.layers):
        done += layer.multiply_adds
        ready += layer.parameters
        after[done / net.multiply_adds] = ready / net.num_parameters
    assert max(share for time, share in after.items() if time <= 0.15) == pytest.approx(0.55, abs=0.01)
    assert max(share for time, share in after.items() if time <= 0.20) == pytest.approx(0.67, abs=0.01)


def test_images_of_half_the_side_cost_about_a_quarter() -> None:
    whole, half = network("resnet50", 224), network("resnet50", 112)
    assert half.num_parameters == whole.num_parameters
    assert half.multiply_adds / whole.multiply_adds == pytest.approx(0.25, abs=0.02)


def test_fewer_classes_shrink_only_the_last_layer() -> None:
    whole, few = network("resnet18", 224), network("resnet18", 224, 10)
    assert whole.num_parameters - few.num_parameters == 990 * (512 + 1)
    assert whole.layers[:-1] == few.layers[:-1]


def test_names_of_recipes_and_of_tables_mean_the_same() -> None:
    assert network("ResNet50", 224) is not None
    assert network("inception_v3", 299).num_parameters == network("Inception3", 299).num_parameters
    assert not known_network("SmallResNet")
    with pytest.raises(KeyError):
        network("SmallResNet", 32)


def test_a_network_of_known_arrays_only_takes_each_to_cost_the_same() -> None:
    net = profiled_network("Mine", (10, 30))
    assert isinstance(net, Network)
    assert (net.num_parameters, net.multiply_adds) == (40, 2)
    timed = profiled_network("Mine", (10, 30), (900, 100))
    assert [layer.multiply_adds for layer in timed.layers] == [900, 100]
