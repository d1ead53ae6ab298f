"""Properties of all methods, then of each one."""

import pytest
import torch

from conftest import SMALL, run_to_end, small_method, small_trainer, started
from faustnet.data import ImageSource
from faustnet.errors import FaustnetError
from faustnet.losses import marginal_contrastive_loss, similarity_matching_loss, squared_distances, tuplet_loss
from faustnet.methods import METHODS, LocalMethod
from faustnet.methods.centroid import FIRST_IMAGES
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.precision import set_compute_dtype
from faustnet.nn.readout import ReadOut
from faustnet.nn.references import ClassIndex
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating
from faustnet.training.optimisers import OptimiserSettings

VARIANTS = [(name, {}) for name in METHODS] + [
    ("forward-forward", {"inference": "one-pass"}),
    ("collaborative-ff", {"collaborators": "earlier"}),
    ("faust-representative", {"representatives": 3}),
    ("faust-representative", {"representatives": 2, "choice": "k-means", "contrast": 0.5}),
    ("faust-prototype", {"prototypes": 3}),
    ("faust-representative", {"mixup": 0.2}),
    ("faust-representative", {"matching": 1.0, "mixup": 0.2, "final_scale": 0.05}),
    ("faust-prototype", {"prototypes": 2, "contrast": 0.5, "matching": 1.0, "mixup": 0.2, "final_scale": 0.05}),
    ("faust-centroid", {"momentum": 0.5, "matching": 1.0, "final_scale": 0.05}),
    ("backprop", {"mixup": 0.2}),
]
LOCAL = [(name, options) for name, options in VARIANTS if issubclass(METHODS[name], LocalMethod)]
CROSSING = ("backprop", "deep-supervision", "trifecta")  # whose gradients pass from layer to layer
FAST = OptimiserSettings(learning_rate=3e-3)
every_method = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
every_local_method = pytest.mark.parametrize(("name", "options"), LOCAL, ids=str)


