import math

import pytest
import torch

from faustnet.data import Augmentation, DataSet, Images, ImageSource, Scaling
from faustnet.data.augmentation import warped
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


def test_a_quarter_turn_is_anticlockwise_and_about_the_middle() -> None:
    images = torch.randn(4, 3, 5, 5)
    angles = torch.tensor([0.0, 90.0, 180.0, -90.0]).deg2rad()
    for turned, image, quarters in zip(warped(images, angles, torch.ones(4, 2)), images, (0, 1, 2, -1), strict=True):
        torch.testing.assert_close(turned, torch.rot90(image, quarters, (1, 2)), atol=1e-5, rtol=0)


def test_turning_an_oblong_image_does_not_shear_it() -> None:
    """Where an image is a plane, what is inside stays that plane, turned."""
    down, right = torch.arange(7.0) - 3, torch.arange(15.0) - 7
    plane = (down[:, None] * 2 + right[None, :]).expand(1, 1, 7, 15)
    angle = math.radians(20)
    turned = warped(plane, torch.tensor([angle]), torch.ones(1, 2))[0, 0]
    for y in range(7):
        for x in range(15):
            from_down = (x - 7) * math.sin(angle) + (y - 3) * math.cos(angle)
            from_right = (x - 7) * math.cos(angle) - (y - 3) * math.sin(angle)
            expected = 2 * min(max(from_down, -3), 3) + min(max(from_right, -7), 7)  # the border's beyond the border
            assert turned[y, x].item() == pytest.approx(expected, abs=1e-4)


def test_zoom_stretches_height_and_width_apart() -> None:
    down, right = torch.arange(6.0) - 2.5, torch.arange(9.0) - 4
    image = torch.stack([down[:, None].expand(6, 9), right[None, :].expand(6, 9)])
    stretch = torch.tensor([[1.5, 0.5], [0.8, 1.25]])
    found = warped(image.expand(2, 2, 6, 9), torch.zeros(2), stretch)
    for one, (tall, wide) in zip(found, stretch.tolist(), strict=True):
        torch.testing.assert_close(one[0], (down / tall).clamp(-2.5, 2.5)[:, None].expand(6, 9))
        torch.testing.assert_close(one[1], (right / wide).clamp(-4, 4)[None, :].expand(6, 9))


def test_turns_and_stretches_are_drawn_for_each_image_within_bounds_and_only_where_asked_for() -> None:
    down, right = torch.arange(9.0) - 4, torch.arange(9.0) - 4
    images = torch.stack([down[:, None].expand(9, 9), right[None, :].expand(9, 9)]).expand(2000, 2, 9, 9)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert Augmentation(flip=True, crop=1).warp(images) is images
    assert torch.equal(torch.get_rng_state(), before)
    turned = Augmentation(rotation=30).warp(images)
    degrees = torch.atan2(turned[:, 0, 4, 5], turned[:, 1, 4, 5]).rad2deg()  # of the pixel right of the middle
    assert -30.01 < degrees.min() < -29
    assert 29 < degrees.max() < 30.01
    assert degrees.mean().abs() < 1
    stretched = Augmentation(zoom=0.25).warp(images)
    factors = 1 / torch.stack([stretched[:, 0, 5, 4], stretched[:, 1, 4, 5]])
    assert 0.75 <= factors.min() < 0.76
    assert 1.24 < factors.max() <= 1.2501
    assert torch.corrcoef(factors)[0, 1].abs() < 0.1, "each side apart"
    torch.testing.assert_close(stretched[:, 0, 4, 5], torch.zeros(2000), atol=1e-5, rtol=0)


def test_a_source_turns_after_scaling_and_before_it_hides() -> None:
    images = Images(torch.randint(256, (2, 1, 9, 9), dtype=torch.uint8), torch.tensor([0, 1]))
    index = torch.tensor([1, 0, 1])
    source = ImageSource(images, Scaling.of(images), ["a", "b"], Augmentation(cutout=3, rotation=40, zoom=0.2))
    torch.manual_seed(0)
    found = source.augmented(index)
    torch.manual_seed(0)
    assert torch.equal(found, source.augmentation.hide(source.augmentation.warp(source.plain(index))))


def test_a_crop_as_large_as_the_image_is_refused() -> None:
    Augmentation(crop=3).check((1, 4, 5))
    with pytest.raises(FaustnetError, match="crop must be less than 4"):
        Augmentation(crop=4).check((1, 4, 5))
    Augmentation(cutout=4).check((1, 4, 5))
    with pytest.raises(FaustnetError, match="cutout must be at most 4"):
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
    with pytest.raises(FaustnetError, match=r"training\.validation=0\.5 is not possible for 2 training images"):
        images.split(0.5, seed=0)
