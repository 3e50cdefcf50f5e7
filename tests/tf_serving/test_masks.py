"""Servers of models that predict masks, and their client."""

import base64
import json

import numpy as np
import pytest

from export.serving.served_model import ServedModel, ServedPredictor
from keras_vit import inference, models, tf_serving
from keras_vit.exporting import saved_model
from keras_vit.inference import masks
from keras_vit.inference.keras_card import card_of_model
from tests import tiny
from tests.tf_serving import servers

NAMES = ("sky", "sea", "sand")


@pytest.fixture(scope="module")
def predictor():
    model = tiny.model(num_layers=1, head=models.LinearSegmenter(3))
    model.class_names = NAMES
    return inference.KerasPredictor(model, card_of_model(model, "model", tiny.PREPROCESS))


@pytest.fixture(scope="module")
def images():
    """Three images of two sizes, one of which is unreadable."""
    return [tiny.encode(tiny.arrays(1, 20, 24)[0], "PNG"), b"bad", tiny.encode(tiny.arrays(1, 9, 7)[0], "PNG")]


def own_masks(predictor, images):
    contents = [images[0], images[2]]
    return predictor.card.at_image_sizes(predictor.predict(predictor.preprocess(contents)), contents)


@pytest.mark.slow
def test_client_returns_masks(predictor, images):
    first, last = own_masks(predictor, images)
    with servers.serving_model(ServedModel("views", predictor)) as url:
        found = tf_serving.Client(url, "views").predict(images)
        runs = tf_serving.Client(url, "views").run("run_lengths", {"image_bytes": images})
    assert [(answer.valid, answer.kind) for answer in found] == [(True, "mask"), (False, "mask"), (True, "mask")]
    assert (first.shape, last.shape) == ((20, 24), (9, 7))
    for answer, mask in ((found[0], first), (found[2], last)):
        np.testing.assert_array_equal(answer.mask, mask)
        shares = {name: float(np.mean(mask == index)) for index, name in enumerate(NAMES) if (mask == index).any()}
        assert dict(zip(answer.labels, answer.scores, strict=True)) == pytest.approx(shares)
        assert answer.scores == sorted(answer.scores, reverse=True)
    assert found[1].mask is None and found[1].labels == []
    assert runs["valid"].tolist() == [True, False, True] and not runs["run_lengths"][1].any()
    np.testing.assert_array_equal(masks.from_runs(runs["run_lengths"][2], runs["size"][2]), last)


@pytest.mark.slow
def test_rest_response_encodes_masks_as_base64(predictor, images):
    """TensorFlow Serving encodes outputs whose names end in `_bytes`, and chooses the signature by a parameter."""
    row = {"image_bytes": {"b64": base64.b64encode(images[2]).decode()}}
    (mask,) = own_masks(predictor, images)[1:]
    model = ServedModel("views", predictor)
    (answer,) = json.loads(json.dumps(model.predict({"instances": [row]})))["predictions"]
    assert answer.keys() == {"mask_bytes", "class_names", "valid"}
    np.testing.assert_array_equal(masks.from_png(base64.b64decode(answer["mask_bytes"]["b64"])), mask)
    (answer,) = model.predict({"instances": [row], "signature_name": "run_lengths"})["predictions"]
    assert answer["size"] == [9, 7]
    assert answer["run_lengths"] == masks.to_runs(mask).tolist()


@pytest.mark.slow
def test_responses_match_the_saved_model(predictor, images, tmp_path):
    path, _ = saved_model.write(predictor.model, str(tmp_path), card=predictor.card, images=tiny.images(2))
    artifact, servable = inference.open_predictor(path), ServedPredictor(predictor)
    for name in ("serving_default", "run_lengths"):
        expected = artifact.run(name, {"image_bytes": images})
        found = servable.run(name, {"image_bytes": np.array(images, object)})
        definition, described = artifact.signatures[name], servable.signatures[name]
        assert found.keys() == expected.keys() == described.outputs.keys() == definition.outputs.keys()
        for output, value in expected.items():
            assert described.outputs[output].dtype == definition.outputs[output].dtype
            if output == "mask_bytes":
                for png, other in zip(found[output], value, strict=True):
                    assert (png == b"") == (other == b"")
                    np.testing.assert_array_equal(masks.from_png(png or FILL), masks.from_png(other or FILL))
            else:
                np.testing.assert_array_equal(found[output], value)


FILL = masks.to_png(np.zeros((1, 1), np.uint8))  # in place of the files of unreadable images


@pytest.mark.slow
def test_a_response_without_a_mask_is_refused(predictor, images, monkeypatch):
    model = ServedModel("views", predictor)
    for damaged in (b"no file", masks.to_png(np.full((2, 2), 7))):  # a class without a name
        monkeypatch.setattr(masks, "to_png", lambda mask, content=damaged: content)
        with servers.serving_model(model) as url, pytest.raises(tf_serving.RequestError, match="mask"):
            tf_serving.Client(url, "views").predict(images[:1])
