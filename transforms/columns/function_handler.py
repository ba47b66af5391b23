"""A function of the user as a model of Beam's RunInference."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apache_beam.ml.inference import base

from imagebeam.transforms.shard import feature_functions


class FunctionHandler(base.ModelHandler[Any, base.PredictionResult, Any]):
    """Makes a model of a function of the user."""

    def __init__(self, function: feature_functions.FeatureFunction, max_seconds: float):
        super().__init__(min_batch_size=1, max_batch_size=function.batch)
        self._function = function
        self._max_seconds = max_seconds  # for each image of a batch

    def load_model(self) -> Any:
        """Returns the function, once in each process; an instance of a class was set up."""
        return self._function.code.start()

    def run_inference(
        self, batch: Sequence[Any], model: Any, inference_args: Mapping[str, Any] | None = None
    ) -> Iterable[base.PredictionResult]:
        """Yields the feature of each image as it is stored, or the error for the reject."""
        images, references = zip(*batch)
        for value in self._function.compute(images, references, self._max_seconds):
            yield base.PredictionResult(None, value)


def infer(function: feature_functions.FeatureFunction, max_seconds: float) -> base.RunInference:
    """Returns the step (key, (pixels, Reference)) -> (key, PredictionResult) with the feature, or its error."""
    return base.RunInference(base.KeyedModelHandler(FunctionHandler(function, max_seconds)))
