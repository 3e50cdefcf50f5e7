"""Titles of pages and figures."""

import datetime
import types

import pytest

from keras_vit import version
from keras_vit.inspection import headings
from keras_vit.inspection.headings import run_title


@pytest.mark.parametrize(
    ("model", "source", "title"),
    [
        ({"variant": "ViT-B/16"}, "digits", "ViT-B/16 on digits"),
        ({"variant": "ViT-B/16"}, "tfds:cifar10", "ViT-B/16 on tfds:cifar10"),
        ({"variant": "ViT-B/16"}, "folder:photos/cats", "ViT-B/16 on folder:photos/cats"),
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
def test_title_has_variant_and_data_set(model, source, title):
    assert run_title({"model": model, "data": {"source": source}}) == title


def test_stamp_has_version_and_date(monkeypatch):
    today = types.SimpleNamespace(today=lambda: datetime.date(2026, 3, 4))
    monkeypatch.setattr(headings, "datetime", types.SimpleNamespace(date=today))
    assert headings.stamp() == f"keras_vit {version.__version__} · 04 March 2026"
