import pytest

from pscale.config import Data, Model, Train
from pscale.data import check
from pscale.errors import UsageError

GPT, BLOCK, LINEAR = Model(), Model(kind="block"), Model(kind="linear", width=5)


@pytest.mark.parametrize(
    ("data", "model", "train"),
    [
        (Data(), GPT, Train()),
        (Data(split="sample", loading="scatter"), GPT, Train()),
        (Data(loading="files"), GPT, Train()),
        (Data(kind="synthetic"), Model(vocabulary=7), Train()),
        (Data(kind="synthetic"), BLOCK, Train()),
        (Data(kind="linear"), LINEAR, Train(batch=10_000)),
        (Data(kind="linear", samples=20_000), LINEAR, Train(batch=20_000)),
    ],
)
def test_what_fits_is_let_through(data, model, train):
    check(data, model, train)


@pytest.mark.parametrize(
    ("data", "model", "train", "message"),
    [
        (Data(), BLOCK, Train(), "data.kind 'text' does not fit model.kind 'block'; use synthetic"),
        (Data(kind="linear"), GPT, Train(), "does not fit model.kind 'gpt'; use text or synthetic"),
        (Data(kind="synthetic"), LINEAR, Train(), "does not fit model.kind 'linear'; use linear"),
        (
            Data(),
            Model(vocabulary=255),
            Train(),
            "model.vocabulary 255 is too small for text: bytes need 256",
        ),
        (Data(loading="files", split="sample"), GPT, Train(), "use split: partition, or loading: memory"),
        (
            Data(kind="synthetic", loading="scatter"),
            GPT,
            Train(),
            "data.loading 'scatter' needs data.kind text",
        ),
        (Data(kind="linear", split="sample"), LINEAR, Train(), "data.split 'sample' needs data.kind text"),
        (Data(kind="linear"), Model(kind="linear"), Train(), "the linear problem has 5 weights"),
        (
            Data(kind="linear"),
            LINEAR,
            Train(batch=10_001),
            "data.samples 10000 is not enough: one step of all ranks takes 10001",
        ),
        (Data(source="/nowhere/text"), GPT, Train(), "no file '/nowhere/text'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(data, model, train, message):
    with pytest.raises(UsageError) as error:
        check(data, model, train)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_text_needs_a_window_for_every_place_of_the_batch(tmp_path):
    path = tmp_path / "short text"
    model, train = Model(sequence=9), Train(batch=4)
    for split in ("partition", "sample"):
        path.write_bytes(bytes(40))
        check(Data(source=str(path), split=split), model, train)
        path.write_bytes(bytes(39))
        with pytest.raises(
            UsageError, match=r"has 39 bytes, but a batch of 4 windows of 10 bytes .* needs 40"
        ):
            check(Data(source=str(path), split=split), model, train)
