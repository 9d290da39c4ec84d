"""Training of ResNets with few channels does not crash the process, despite a fault in oneDNN's backward pass."""

import subprocess
import sys

import pytest

TRAINED = """
import sys

import torch

from manyheads.models.resnet import ResNet, ResNetConfig

torch.set_num_threads(1)
width = int(sys.argv[1])
model = ResNet(ResNetConfig(
    labels=("a", "b"), block=sys.argv[2], depths=(1, 1), widths=(16, 8), stem=sys.argv[3],
    stem_width=width, halve_first=True,
))
for _ in range(6):
    images = torch.randn(4, 3, 224 if sys.argv[3] == "7x7" else 56, 224 if sys.argv[3] == "7x7" else 56)
    model(images).logsumexp(1).sum().backward()
print("trained")
"""


@pytest.mark.parametrize(
    ("width", "block", "stem"),
    [(8, "basic", "7x7"), (8, "basic", "3x3"), (3, "basic", "3x3"), (14, "bottleneck", "3x3"), (15, "basic", "3x3")],
)  # fmt: skip
def test_training_with_few_channels_does_not_crash(width: int, block: str, stem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINED, str(width), block, stem], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
