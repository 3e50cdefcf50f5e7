"""Evaluators on frozen features, against golden data and against values worked out by hand."""

import numpy as np
import pytest

from keras_vit import evaluators
from keras_vit.evaluators import fewshot, knn, linear_fit, linear_probe


def blobs(count, num_classes=4, width=8, spread=0.3, seed=0):
    """Features around one random point per class."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(num_classes, width))
    labels = rng.integers(0, num_classes, count)
    return (centers[labels] + spread * rng.normal(size=(count, width))).astype(np.float32), labels


def test_ridge_gives_the_reference_accuracies(golden):
    data = golden("fewshot")
    num_classes = int(data["y_train"].max()) + 1
    classifier = fewshot.RidgeClassifier(data["x_train"], data["y_train"], num_classes)
    for l2, expected in zip(data["l2"], data["accuracy"], strict=True):
        accuracy = (classifier.predict(data["x_test"], l2) == data["y_test"]).mean()
        # Accuracies are multiples of 1/60, stored as float32.
        assert accuracy == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("count", [5, 40])
def test_ridge_solves_the_normal_equations(count):
    # Fewer examples than features and more of them take different ways to the same solution.
    features, labels = blobs(count, width=12)
    classifier = fewshot.RidgeClassifier(features, labels, 4)
    white = (features - features.mean(0, dtype=np.float64)) / (features.astype(np.float64).std(0) + 1e-5)
    x = np.concatenate([white, np.full((count, 1), 100.0)], axis=1)
    y = 2.0 * np.eye(4)[labels] - 1.0
    for l2 in (0.1, 1024.0):
        expected = np.linalg.solve(x.T @ x + l2 * np.eye(13), x.T @ y)
        found = (classifier.left / (classifier.eigenvalues + l2)) @ classifier.right
        np.testing.assert_allclose(found, expected, atol=1e-8)  # float64, condition about 1e6


def test_shots_are_drawn_per_class_and_depend_on_the_seed():
    labels = np.repeat([0, 1, 2], [3, 10, 10])
    chosen = fewshot.draw(labels, 5, 3, seed=0)
    np.testing.assert_array_equal(labels[chosen], [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
    assert len(set(chosen.tolist())) == len(chosen)
    # As the reference draws: one permutation a class, from one generator.
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(chosen[:3], rng.permutation(np.arange(3)))
    np.testing.assert_array_equal(chosen[3:8], rng.permutation(np.arange(3, 13))[:5])
    assert fewshot.draw(labels, 5, 3, seed=1).tolist() != chosen.tolist()


def test_fewshot_reports_mean_and_spread_and_grows_with_the_shots():
    result = fewshot.FewShot(shots=(1, 25), seeds=5).evaluate(blobs(400, spread=1.2), blobs(400, spread=1.2, seed=1), 4)
    assert set(result) == {"1shot", "1shot_std", "25shot", "25shot_std"}
    assert result["25shot"] > result["1shot"] > 0.25
    # Of all draws, not an estimate from a sample of them.
    (features, labels), (test_features, test_labels) = blobs(400, spread=1.2), blobs(400, spread=1.2, seed=1)
    for name, shots in (("1shot", 1), ("25shot", 25)):
        drawn = [fewshot.draw(labels, shots, 4, seed) for seed in range(5)]
        fits = [fewshot.RidgeClassifier(features[chosen], labels[chosen], 4) for chosen in drawn]
        accuracies = np.array([(fit.predict(test_features, fewshot.FewShot.l2) == test_labels).mean() for fit in fits])
        mean = accuracies.sum() / 5
        assert result[name] == pytest.approx(mean)
        assert result[f"{name}_std"] == pytest.approx((((accuracies - mean) ** 2).sum() / 5) ** 0.5)
    single = fewshot.FewShot(shots=(1,), seeds=1).evaluate(blobs(400, spread=1.2), blobs(400, spread=1.2, seed=1), 4)
    assert single["1shot_std"] == 0


@pytest.mark.parametrize("evaluator", [knn.Knn(neighbors=1), fewshot.FewShot(shots=1), linear_probe.LinearProbe()])
@pytest.mark.parametrize("broken", ["training set", "test set"])
def test_features_that_are_not_finite_are_refused(evaluator, broken):
    train, test = blobs(20), blobs(20)
    (train if broken == "training set" else test)[0][[3, 7], 0] = np.nan, np.inf
    with pytest.raises(ValueError, match=f"{broken} are not finite for 2 of 20"):
        evaluator.evaluate(train, test, 4)


def test_knn_accuracy_matches_hand_computation():
    train = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.1]]), np.array([0, 1, 2])
    test = np.array([[5.0, 0.0], [0.0, 0.1], [1.0, 0.04]]), np.array([0, 1, 2])
    # Cosines do not see lengths: (5, 0) is nearest to (1, 0), (0, .1) to (0, 2), (1, .04) to (3, .1).
    assert knn.Knn(neighbors=(1, 3)).evaluate(train, test, 3) == {"k1": 1.0, "k3": 1.0}


def test_knn_votes_are_weighted_by_temperature():
    # One near neighbor of class 0 and two more distant ones of class 1.
    train = np.array([[1.0, 0.0], [1.0, 0.5], [1.0, -0.5]]), np.array([0, 1, 1])
    test = np.array([[1.0, 0.0]]), np.array([0])
    cosine = 1 / np.sqrt(1.25)
    # exp(1 / T) > 2 exp(cosine / T) while T < (1 - cosine) / log 2.
    limit = (1 - cosine) / np.log(2)
    assert knn.Knn(neighbors=(3,), temperature=0.99 * limit).evaluate(train, test, 2) == {"k3": 1.0}
    assert knn.Knn(neighbors=(3,), temperature=1.01 * limit).evaluate(train, test, 2) == {"k3": 0.0}


def test_knn_with_many_examples_matches_the_definition():
    train, test = blobs(300, spread=0.8), blobs(1_100, spread=0.8, seed=1)  # more than one block of rows
    result = knn.Knn(neighbors=(1, 20, 500)).evaluate(train, test, 4)
    assert set(result) == {"k1", "k20"}  # there are no 500 neighbors

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    cosines = unit(test[0]) @ unit(train[0]).T
    right = 0
    for row, label in zip(cosines, test[1], strict=True):
        nearest = np.argsort(-row)[:20]
        votes = np.bincount(train[1][nearest], weights=np.exp(row[nearest].astype(np.float64) / 0.07), minlength=4)
        right += votes.argmax() == label
    assert result["k20"] == right / len(test[1])


def test_neighbors_at_equal_distance_are_counted_in_their_order():
    same = np.ones((50, 2)), np.repeat([1, 0], [1, 49])  # only the first is of class 1
    found = knn.Knn(neighbors=(1, 3)).evaluate(same, (np.ones((1, 2)), np.array([1])), 2)
    assert found == {"k1": 1.0, "k3": 0.0}


def test_blockwise_nearest_neighbors_match_all_cosines(monkeypatch):
    (queries, _), (keys, _) = blobs(30), blobs(50, seed=1)
    cosines = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (keys / np.linalg.norm(keys, axis=1)[:, None]).T
    monkeypatch.setattr(knn, "_BLOCK", 7 * 50)  # blocks of seven queries
    blocks = list(knn.nearest_neighbors(queries, keys, 4))
    assert [len(nearest) for nearest, _ in blocks] == [7, 7, 7, 7, 2]
    np.testing.assert_array_equal(np.concatenate([b for b, _ in blocks]), np.argsort(-cosines, axis=1)[:, :4])
    np.testing.assert_allclose(np.concatenate([b for _, b in blocks]), -np.sort(-cosines, axis=1)[:, :4], rtol=1e-5)


def test_knn_rejects_impossible_arguments():
    with pytest.raises(ValueError, match=r"No number of neighbors is in \[1, 3\]"):
        knn.Knn(neighbors=(10,)).evaluate(blobs(3), blobs(3), 4)
    with pytest.raises(ValueError, match="`temperature` must be a finite number above 0"):
        knn.Knn(temperature=0).evaluate(blobs(3), blobs(3), 4)


@pytest.mark.slow
@pytest.mark.parametrize("solver", linear_probe.SOLVERS)
def test_linear_probe_chooses_its_regularization_on_held_out_examples(solver, monkeypatch):
    monkeypatch.setattr(linear_fit, "MAX_ITERATIONS", 30)
    train, test = blobs(300, spread=0.5), blobs(300, spread=0.5, seed=1)
    result = linear_probe.LinearProbe(solver=solver).evaluate(train, test, 4)
    assert result["accuracy"] > 0.95
    assert result["l2"] in linear_probe.L2[solver]
    assert "validation_accuracy" in result
    fixed = linear_probe.LinearProbe(solver=solver, l2=1.0).evaluate(train, test, 4)
    assert fixed["l2"] == 1.0 and "validation_accuracy" not in fixed


def test_linear_probe_chooses_its_regularization_on_a_given_validation_set():
    train, test = blobs(60), blobs(60, seed=1)
    # Labels of the validation set that only a classifier of zero weights gets right: the strongest one wins.
    constant = np.full(20, np.bincount(train[1]).argmax())
    validation = blobs(20, seed=2)[0], constant
    strengths = (1e-2, 1e6)
    result = linear_probe.LinearProbe(l2=strengths).evaluate(train, test, 4, validation=validation)
    assert result["l2"] == 1e6
    assert result["validation_accuracy"] == 1.0


def test_collecting_features_drops_padding_and_checks_shapes():
    batches = [
        {"image": np.ones((2, 3)), "label": np.array([1, 2])},
        {"image": 2 * np.ones((2, 3)), "label": np.array([3, 0]), "valid": np.array([1.0, 0.0])},
    ]
    outputs, labels = evaluators.collect(lambda images: images, batches)
    np.testing.assert_array_equal(outputs, [[1, 1, 1], [1, 1, 1], [2, 2, 2]])
    np.testing.assert_array_equal(labels, [1, 2, 3])
    with pytest.raises(ValueError, match=r"Expected one vector per image, \[2, D\]"):
        evaluators.collect(lambda images: images[None], batches)
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluators.collect(lambda images: images, [{**batches[1], "valid": np.zeros(2)}])


@pytest.mark.parametrize("evaluate", [kind().evaluate for kind in (fewshot.FewShot, knn.Knn, linear_probe.LinearProbe)])
def test_labels_out_of_range_are_refused(evaluate):
    features, labels = blobs(20)
    with pytest.raises(ValueError, match=r"labels of the test set must be in \[0, 4\). Received: 4"):
        evaluate((features, labels), (features, np.where(labels == 3, 4, labels)), 4)
    with pytest.raises(ValueError, match=r"labels of the training set must be in \[0, 4\). Received: -1"):
        evaluate((features, np.where(labels == 3, -1, labels)), (features, labels), 4)
    with pytest.raises(ValueError, match="one class per example"):
        evaluate((features, np.eye(4)[labels]), (features, labels), 4)


@pytest.mark.parametrize("solver", linear_probe.SOLVERS)
def test_linear_probe_is_fitted_on_training_and_validation_examples(solver):
    """Only the validation set has examples of the third class."""
    centers = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    rng = np.random.default_rng(0)

    def examples(classes):
        labels = np.repeat(classes, 10)
        return centers[labels] + 0.1 * rng.normal(size=(len(labels), 2)), labels

    train, test = examples([0, 1]), examples([0, 1, 2])
    result = linear_probe.LinearProbe(solver=solver, l2=(0.01, 0.1)).evaluate(
        train, test, 3, validation=examples([0, 1, 2])
    )
    assert result["accuracy"] == 1.0
    assert result["validation_accuracy"] == pytest.approx(2 / 3)  # chosen before the third class was seen


def test_linear_probe_is_refitted_with_the_held_out_examples():
    """A class has one example, which is held out in two of twenty positions."""
    labels = np.arange(20) % 2
    features = np.stack([3.0 * labels, np.zeros(20)], axis=1) + 0.1 * np.random.default_rng(0).normal(size=(20, 2))
    test = np.array([[0.0, 9.0]]), np.array([2])
    for place in range(20):
        x, y = features.copy(), labels.copy()
        x[place], y[place] = test[0][0], 2
        assert linear_probe.LinearProbe(solver="ridge", l2=(0.01, 0.1)).evaluate((x, y), test, 3)["accuracy"] == 1.0


@pytest.mark.parametrize("solver", linear_probe.SOLVERS)
def test_held_out_examples_cover_all_classes(solver):
    """The data of folders are sorted by class: their first and last tenth may be one class."""
    centers = 4.0 * np.eye(4)
    labels = np.repeat([0, 1, 2, 3], [20, 80, 80, 20])
    features = centers[labels] + 0.3 * np.random.default_rng(0).normal(size=(200, 4))
    result = linear_probe.LinearProbe(solver=solver, l2=(0.01, 0.1)).evaluate(
        (features, labels), (centers, np.arange(4)), 4
    )
    assert result["validation_accuracy"] > 0.9 and result["accuracy"] == 1.0


def test_one_of_four_examples_is_held_out():
    """A tenth of four examples is rounded to none."""
    features = np.array([[0.0], [0.1], [5.0], [5.1]])
    result = linear_probe.LinearProbe(solver="ridge", l2=(1e-3, 1e-2)).evaluate(
        (features, np.array([0, 0, 1, 1])), (features, np.array([0, 0, 1, 1])), 2
    )
    assert result["validation_accuracy"] in (0.0, 1.0)  # of one example
    assert result["l2"] == 1e-2  # the stronger regularization of two with the same accuracy


def test_linear_probe_chooses_the_best_regularization_strength():
    """On features that separate badly, by the accuracies of each strength."""
    train, validation, test = (blobs(80, spread=1.5, width=12, seed=seed) for seed in range(3))
    strengths = (1e-4, 1.0, 10.0)
    alone = {}

    def accuracy(features, labels, strength, tested):
        fit = linear_fit.LinearFit(features[None], np.eye(4)[labels], linear_fit.softmax_loss)
        kernel, bias = fit.kernel_and_bias(fit.solve(strength))
        return ((tested[0] @ kernel + bias).argmax(axis=1) == tested[1]).mean()

    for strength in strengths:
        alone[strength] = accuracy(*train, strength, validation)
    result = linear_probe.LinearProbe(l2=strengths).evaluate(train, test, 4, validation=validation)
    assert len(set(alone.values())) > 1  # the choice matters
    assert alone[result["l2"]] == max(alone.values()) == pytest.approx(result["validation_accuracy"])
    both = tuple(np.concatenate(parts) for parts in zip(train, validation, strict=True))
    assert result["accuracy"] == pytest.approx(accuracy(*both, result["l2"], test))
