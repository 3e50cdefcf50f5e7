"""Development server with the REST API of TensorFlow Serving."""
