"""Compare the tensor operations of a training step of two versions of the package.

    python benchmarks/operations.py OTHER/src src

A recorded step on a GPU is a fixed list of operations, so two versions with the same operations take the same time there.
This needs no GPU. Prints the number of operations of each system, without views, and those whose numbers differ.
"""

import argparse
import json
import os
import subprocess
import sys

COUNT = """
import collections, dataclasses, json, torch
from torch.utils._python_dispatch import TorchDispatchMode
from faustnet.bench.steps import Case, scheduled_step
from faustnet.methods import build
from faustnet.nn.precision import set_compute_dtype
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import SCHEDULES
try:
    from faustnet.nn.architectures import NetworkSettings
except ImportError:  # before bodies and heads
    from faustnet.nn.network import NetworkSettings

STEPS, CPU = 4, torch.device("cpu")

class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if not operation.is_view:
            self.counts[str(operation)] += 1
        return operation(*args, **(kwargs or {}))

def counted(name, order, case, network, options, optimiser):
    source = case.source(CPU)
    method = build(name, case.shape, case.classes, network, options)
    set_compute_dtype(method, case.precision)
    method.start(source)
    step = scheduled_step(SCHEDULES[order](method, source, OptimiserSettings(optimiser).create()), case)
    for _ in range(len(network.widths) + 1):  # until all layers of the wavefront are active
        step()
    with Counter() as counter:
        for _ in range(STEPS):
            step()
    return {operation: count / STEPS for operation, count in counter.counts.items()}

found = {}
for precision in ("float32", "bfloat16"):
    case = Case(layers=4, width=64, embedding=32, batch=64, shape=(3, 16, 16), precision=precision)
    systems = [("backprop", "sequential"), ("faust-representative", "sequential"), ("faust-representative", "wavefront")]
    for name, order in systems:
        local = name != "backprop"
        dense = NetworkSettings(case.widths, 32 if local else 0)
        options = {"representatives": 2, "contrast": 0.2} if local else {}
        found[f"dense adam {precision} {name} {order}"] = counted(name, order, case, dense, {}, "adam")
        for kind in ("vgg", "residual"):
            parts = {"embedding": 32, "head": 16, "length": "unit"} if local else {"embedding": 0}
            network = NetworkSettings((16, 16, 24, 24), kind=kind, pools=(2, 4), **parts)
            for optimiser in ("adam", "muon"):
                key = f"{kind} {optimiser} {precision} {name} {order}"
                found[key] = counted(name, order, case, network, options, optimiser)
print(json.dumps(found))
"""


def operations(source: str) -> dict[str, dict[str, float]]:
    """Return the number of each operation in a step, by system."""
    environment = {**os.environ, "PYTHONPATH": source}
    found = subprocess.run([sys.executable, "-c", COUNT], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, help="the folders src of two versions")
    before, after = map(operations, parser.parse_args().sources)
    for system in before:
        old, new = before[system], after[system]
        print(f"{system}  {sum(old.values()):.0f} → {sum(new.values()):.0f}")
        for name in sorted(old.keys() | new.keys()):
            if old.get(name, 0) != new.get(name, 0):
                print(f"    {name}  {old.get(name, 0):g} → {new.get(name, 0):g}")


if __name__ == "__main__":
    main()
