"""Train a small transformer, each block with its own loss, on texts with labels, and predict the class of other texts.

pip install 'faustnet[text]'
python examples/classify_texts.py
"""

import csv
import random
import tempfile
from pathlib import Path

import faustnet

QUESTIONS = {
    "person": ["who wrote {}?", "who was the author of {}?", "which woman painted {}?", "who directed {}?"],
    "place": ["where is {}?", "in which country is {}?", "what city has {}?", "where can I see {}?"],
    "number": ["how many people saw {}?", "how much does {} cost?", "how old is {}?", "how many parts has {}?"],
}
THINGS = [
    "this novel",
    "the tower",
    "the old bridge",
    "a famous film",
    "the museum",
    "that painting",
    "the opera",
    "the play",
]


def write_questions(path: Path, count: int) -> None:
    """Write a CSV file with the columns text and label."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(count):
            label = random.choice(list(QUESTIONS))
            writer.writerow([random.choice(QUESTIONS[label]).format(random.choice(THINGS)), label])


def main() -> None:
    random.seed(0)
    folder = Path(tempfile.mkdtemp())
    write_questions(folder / "train.csv", 300)
    write_questions(folder / "test.csv", 60)
    recipe = {
        "dataset": str(folder),
        "network": {"kind": "transformer", "widths": [32, 32], "heads": 4, "embedding": 16},
        "training": {"epochs": 2, "batch_size": 32},
        "optimiser": {"learning_rate": 0.003},
    }
    run = faustnet.train(recipe, folder / "run", device="cpu")
    print(f"test accuracy {run.metrics['test_accuracy']:.1%}")
    for text in ("Who painted the museum?", "How many steps has the tower?"):
        print(f"{text} {run.model().predict([text])[0].class_name}")


if __name__ == "__main__":
    main()
