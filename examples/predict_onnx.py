"""Predict the classes of image files with an exported model. Needs NumPy, Pillow and ONNX Runtime only.

pip install numpy pillow onnxruntime
faustnet export runs/mnist mnist.onnx
python examples/predict_onnx.py mnist.onnx photo.png another.jpg
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read_image(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Read an image file as uint8 in the shape of the model's images, (channels, height, width)."""
    channels, height, width = shape
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16-bit greyscale
            upright = Image.fromarray((np.asarray(upright) // 256).astype(np.uint8))
        converted = upright.convert("L" if channels == 1 else "RGB")
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        return np.array(converted).reshape(height, width, channels).transpose(2, 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("images", nargs="+", type=Path, help="image files of any size")
    arguments = parser.parse_args()

    try:
        session = onnxruntime.InferenceSession(arguments.model, providers=["CPUExecutionProvider"])
        about = session.get_modelmeta().custom_metadata_map
        names, voters, shape = (json.loads(about[key]) for key in ("class_names", "voters", "shape"))
    except Exception as error:  # ONNX Runtime has no base class for its errors
        parser.error(f"{arguments.model} is not a model that faustnet has exported ({error})")
    names = ["".join(letter if letter.isprintable() else "?" for letter in name) for name in names]
    if shape[0] not in (1, 3) or session.get_inputs()[0].type != "tensor(uint8)":
        parser.error(f"{arguments.model} was trained on rows of numbers, not on images")
    pixels = np.stack([read_image(path, shape) for path in arguments.images])
    votes, joined, prediction = session.run(["votes", "joined", "prediction"], {"images": pixels})
    for path, by_voter, scores, number in zip(arguments.images, votes, joined, prediction, strict=True):
        alone = ", ".join(f"{voter}: {names[best]}" for voter, best in zip(voters, by_voter.argmax(axis=1), strict=True))
        print(f"{path}: {names[number]} (score {scores[number]:.3f}; {alone})")


if __name__ == "__main__":
    main()
