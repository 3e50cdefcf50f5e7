"""Titles of pages and figures."""

import pytest

from keras_vit.inspection.headings import run_title


@pytest.mark.parametrize(
    ("model", "source", "title"),
    [
        ({"variant": "ViT-B/16"}, "digits", "ViT-B/16 on digits"),
        ({"variant": "ViT-B/16"}, "tfds:cifar10", "ViT-B/16 on tfds:cifar10"),
        ({"variant": "ViT-B/16"}, "folder:/home/me/My images/#labels=x", "ViT-B/16 on My images"),
        (
            {"variant": "ViT-Ti/16", "arguments": {"num_layers": 3, "patch_size": 2}},
            "digits",
            "ViT of 3 layers on digits",
        ),
        ({"variant": "ViT-Ti/16", "arguments": {"hidden_size": 8}}, "digits", "ViT of 12 layers on digits"),
        ({"variant": "ViT-B/16", "arguments": {"pooling": "gap"}}, "digits", "ViT-B/16 on digits"),
        ({"variant": "BiT-R50x1", "arguments": {}}, "digits", "BiT-R50x1 on digits"),
        ({"variant": "ViT-Ti/16", "arguments": {"num_layers": 1}}, "digits", "ViT of 1 layer on digits"),
    ],
)
def test_run_title(model, source, title):
    assert run_title({"model": model, "data": {"source": source}}) == title
