import pytest

from keras_vit.util import literal_calls


def scale(image, factor=1.0, *, mode="plain"):
    if factor < 0:
        raise ValueError("`factor` must not be negative.")
    return image, factor, mode


def test_calls_are_parsed_in_order_with_their_arguments():
    first, second = literal_calls.parse("scale(3)|\n scale('a', factor=2, mode=None)")
    assert (first.name, first.text) == ("scale", "scale(3)")
    assert first.create(scale) == ((3, 1.0, "plain"), {"image": 3, "factor": 1.0, "mode": "plain"})
    assert second.create(scale)[0] == ("a", 2, None)
    assert literal_calls.parse(" ") == ()
    assert literal_calls.parse("scale")[0].function({"scale": scale}) is scale


def test_extra_arguments_of_a_call_are_returned_separately():
    (call,) = literal_calls.parse("scale(1, every=5)")
    result, arguments = call.create(scale, extra=("every", "name"))
    assert result == (1, 1.0, "plain") and arguments["every"] == 5 and "name" not in arguments
    with pytest.raises(ValueError, match="every"):
        call.create(scale)


@pytest.mark.parametrize(
    ("text", "marked", "words"),
    [
        ("scale(1)|scale(1, factr=2)", "factr=2", ["'factr'", "'factor'", "mode='plain'"]),
        ("scale", "scale", ["'image'"]),
        ("scale(1, -1)", "scale(1, -1)", ["`factor`"]),
        ("scale({[]: 1})", "{[]: 1}", ["not a literal"]),
        ("scale(1, **{'a': 1})", "**{'a': 1}", ["Usage"]),
        ("scal(1)", "scal", ["unknown filter 'scal'", "'scale'"]),
        ("scale('ä')|scale('ö', factr='üß')", "factr='üß'", ["'factr'"]),
        ("scale(1)|1", "1", ["not a name", "Expected: name or name(arguments)"]),
    ],
)
def test_errors_point_at_the_position(text, marked, words):
    with pytest.raises(ValueError) as error:
        for call in literal_calls.parse(text, "filter"):
            call.create(call.function({"scale": scale}, "filter"))
    heading, shown, carets, *_ = str(error.value).splitlines()
    assert "filter" in heading and shown[2:] == text
    assert shown[carets.index("^") :].startswith(marked)
    assert carets.count("^") == len(marked)
    for word in words:
        assert word in str(error.value)


def test_syntax_errors_point_at_the_position():
    with pytest.raises(ValueError) as error:
        literal_calls.parse("scale('ä',, 2)", "filter")
    _, shown, carets, hint = str(error.value).splitlines()
    assert shown[carets.index("^") :] == ", 2)" and carets.count("^") == 1
    assert hint == "Expected: name|name(arguments)|name."


@pytest.mark.parametrize("text", ["1", "a.b", "a(1)|2", "a(", "(" * 5_000, "-" * 100_000 + "1", None])
def test_texts_that_are_not_calls_are_rejected(text):
    with pytest.raises(ValueError, match="filter"):
        literal_calls.parse(text, "filter")
