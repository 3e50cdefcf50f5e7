"""TensorFlow Serving: the client of its REST API, and a development server with the same API."""

from keras_vit.tf_serving.client import Client, Prediction, RequestError

__all__ = ["Client", "Prediction", "RequestError"]
