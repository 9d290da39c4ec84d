"""Images of a real data set."""

from collections.abc import Callable
from pathlib import Path

from manyheads.data.images.labeled_images import ImageData, read_images


def test_real_images_are_classified(real_data: Callable[[str], Path]) -> None:
    data = read_images(real_data("mnist/test.parquet"))
    assert (len(data), data.names, {item.size for item in data.items}) == (2000, tuple("0123456789"), {(28, 28)})
    assert isinstance(data, ImageData)
