"""Client of TF Serving's gRPC service, without its published stubs."""

from keras_vit.serving import protocol, rest

_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


def _grpc():
    try:
        import grpc
    except ImportError as error:
        raise ImportError("gRPC needs grpcio: pip install 'keras-vision-transformers[serving]'") from error
    return grpc


def open_channel(address: str):
    """A channel to a server at "host:port"."""
    return _grpc().insecure_channel(address, options=_OPTIONS)


def predict(channel, request, timeout: float):
    """Sends a `PredictRequest` and returns the `PredictResponse`.

    Raises:
        ConnectionError: If the server is not there, or not ready.
        TimeoutError: If there is no answer in time.
        RequestError: If the server refuses the request.
    """
    grpc = _grpc()
    call = channel.unary_unary(
        f"/{protocol.PREDICTION_SERVICE}/Predict",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=protocol.messages().PredictResponse.FromString,
    )
    try:
        return call(request, timeout=timeout)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            raise ConnectionError(error.details()) from error
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError(f"No answer within {timeout} s") from error
        status = 404 if error.code() == grpc.StatusCode.NOT_FOUND else 400
        raise rest.RequestError(f"{error.code().name}: {error.details()}", status) from error
