"""Networks as scikit-learn's estimators, in pipelines and searches.

python examples/estimators.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import common
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random


def mlp(key: vf.Array, features: int, outputs: int) -> nn.MLP:
    """Create a network with two hidden layers of 64 features."""
    return nn.MLP.init(key, features, outputs, 64, 2)


@vf.jit
def outputs_of(model: Any, x: vf.Array) -> vf.Array:
    """Return a network's outputs."""
    return model(x)


class Network(BaseEstimator):
    """Base of both estimators: parameters by scikit-learn's rules, and the training."""

    def __init__(
        self,
        model: Callable[[vf.Array, int, int], Any] = mlp,
        *,
        optimizer: str = "adam",
        learning_rate: float = 0.003,
        epochs: int = 100,
        batch_size: int = 32,
        random_state: Any = 0,
    ) -> None:
        """Set the parameters, which `fit` reads.

        Args:
            model: called with a key and the numbers of features and outputs, creates the network.
            optimizer: the name of one of `volta_fn.optim`.
            learning_rate, epochs, batch_size: of the training.
            random_state: of the initial weights and of the order of the rows.
        """
        self.model = model
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.random_state = random_state

    def train(self, x: np.ndarray, y: np.ndarray, outputs: int, loss: Callable[[vf.Array, vf.Array], vf.Array]) -> None:
        """Set `model_` and `loss_curve_`, the mean loss of each epoch."""
        seed = check_random_state(self.random_state).randint(2**31)
        initial, orders = random.split(random.key(seed))
        rows = min(self.batch_size, len(x))
        steps = len(x) // rows
        optimizer = getattr(optim, self.optimizer)(self.learning_rate)

        @vf.jit  # all epochs are one program
        def run(model: Any, x: vf.Array, y: vf.Array, orders: vf.Array) -> Any:
            def step(carry: Any, chosen: vf.Array) -> Any:
                model, state = carry
                value, gradient = vf.value_and_grad(lambda model: loss(model(x[chosen]), y[chosen]))(model)
                updates, state = optimizer.update(gradient, state, model)
                return (optim.apply_updates(model, updates), state), value

            def epoch(carry: Any, key: vf.Array) -> Any:
                order = random.permutation(key, len(x))[: steps * rows].reshape(steps, rows)
                carry, values = vf.lax.scan(step, carry, order)
                return carry, values.mean()

            (model, _), values = vf.lax.scan(epoch, (model, optimizer.init(model)), orders)
            return model, values

        model = self.model(initial, x.shape[1], outputs)
        self.model_, losses = run(model, jnp.asarray(x), jnp.asarray(y), random.split(orders, self.epochs))
        self.loss_curve_ = np.asarray(losses)

    def outputs(self, X: Any) -> np.ndarray:
        """Return the network's outputs for rows, after scikit-learn's checks."""
        check_is_fitted(self)
        return np.asarray(outputs_of(self.model_, jnp.asarray(validate_data(self, X, reset=False, dtype=np.float32))))


class VoltaClassifier(ClassifierMixin, Network):
    """A network whose outputs are logits of the classes."""

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new network on rows of features and their classes."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.train(X, numbers.astype(np.int32), len(self.classes_), nn.cross_entropy)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities (rows, classes)."""
        return np.asarray(nn.softmax(jnp.asarray(self.outputs(X)), -1))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row."""
        numbers = self.outputs(X).argmax(-1)
        return self.classes_[numbers]


class VoltaRegressor(RegressorMixin, MultiOutputMixin, Network):
    """A network whose outputs are numbers, trained on standardised targets."""

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new network on rows of features, and one or more targets each."""
        X, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True, multi_output=True)
        self.mean_, self.scale_ = y.mean(0), np.where(y.std(0) > 0, y.std(0), 1.0)
        standard = ((y - self.mean_) / self.scale_).astype(np.float32)
        self.train(X, standard.reshape(len(y), -1), y.reshape(len(y), -1).shape[1], nn.mse_loss)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the targets of rows, in the shape of those that `fit` was given."""
        outputs = self.outputs(X)
        return outputs.reshape(len(outputs), *np.shape(self.mean_)) * self.scale_ + self.mean_


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Return accuracy, R², and the learning rate that a search chooses."""
    options = common.arguments(__doc__, argv)
    rows, epochs = (600, 10) if options.quick else (1797, 30)
    digits, labels = load_digits(return_X_y=True)
    classifier = make_pipeline(StandardScaler(), VoltaClassifier(epochs=epochs, random_state=options.seed))
    accuracy = cross_val_score(classifier, digits[:rows], labels[:rows], cv=3)
    print(f"digits: accuracy {accuracy.mean():.3f} ± {accuracy.std():.3f} of three folds")

    patients, progression = load_diabetes(return_X_y=True)
    regressor = make_pipeline(StandardScaler(), VoltaRegressor(epochs=epochs, random_state=options.seed))
    search = GridSearchCV(regressor, {"voltaregressor__learning_rate": [1e-4, 1e-3, 1e-2]}, cv=3).fit(patients, progression)
    rate = search.best_params_["voltaregressor__learning_rate"]
    print(f"diabetes: R² {search.best_score_:.3f} with the learning rate {rate}")
    return {"accuracy": float(accuracy.mean()), "r2": float(search.best_score_), "learning_rate": rate}


if __name__ == "__main__":
    main()
