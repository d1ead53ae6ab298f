"""Measure training steps of a user's own model of eight transformer blocks on a GPU, by backprop and layer by layer.

python benchmarks/own_model.py results/own-model-h200.json
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

import faustnet
from faustnet.system.environment import environment

BATCH, BATCHES, TOKENS, WIDTH, BLOCKS = 256, 64, 64, 256, 8
SYSTEMS = {
    "backprop": (faustnet.Backprop, "sequential"),
    "sequential": (faustnet.FaustPrototype, "sequential"),
    "wavefront": (faustnet.FaustPrototype, "wavefront"),
}


def milliseconds(system: str, precision: str, device: torch.device) -> tuple[float, bool]:
    """Return the time of a step in the fastest of several epochs, and whether steps were recorded as a CUDA graph."""
    torch.manual_seed(0)
    kind, schedule = SYSTEMS[system]
    blocks = [
        nn.TransformerEncoderLayer(WIDTH, 8, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(BLOCKS)
    ]
    x = torch.randn(BATCH * BATCHES, TOKENS, WIDTH, device=device)
    y = torch.arange(len(x), device=device) % 10
    network = faustnet.Network(blocks, embedding=64, example=x[:2].cpu())
    trainer = faustnet.Trainer(
        kind(network, classes=10).to(device),
        train=(x, y),
        optimiser=lambda parameters: torch.optim.AdamW(parameters, 1e-3),
        schedule=schedule,
        batch_size=BATCH,
        precision=precision,
    )
    trainer.fit(6, verbose=False)
    assert trainer.loop is not None
    return min(epoch.seconds for epoch in trainer.history) / BATCHES * 1e3, trainer.loop.schedule.graph.recorded


def main() -> None:
    device = torch.device("cuda")
    found = []
    for precision in ("bfloat16", "tf32"):
        times = {system: milliseconds(system, precision, device) for system in SYSTEMS}
        for system, (time, recorded) in times.items():
            ratio = time / times["backprop"][0]
            print(f"{precision}  {system:10}  {time:.3f} ms  {ratio:.3f} of backprop{'' if recorded else ', not recorded'}")
            found.append({"precision": precision, "system": system, "ms": round(time, 3), "recorded": recorded})
    about = {"blocks": BLOCKS, "width": WIDTH, "tokens": TOKENS, "batch": BATCH}
    Path(sys.argv[1]).write_text(
        json.dumps({**about, "steps": found, "environment": environment(device, 0)}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
