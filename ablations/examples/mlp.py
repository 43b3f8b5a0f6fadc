"""A program that knows nothing of this project but `log`: an MLP that tells two spirals apart.

python mlp.py --lr 0.1 --hidden 16 --activation tanh --seed 0
"""

import argparse

import numpy as np

from sdtps.log import log

EPOCHS, STEPS, BATCH = 10, 20, 64


def spirals(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`count` points (count, 2) on two spirals, and which of the two (count,)."""
    label = rng.integers(0, 2, count)
    radius = rng.uniform(0.2, 1.0, count)
    angle = 8.0 * radius + np.pi * label
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points + rng.normal(0, 0.04, points.shape), label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--activation", choices=("tanh", "relu"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    points, label = spirals(2000, rng)
    test_points, test_label = spirals(1000, np.random.default_rng(1_000_000))
    w1, b1 = rng.normal(0, 2.0, (2, options.hidden)), rng.normal(0, 1.0, options.hidden)
    w2, b2 = rng.normal(0, 1 / np.sqrt(options.hidden), options.hidden), 0.0

    def hidden(x: np.ndarray) -> np.ndarray:
        return np.tanh(x @ w1 + b1) if options.activation == "tanh" else np.maximum(x @ w1 + b1, 0)

    step = 0
    for epoch in range(1, EPOCHS + 1):
        for _ in range(STEPS):
            step += 1
            chosen = rng.integers(0, len(points), BATCH)
            x, y = points[chosen], label[chosen]
            h = hidden(x)
            p = 1 / (1 + np.exp(-(h @ w2 + b2)))
            loss = -np.mean(y * np.log(p + 1e-12) + (1 - y) * np.log(1 - p + 1e-12))
            error = (p - y) / BATCH  # derivative of the loss by the logit
            inner = np.outer(error, w2) * (1 - h**2 if options.activation == "tanh" else h > 0)
            w2, b2 = w2 - options.lr * (h.T @ error), b2 - options.lr * error.sum()
            w1, b1 = w1 - options.lr * (x.T @ inner), b1 - options.lr * inner.sum(axis=0)
            log(epoch=epoch, step=step, loss=float(loss))
        guess = hidden(test_points) @ w2 + b2 > 0
        log("eval", epoch=epoch, step=step, accuracy=float(np.mean(guess == test_label)))


if __name__ == "__main__":
    main()