def batch(source: ImageSource, size: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.arange(size)
    return source.plain(index), source.labels[index]


@pytest.mark.parametrize(("name", "options"), [variant for variant in VARIANTS if variant[0] not in CROSSING], ids=str)
@pytest.mark.parametrize(
    "network",
    [
        {},
        {"passes_on": "embedding"},
        {"length": "unit", "norm": "batch"},
        {"length": "learned", "dropout": 0.3, "input_dropout": 0.2},
        {"embedding": 0},
    ],
    ids=str,
)
def test_the_gradient_of_a_layers_loss_reaches_that_layer_alone(
    name: str, options: dict, network: dict, source: ImageSource
) -> None:
    method = started(name, source, NetworkSettings(**{"widths": (24, 20, 16), "embedding": 12, **network}), **options)
    losses = torch.cat(list(method.losses(*batch(source))))
    assert len(losses) == 3
    for number, loss in enumerate(losses):
        method.zero_grad()
        loss.backward(retain_graph=True)
        for other, layer in enumerate(method.network):
            gradients = [p.grad for p in layer.parameters()]
            if other == number:
                assert all(g is not None and g.abs().sum() > 0 for g in gradients)
            else:
                assert all(g is None or not g.any() for g in gradients)


@pytest.mark.parametrize(("name", "options"), VARIANTS[len(METHODS) :], ids=str)  # check_method trains the defaults
def test_training_lowers_every_loss(name: str, options: dict, source: ImageSource, held_out: ImageSource) -> None:
    trainer = run_to_end(small_trainer(name, source, held_out, options=options, optimiser=FAST, epochs=20))
    first, last = trainer.history[0], trainer.history[-1]
    for before, after in zip(first.losses, last.losses, strict=True):
        assert after < 0.7 * before
    assert last.accuracy > 0.6, "chance is 0.1"


@every_method
def test_scores_have_a_row_for_each_voter_and_do_not_depend_on_the_batch(
    name: str, options: dict, source: ImageSource
) -> None:
    method = started(name, source, **options).eval()
    with evaluating(method):
        method.finish(source)
        x, _ = batch(source, 7)
        scores = method.scores(x)
        assert scores.shape == (len(method.voters), 7, 10)
        assert scores.isfinite().all()
        torch.testing.assert_close(method.scores(x[2:4]), scores[:, 2:4], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_weights_and_another_one_others(
    name: str, source: ImageSource, held_out: ImageSource
) -> None:
    one, same, other = (run_to_end(small_trainer(name, source, held_out, epochs=1, seed=seed)) for seed in (3, 3, 4))
    states = [trainer.method.state_dict() for trainer in (one, same, other)]
    for key in states[0]:
        assert torch.equal(states[0][key], states[1][key])
    first = next(key for key in states[0] if key.endswith("weight"))
    assert not torch.equal(states[0][first], states[2][first])


@every_method
def test_options_with_impossible_values_are_refused(name: str, options: dict) -> None:
    for option, default in METHODS[name].options().items():
        impossible = {float: -1.0, int: 0 if default else -1, str: "nonsense"}  # 0 is possible if it is the default
        if type(default) in impossible:
            with pytest.raises(FaustnetError):
                small_method(name, **{option: impossible[type(default)]})


def test_the_gradient_of_fausts_local_loss_is_the_one_worked_out_by_hand(source: ImageSource) -> None:
    """L = mean over the batch of −log softmax(−s·d)_y with d = ‖f − r‖², through projection, layer norm, ReLU and linear."""
    method = started("faust-representative", source, scale=0.05).double()
    layer = method.network[0]
    x, y = batch(source, 16)
    rows = torch.cat([x.flatten(1), method.compared.flatten(1)]).double()
    method.local_loss(layer(rows)[1], y, 0).backward()

    with torch.no_grad():
        before = rows @ layer.body.linear.weight.T + layer.body.linear.bias
        hidden = before * (before > 0)
        centred = hidden - hidden.mean(1, keepdim=True)
        deviation = (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        activation = centred / deviation
        embedding = activation @ layer.projection.weight.T
        anchors, references = embedding[:16], embedding[16:]
        differences = anchors[:, None] - references[None]  # (B, C, e)
        weights = torch.exp(-0.05 * differences.square().sum(2))
        error = weights / weights.sum(1, keepdim=True)
        error[torch.arange(16), y] -= 1  # dL/d(−s·d), times B
        pull = (-0.05 / 16 * error)[:, :, None] * 2 * differences
        to_embedding = torch.cat([pull.sum(1), -pull.sum(0)])
        to_projection = to_embedding.T @ activation
        to_activation = to_embedding @ layer.projection.weight
        to_hidden = (
            to_activation
            - to_activation.mean(1, keepdim=True)
            - activation * (to_activation * activation).mean(1, keepdim=True)
        ) / deviation
        to_before = to_hidden * (before > 0)

    torch.testing.assert_close(layer.projection.weight.grad, to_projection)
    torch.testing.assert_close(layer.body.linear.weight.grad, to_before.T @ rows)
    torch.testing.assert_close(layer.body.linear.bias.grad, to_before.sum(0))


def test_the_representatives_are_the_images_that_were_named(source: ImageSource) -> None:
    named = [int((source.labels == number).nonzero()[1]) for number in range(10)]
    method = started("faust-representative", source, chosen=named[::-1])
    assert torch.equal(method.images, source.plain(torch.tensor(named)))


def test_k_representatives_are_joined_by_log_sum_exp_in_the_loss(source: ImageSource) -> None:
    method = started("faust-representative", source, representatives=3, scale=0.1)
    x, y = batch(source, 5)
    embedding = next(method.network.embeddings(method.rows(x, y)))
    anchors, references = embedding[:5], embedding[5:].view(10, 3, -1)
    expected = 0.0
    for anchor, own in zip(anchors, y.tolist(), strict=True):
        nearness = [(-0.1 * (anchor - members).square().sum(1)).exp().sum() for members in references]
        expected -= torch.log(nearness[own] / sum(nearness)).item()
    assert method.local_loss(embedding, y, 0).item() == pytest.approx(expected / 5, rel=1e-4)


@pytest.mark.parametrize("name", ["faust-representative", "faust-tuplet"])
def test_prediction_sums_the_distances_over_the_layers_and_takes_the_nearest(name: str, source: ImageSource) -> None:
    method = started(name, source).eval()
    with evaluating(method):
        method.make_ready(source)
        x, _ = batch(source, 12)
        embeddings, references = list(method.network.embeddings(x)), list(method.references)
        for layers in (None, [1], [2], [2, 1]):
            summed = [number - 1 for number in layers or [1, 2]]
            for number, found in enumerate(method.predict(x, layers).tolist()):
                totals = [
                    sum((embeddings[i][number] - references[i][c, 0]).norm().item() for i in summed) for c in range(10)
                ]
                assert totals[found] == pytest.approx(min(totals), rel=1e-4)


def test_there_is_no_prediction_from_a_layer_that_is_not_there(source: ImageSource) -> None:
    method = started("faust-representative", source)
    method.make_ready(source)
    for layers in ([3], [0], [], [1, 1]):
        with pytest.raises(FaustnetError, match="different numbers from 1 to 2"):
            method.predict(batch(source, 2)[0], layers)


def test_centroids_are_mean_embeddings_of_the_sampled_images(source: ImageSource) -> None:
    method = started("faust-triplet", source, centroid_images=7)
    with evaluating(method):
        method.finish(source)
        for number, sampled in enumerate(method.sampled):
            assert len(set(sampled.tolist())) == 7
            assert set(source.labels[sampled].tolist()) == {number}
            for layer, embedding in zip(method.references, method.network.embeddings(source.plain(sampled)), strict=True):
                torch.testing.assert_close(layer[number, 0], embedding.mean(0))


def test_a_class_with_fewer_images_than_the_centroid_wants_gives_all_it_has(source: ImageSource) -> None:
    method = started("faust-triplet", source, centroid_images=1000)
    assert [len(sampled) for sampled in method.sampled] == torch.bincount(source.labels).tolist()


def label_of(row: torch.Tensor, source: ImageSource) -> int:
    """Look up the class of an image in the training set."""
    everything = source.plain(torch.arange(len(source.labels))).flatten(1)
    return int(source.labels[(everything - row).abs().sum(1).argmin()])


def test_the_triplet_is_an_image_of_the_class_and_one_of_another(source: ImageSource) -> None:
    method = started("faust-triplet", source)
    x, y = batch(source, 40)
    rows = method.rows(x, y)
    assert torch.equal(rows[:40], x)
    others = rows[40:].view(40, 2, -1)
    assert [label_of(row, source) for row in others[:, 0]] == y.tolist()
    assert all(label_of(row, source) != own for row, own in zip(others[:, 1], y.tolist(), strict=True))


def test_the_tuplet_has_an_image_of_every_class_drawn_anew(source: ImageSource) -> None:
    method = started("faust-tuplet", source)
    x, y = batch(source, 6)
    rows = method.rows(x, y)
    drawn = rows[6:].view(6, 10, -1)
    assert [[label_of(row, source) for row in own] for own in drawn] == [list(range(10))] * 6
    assert not torch.equal(method.rows(x, y), rows)


def test_forward_forward_writes_the_true_label_and_never_it_as_the_wrong_one(source: ImageSource) -> None:
    method = started("forward-forward", source)
    x, y = batch(source, 48)
    seen = set()
    for _ in range(30):
        rows = method.rows(x, y).flatten(1)
        right, wrong = rows[:48, :10], rows[48:, :10]
        assert torch.equal(rows[:48, 10:], rows[48:, 10:])
        assert right.argmax(1).tolist() == y.tolist()
        assert (wrong.argmax(1) != y).all()
        assert ((rows[:, :10] != 0).sum(1) == 1).all()
        seen |= {(own, int(other)) for own, other in zip(y.tolist(), wrong.argmax(1), strict=True)}
    assert len(seen) == 90, "every wrong label of every class comes up"


def test_forward_forward_tries_every_label_in_turn(source: ImageSource) -> None:
    method = started("forward-forward", source)
    x, _ = batch(source, 5)
    with evaluating(method):
        scores = method.scores(x)
        for label in range(10):
            rows = x.flatten(1).clone()
            rows[:, :10] = 0
            rows[:, label] = 0.5 * 64**0.5
            for layer, activity in enumerate(method.network.embeddings(rows)):
                torch.testing.assert_close(scores[layer, :, label], activity.square().sum(1))
    assert method.forward_passes == 10


def test_the_one_pass_read_out_sees_all_layers_but_the_first_under_a_neutral_label(source: ImageSource) -> None:
    method = started("forward-forward", source, inference="one-pass")
    assert method.forward_passes == 1
    assert method.read_out.weight.shape == (10, SMALL.widths[1])
    with evaluating(method):
        method.finish(source)
        x, _ = batch(source, 5)
        rows = x.flatten(1).clone()
        rows[:, :10] = 0.1 * 0.5 * 64**0.5
        last = list(method.network.embeddings(rows))[1]
        normal = last / last.square().mean(1, keepdim=True).sqrt()
        torch.testing.assert_close(method.scores(x)[0], normal @ method.read_out.weight.T + method.read_out.bias)


def test_images_too_small_for_the_labels_are_refused() -> None:
    from faustnet.methods import build

    with pytest.raises(FaustnetError, match=r"Images must have more than 10 values, .*, got 9"):
        build("forward-forward", (1, 3, 3), 10, SMALL, {})


@pytest.mark.parametrize("collaborators", ["all", "earlier"])
def test_a_layer_counts_its_collaborators_goodness_as_a_constant(collaborators: str, source: ImageSource) -> None:
    """p = σ(‖f_i‖² + Σ_t ‖f_t‖² − θ), computed by hand; the part of the other layers is a constant for the gradient."""
    method = started("collaborative-ff", source, collaborators=collaborators, threshold=0.7)
    x, y = batch(source, 6)
    with seeded(3):
        (losses,) = method.losses(x, y)
    with seeded(3):
        rows = method.rows(x, y)
    squares = [f.square().sum(1) for f in method.network.embeddings(rows)]
    for number, own in enumerate(squares):
        others = [t for t in range(2) if (t < number if collaborators == "earlier" else t != number)]
        threshold = 0.7 * sum(SMALL.widths[t] for t in [*others, number])
        total = own + sum(squares[t].detach() for t in others) - threshold
        expected = -(torch.sigmoid(total[:6]).log() + torch.sigmoid(-total[6:]).log()).mean() / 2
        assert losses[number].item() == pytest.approx(expected.item(), rel=1e-4)
        weight = method.network[number].body.linear.weight
        mine, written_out = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in (losses[number], expected))
        torch.testing.assert_close(mine, written_out, rtol=1e-3, atol=1e-6)


def test_ffcms_margin_falls_from_layer_to_layer(source: ImageSource) -> None:
    method = started("ffcm", source, NetworkSettings((24, 20, 16), 12), first_margin=0.3, last_margin=0.1)
    x, y = batch(source)
    losses = torch.cat(list(method.losses(x, y)))
    for loss, margin, embedding in zip(losses, (0.3, 0.2, 0.1), method.network.embeddings(x), strict=True):
        expected = marginal_contrastive_loss(embedding, y, torch.tensor(margin), 0.15)
        torch.testing.assert_close(loss, expected)


def test_a_read_out_is_the_minimum_of_its_loss(source: ImageSource) -> None:
    """Its gradient is zero: Σ (p − t) x / n + decay · w, and Σ (p − t) for the bias."""
    read_out = ReadOut(64, 10)
    rows, labels = source.plain(torch.arange(320)).flatten(1), source.labels
    with torch.no_grad():
        read_out.fit(rows, labels, 0.01)
    error = read_out(rows).softmax(1) - torch.nn.functional.one_hot(labels, 10)
    assert (error.T @ rows / 320 + 0.01 * read_out.weight).abs().max() < 1e-3
    assert error.mean(0).abs().max() < 1e-3
    assert (read_out(rows).argmax(1) == labels).float().mean() > 0.95


def test_prototypes_are_references_that_the_layers_own_loss_moves(source: ImageSource) -> None:
    method = started("faust-prototype", source, NetworkSettings((24, 20), 12, length="learned"), prototypes=2, scale=0.7)
    x, y = batch(source, 5)
    rows, layer = x.flatten(1), method.network[0]
    _, embedding = layer(rows)
    assert embedding.shape == (5 + 20, 12)
    with evaluating(method):
        assert torch.equal(layer(rows)[1], embedding[:5]), "they come along in training only"
        method.finish(source)
    assert torch.equal(next(iter(method.references)).flatten(0, 1), embedding[5:])
    losses = torch.cat(list(method.losses(x, y)))
    expected = 0.0
    for anchor, own in zip(embedding[:5], y.tolist(), strict=True):
        nearness = [(-0.7 * (anchor - two).square().sum(1)).exp().sum() for two in embedding[5:].view(10, 2, -1)]
        expected -= torch.log(nearness[own] / sum(nearness)).item() / 5
    assert losses[0].item() == pytest.approx(expected, rel=1e-4)
    losses[0].backward()
    assert layer.prototypes.grad.abs().sum(1).all()
    assert not method.network[1].prototypes.grad.any()


@pytest.mark.parametrize("name", ["backprop", "faust-representative", "faust-prototype"])
def test_mixup_blends_neighbours_and_their_labels(name: str, source: ImageSource) -> None:
    """The loss is linear in the labels: own share of the loss for the own label, and the rest of that for the next one's."""
    method, plain = started(name, source, mixup=0.5), started(name, source)
    x, y = batch(source, 6)
    own = method.mixing.own(6)
    assert (own >= 0.5).all()
    assert own.std() > 0.01
    blended = torch.stack([own[i] * x[i] + (1 - own[i]) * x[(i + 1) % 6] for i in range(6)])
    each = []
    for labels in (y, y.roll(-1)):
        if name == "backprop":
            each.append(torch.nn.functional.cross_entropy(plain.scores(blended)[0], labels, reduction="none"))
        else:
            scores = -0.02 * squared_distances(*next(plain.network.embeddings(plain.rows(blended, y))).split([6, 10]))
            each.append(torch.nn.functional.cross_entropy(scores, labels, reduction="none"))
    expected = (own * each[0] + (1 - own) * each[1]).mean()
    torch.testing.assert_close(next(iter(method.losses(x, y)))[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype"])
def test_contrast_adds_the_contrastive_loss_of_the_anchors_alone(name: str, source: ImageSource) -> None:
    plain, both = (started(name, source, contrast=weight, temperature=0.3) for weight in (0.0, 0.7))
    x, y = batch(source)
    embedding = next(plain.network.embeddings(plain.rows(x, y)))
    contrast = marginal_contrastive_loss(embedding[:48], y, torch.tensor(0.0), 0.3)
    one, other = (method.local_loss(embedding, y, 0) for method in (plain, both))
    torch.testing.assert_close(other, one + 0.7 * contrast)


@pytest.mark.parametrize("mixup", [0.0, 0.5])
@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype"])
def test_matching_adds_the_similarity_matching_loss_of_the_anchors_alone(
    name: str, mixup: float, source: ImageSource
) -> None:
    plain, both = (started(name, source, matching=weight, mixup=mixup) for weight in (0.0, 0.7))
    x, y = batch(source)
    embedding = next(both.network.embeddings(both.rows(x, y)))
    matching = similarity_matching_loss(embedding[:48], y, both.mixing.own(48))
    one, other = (method.local_loss(embedding, y, 0) for method in (plain, both))
    torch.testing.assert_close(other, one + 0.7 * matching)


@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype", "faust-centroid"])
def test_the_scale_goes_by_equal_ratios_to_the_one_that_predicts(name: str, source: ImageSource) -> None:
    method = started(name, source, scale=0.02, final_scale=0.32)
    assert method.scale == 0.32
    x, y = batch(source, 6)
    for share, scale in ((0.0, 0.02), (0.25, 0.04), (0.5, 0.08), (1.0, 0.32), (0.75, 0.16)):
        method.enter_epoch(share)
        scheduled, plain = method, started(name, source, scale=scale)
        if name == "faust-centroid":  # what it has taken in
            plain.load_state_dict(scheduled.state_dict())
        for mine, other in zip(scheduled.losses(x, y), plain.losses(x, y), strict=True):
            torch.testing.assert_close(mine, other)


def test_centroids_are_running_means_that_no_batch_outweighs_by_coming_first(source: ImageSource) -> None:
    """The weight of a batch is the momentum to the power of the number of later batches with its class."""
    method = started("faust-centroid", source, momentum=0.6)
    begun = [layer.clone() for layer in method.references]
    means: list[list[list[torch.Tensor]]] = [[[layer[c, 0]] for c in range(10)] for layer in begun]
    for first in (0, 1, 2):
        x, y = source.plain(torch.arange(first, first + 4)), source.labels[first : first + 4]
        for layer, embedding in zip(means, method.network.embeddings(x), strict=True):
            for number in set(y.tolist()):
                layer[number].append(embedding[y == number].mean(0).detach())
        list(method.losses(x, y))
    assert {len(found) for found in means[0]} > {1, 2}, "some classes came several times, some never"
    for layer, references, start in zip(means, method.references, begun, strict=True):
        for number, found in enumerate(layer):
            weights = [0.6**age for age in reversed(range(len(found)))]
            expected = sum(w * mean for w, mean in zip(weights, found, strict=True)) / sum(weights)
            torch.testing.assert_close(references[number, 0], expected)
            assert len(found) > 1 or torch.equal(references[number], start[number])


def test_centroids_begin_as_means_of_training_images_of_their_class(source: ImageSource) -> None:
    method = started("faust-centroid", source)
    with seeded(1):
        index = ClassIndex(source.labels, 10)
        sampled = [index.sample(number, FIRST_IMAGES) for number in range(10)]
    for number, positions in enumerate(sampled):
        assert set(source.labels[positions].tolist()) == {number}
        for layer, embedding in zip(method.references, method.network.embeddings(source.plain(positions)), strict=True):
            torch.testing.assert_close(layer[number, 0], embedding.mean(0))


def test_the_gradient_flows_through_the_batchs_share_of_the_centroids(source: ImageSource) -> None:
    """After a start with one batch a share is (1 − m) / (1 − m²)."""
    method = started("faust-centroid", source, NetworkSettings((24, 20), 12), momentum=0.5).double()
    x, y = batch(source, 30)
    x = x.double()
    kept, layer = next(iter(method.references)).clone()[:, 0], method.network[0]
    embedding = layer(x.flatten(1))[1]
    centroids = [(kept[c] + 2 * embedding[y == c].mean(0)) / 3 if c in y else kept[c] for c in range(10)]
    expected = tuplet_loss(squared_distances(embedding, torch.stack(centroids)), y, 0.02)
    loss = next(iter(method.losses(x, y)))[0]
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(
        torch.autograd.grad(loss, list(layer.parameters())),
        torch.autograd.grad(expected, list(layer.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(next(iter(method.references))[:, 0], torch.stack(centroids).detach())


def test_a_class_without_images_has_no_centroid(source: ImageSource) -> None:
    index = (source.labels != 3).nonzero().flatten()
    images = ImageSource(source.images.take(index), source.scaling, source.class_names)
    with pytest.raises(FaustnetError, match="Class '3' has no training image"):
        started("faust-centroid", images)


OTHERWISE = {
    "momentum": 0.5,
    "label_smoothing": 0.3,
    "threshold": 2.0,
    "label_length": 1.0,
    "inference": "one-pass",
    "scale": 0.5,
    "margin": 0.2,
    "sharpness": 1.0,
    "temperature": 0.5,
    "first_margin": 0.1,
    "last_margin": 0.4,
    "collaborators": "earlier",
    "choice": "k-means",
    "prototypes": 2,
    "mixup": 0.4,
    "contrast": 0.5,
    "matching": 0.5,
    "centroid_images": 3,
    "representatives": 2,
    "chosen": "named",
    "representatives_per_step": 1,
    "classes_per_step": "batch",
}
BESIDES = {"temperature": {"contrast": 0.5}, "representatives_per_step": {"representatives": 2}}  # so that it has an effect


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in METHODS for option in METHODS[name].options()])
def test_every_option_changes_what_is_learned_or_predicted(name: str, option: str, source: ImageSource) -> None:
    named = tuple(int((source.labels == number).nonzero()[2]) for number in range(10))
    default = METHODS[name].options()[option]
    value = named if option == "chosen" else OTHERWISE.get(option, default if isinstance(default, str) else default * 2 + 1)

    def outcome(**options: object) -> torch.Tensor:
        method = started(name, source, **options)
        x, y = batch(source)
        x, y = x[y > 0], y[y > 0]  # not all classes
        method.enter_epoch(0.5)
        with seeded(2):
            losses = torch.cat([loss.detach() for loss in method.losses(x, y)])
        with evaluating(method):
            method.finish(source)
            return torch.cat([losses, method.scores(x).mean(0).flatten()])

    besides = {key: value for key, value in BESIDES.get(option, {}).items() if key in METHODS[name].options()}
    assert not torch.allclose(outcome(**besides), outcome(**besides, **{option: value}))


def test_dropout_reaches_backprops_read_out(source: ImageSource) -> None:
    method = started("backprop", source, NetworkSettings((24,), dropout=0.5))
    x, y = batch(source)
    assert next(method.losses(x, y)) != next(method.losses(x, y))


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_in_single_precision_whatever_is_multiplied_in(name: str, source: ImageSource) -> None:
    method = started(name, source)
    set_compute_dtype(method, "bfloat16")
    assert all(losses.dtype == torch.float32 for losses in method.losses(*batch(source)))


def test_batch_norm_refuses_single_images(source: ImageSource, held_out: ImageSource) -> None:
    with pytest.raises(FaustnetError, match="must be at least 2 for networks with batch norm, got 1"):
        small_trainer("backprop", source, held_out, network=NetworkSettings((8,), norm="batch"), batch_size=1)


@pytest.mark.parametrize(
    ("name", "options"), [("backprop", {"mixup": 0.5}), ("forward-forward", {}), ("faust-centroid", {})]
)
def test_labels_out_of_range_are_refused(name: str, options: dict[str, float], source: ImageSource) -> None:
    method, (x, y) = started(name, source, **options), batch(source)
    with pytest.raises(RuntimeError, match="out of bounds"):
        list(method.losses(x, torch.full_like(y, 10)))


def test_evaluating_ends_in_the_mode_in_which_it_began() -> None:
    method = small_method("faust-representative")
    method.train()
    with evaluating(method):
        assert not any(module.training for module in method.modules())
        with evaluating(method):
            method.network.train()
        assert not any(module.training for module in method.modules()), "what a block changes is set back"
    assert all(module.training for module in method.modules())
