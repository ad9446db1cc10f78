"""Plugin of pytest: the fixture hca_pair and the mark gdx_hca. docs/fixture.md tells how to use them."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gdx._hca_pair import HcaPair

# The pair of an item's test, for its reports. Parts of the plugin are imported where they are used, because every run
# of pytest loads this file.
PAIR = pytest.StashKey["HcaPair"]()
# True in the process of a test with the mark gdx_hca.
INSIDE = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gdx", "software HCAs of gdx")
    group.addoption(
        "--gdx-seed", type=int, metavar="N", help="Seed of all tests' faults, to replay one that failed (drawn)"
    )
    group.addoption(
        "--gdx-folder", metavar="DIR", help="Where captures of failed tests are kept (the folder of tmp_path)"
    )
    group.addoption("--gdx-timeout-s", type=float, metavar="S", help="Bound of a test with the mark gdx_hca (60)")
    parser.addini("gdx_timeout_s", "Bound of a test with the mark gdx_hca, in seconds", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gdx_hca(loss=, corrupt=, duplicate=, reorder=, mark=, death=, rate_gbps=, mtu=, seed=, timeout_s=): "
        "the test opens verbs itself: it runs in a process of its own, which has two software HCAs, gdx0 and gdx1.",
    )


@pytest.fixture
def hca_pair(request: pytest.FixtureRequest) -> Generator[HcaPair, None, None]:
    """Two software HCAs on loopback addresses, with faults by seed.

    one, other = hca_pair; one.start(["server", ...]); other.run(["client", one.address]); hca_pair.set(loss=0.01);
    hca_pair.environment for a process that has both.
    """
    from gdx._hca_pair import HcaPair

    if request.config.stash.get(INSIDE, False):
        yield HcaPair.inherited()
        return
    pair = make_pair(request.config, getattr(request, "param", {}))
    request.node.stash[PAIR] = pair
    yield pair
    left = pair.end_processes()
    leaks = bool(left) and not pair.failed  # a test that has failed may not have come to their end
    pair.failed = pair.failed or leaks
    pair.close()
    if leaks:
        pytest.fail(tell_left(left), pytrace=False)


def make_pair(config: pytest.Config, options: dict[str, Any]) -> HcaPair:
    """Returns a pair, or fails the test in one line."""
    from gdx._hca_pair import HcaPair

    # pytest clears its own folder of all but the last runs.
    temporary = getattr(config, "_tmp_path_factory", None)
    folder = config.getoption("gdx_folder") or (str(temporary.getbasetemp()) if temporary is not None else None)
    try:
        return HcaPair.make(options, config.getoption("gdx_seed"), folder)
    except (OSError, TypeError, ValueError) as error:
        refused = f"hca_pair: {error}"
    pytest.fail(refused, pytrace=False)


def tell_left(left: list[str]) -> str:
    """Returns the failure of a test that leaves processes behind."""
    return f"the test left processes running, which were ended: {', '.join(left)}; end them in the test, or use start()"


def annotate(item: pytest.Item, report: pytest.TestReport) -> None:
    """Adds to a failed report what replays it."""
    pair = item.stash.get(PAIR, None)
    if pair is not None and report.failed:
        pair.failed = True
        # The id names the file as seen from pytest's root, and a line is typed where pytest was.
        path, _, test = item.nodeid.partition("::")
        path = os.path.relpath(item.config.rootpath / path, item.config.invocation_params.dir)
        report.sections.append(("gdx", pair.describe(f"{path}::{test}")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    annotate(item, outcome.get_result())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker("gdx_hca") is None or item.config.stash.get(INSIDE, False):
        return None
    from gdx._pytest_apart import run_apart

    run_apart(item, nextitem)
    return True
