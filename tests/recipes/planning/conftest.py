"""Plans and forecasts of the library's recipes on its clusters."""

from collections.abc import Callable

import pytest

from recipes import open_cluster, open_recipe
from recipes.planning.cluster import Cluster
from recipes.planning.forecast import Forecast, forecast
from recipes.planning.planner import Plan, plan
from trainers.launch.vocabulary import vocabulary


@pytest.fixture(scope="session")
def planned() -> Callable[..., Plan]:
    """`planned(recipe, cluster, workers, *overrides)`."""

    def make(recipe: str, cluster: str | Cluster, workers: int, *overrides: str) -> Plan:
        words = vocabulary()
        opened = open_recipe(recipe, vocabulary=words, overrides=overrides)
        where = open_cluster(cluster, vocabulary=words) if isinstance(cluster, str) else cluster
        return plan(recipe=opened.recipe, dataset=opened.dataset, cluster=where, workers=workers)

    return make


@pytest.fixture(scope="session")
def foretold(planned: Callable[..., Plan]) -> Callable[..., Forecast]:
    """`foretold(recipe, cluster, workers, *overrides)`, of images of 224 pixels."""

    def make(recipe: str, cluster: str | Cluster, workers: int, *overrides: str) -> Forecast:
        return forecast(planned(recipe, cluster, workers, *overrides))

    return make
