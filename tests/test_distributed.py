"""One training on several ranks is that of one process, and ends well when a rank does not."""

import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch

import ranks
from faustnet.distributed import counts_of
from faustnet.distributed.arrangement import divided
from faustnet.errors import FaustnetError
from faustnet.slices import Slice

PROGRAM = Path(ranks.__file__)


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """By arrangement and case: how far several ranks are from one process, after two epochs in double precision."""
    file = tmp_path_factory.mktemp("ranks") / "found.json"
    subprocess.run([sys.executable, PROGRAM, "equality", "--steps", "8", "--out", file], check=True, timeout=240)
    found: dict[str, dict[str, float]] = {}
    for line in ranks.read(file)["equality"]["cases"]:
        found.setdefault(line["arrangement"], {})[line["case"]] = line["difference"]
    return found


@pytest.mark.parametrize("arrangement", [name for names in ranks.ARRANGEMENTS.values() for name in names])
def test_several_ranks_end_with_the_state_of_one_process(arrangement: str, differences: dict[str, dict[str, float]]) -> None:
    """Weights, what the optimiser remembers, generators, losses: of every local method, with everything random that there
    is, and rows that cannot be divided evenly."""
    assert set(ranks.LOCAL) <= differences[arrangement].keys()
    assert {case: found for case, found in differences[arrangement].items() if found > 1e-9} == {}


@pytest.mark.parametrize("costs", [[1, 1, 1, 1], [9, 1, 1, 1], [5, 4, 1, 1, 5], [1, 2, 3, 4, 5, 6], [1, 1, 100]])
def test_layers_are_divided_so_that_the_dearest_stage_is_cheapest(costs: list[int]) -> None:
    """Against all ways to do it."""
    for stages in range(1, len(costs) + 1):
        ways = [[0, *cuts, len(costs)] for cuts in combinations(range(1, len(costs)), stages - 1)]
        least = min(max(sum(costs[a:b]) for a, b in pairwise(way)) for way in ways)
        found = divided(costs, stages)
        assert [number for span in found for number in span] == list(range(len(costs)))
        assert all(found)
        assert max(sum(costs[number] for number in span) for span in found) == least


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(FaustnetError, match="2 layers, which cannot be divided among 3: start fewer ranks"):
        divided([1, 1], 3)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [("2x3", "for 6 ranks, but there are 4"), ("rows", "data, layers, or a grid"), ("0x4", "not '0x4'"), ("4x", "not '4x'")],
)
def test_an_arrangement_that_cannot_be_is_refused(parallel: str, said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        counts_of(parallel, 4)


@pytest.mark.parametrize(("total", "counts"), [(8, [2, 2, 2, 2]), (9, [3, 3, 3, 0]), (5, [2, 2, 1, 0]), (1, [1, 0, 0, 0])])
def test_slices_are_all_rows_in_order(total: int, counts: list[int]) -> None:
    parts = [Slice(None, rank, 4, total) for rank in range(4)]  # type: ignore[arg-type]
    assert all(part.counts == counts for part in parts)
    rows = torch.arange(total)
    assert torch.equal(torch.cat([rows[part.own] for part in parts]), rows)
