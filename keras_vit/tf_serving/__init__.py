"""TensorFlow Serving: client, warm-up requests, deployment files, and a development server with its REST API."""

from keras_vit.tf_serving.client import Client, Prediction, RequestError

__all__ = ["Client", "Prediction", "RequestError"]
