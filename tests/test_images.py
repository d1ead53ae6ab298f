import pytest
import torch

from faustnet.data import Augmentation, DataSet, Images, ImageSource, Scaling
from faustnet.errors import FaustnetError

GRID = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5).to(torch.uint8)


def test_scaling_gives_every_channel_mean_0_and_variance_1(digits: DataSet) -> None:
    pixels = torch.randint(256, (1500, 3, 4, 4), dtype=torch.uint8)
    pixels[:, 1] = 7
    images = Images(pixels, torch.zeros(1500, dtype=torch.long))
    scaled = Scaling.of(images)(images.pixels)
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std((0, 2, 3)), torch.tensor([1.0, 0.0, 1.0]), atol=1e-3, rtol=0)


def reflected(position: int, length: int) -> int:
    if position < 0:
        return -position
    return 2 * (length - 1) - position if position >= length else position


def test_augmentation_gives_a_shifted_and_maybe_mirrored_image_each_time() -> None:
    torch.manual_seed(0)
    augmentation, crop = Augmentation(flip=True, crop=2), 2
    possible = {}
    for down in range(-crop, crop + 1):
        for right in range(-crop, crop + 1):
            rows = [reflected(y + down, 4) for y in range(4)]
            for flip in (False, True):
                columns = [reflected((4 - x if flip else x) + right, 5) for x in range(5)]
                possible[(down, right, flip)] = GRID[1][:, rows][:, :, columns]
    seen = set()
    for picked in augmentation.pick(GRID, torch.ones(2000, dtype=torch.long)):
        matches = [key for key, image in possible.items() if torch.equal(image, picked)]
        assert matches
        seen.update(matches)
    assert seen == set(possible)


def test_augmented_images_are_scaled_like_plain_ones_and_plain_without_augmentation() -> None:
    images = Images(GRID, torch.tensor([0, 1]))
    scaling = Scaling.of(images)
    index = torch.tensor([1, 0, 1])
    plain = ImageSource(images, scaling, ["a", "b"])
    assert torch.equal(plain.augmented(index), plain.plain(index))
    shifted = ImageSource(images, scaling, ["a", "b"], Augmentation(crop=1)).augmented(index)
    assert set(shifted.unique().tolist()) <= set(plain.plain(index).unique().tolist())


def test_cutout_hides_a_square_of_each_image_in_all_channels_and_may_stick_out() -> None:
    torch.manual_seed(0)
    images = torch.ones(3000, 3, 4, 5)
    hidden = Augmentation(cutout=3).hide(images) == 0
    assert torch.equal(hidden, hidden[:, :1].expand_as(hidden))
    seen = {tuple(map(tuple, one.tolist())) for one in hidden[:, 0]}
    expected = set()
    for y in range(4):
        for x in range(5):
            square = [[abs(row - y) <= 1 and abs(column - x) <= 1 for column in range(5)] for row in range(4)]
            expected.add(tuple(map(tuple, square)))
    assert seen == expected
    assert images.all(), "what came in is left alone"


def test_a_crop_as_large_as_the_image_is_refused() -> None:
    Augmentation(crop=3).check((1, 4, 5))
    with pytest.raises(FaustnetError, match="stay below 4"):
        Augmentation(crop=4).check((1, 4, 5))
    Augmentation(cutout=4).check((1, 4, 5))
    with pytest.raises(FaustnetError, match="use 4 at most"):
        Augmentation(cutout=5).check((1, 4, 5))


def test_a_split_keeps_every_class_and_loses_no_image(digits: DataSet) -> None:
    kept, held = digits.train.split(0.25, seed=1)
    assert len(kept) + len(held) == len(digits.train)
    together = torch.cat([kept.pixels, held.pixels]).flatten(1).float().sum(1).sort().values
    assert torch.equal(together, digits.train.pixels.flatten(1).float().sum(1).sort().values)
    share = torch.bincount(held.labels) / torch.bincount(digits.train.labels)
    torch.testing.assert_close(share, torch.full((10,), 0.25), atol=0.02, rtol=0)
    assert len(digits.train.split(100, seed=1)[1]) == 100


def test_a_split_that_cannot_be_is_refused() -> None:
    images = Images(GRID, torch.tensor([0, 1]))
    with pytest.raises(FaustnetError, match="2 images cannot be split"):
        images.split(0.5, seed=0)
