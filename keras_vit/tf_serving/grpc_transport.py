"""Predict requests over gRPC, without the published stubs."""

from typing import Any

from keras_vit.tf_serving import messages

_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


def open_channel(address: str) -> Any:
    """Open a channel to a server at `"host:port"`.

    Raises:
        ImportError: If grpcio is not installed.
    """
    return _grpc().insecure_channel(address, options=_OPTIONS)


def predict(channel: Any, request: Any, timeout: float) -> Any:
    """Send a `PredictRequest` and return the `PredictResponse`.

    Raises:
        ConnectionError: If the server is not available.
        TimeoutError: If there is no answer in time.
        RequestError: If the server refuses the request.
    """
    grpc = _grpc()
    call = channel.unary_unary(
        f"/{messages.PREDICTION_SERVICE}/Predict",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=messages.messages().PredictResponse.FromString,
    )
    try:
        return call(request, timeout=timeout)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            raise ConnectionError(error.details()) from error
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError(f"No answer within {timeout} s") from error
        status = 404 if error.code() == grpc.StatusCode.NOT_FOUND else 400
        raise messages.RequestError(f"{error.code().name}: {error.details()}", status) from error


def _grpc() -> Any:
    try:
        import grpc
    except ImportError as error:
        raise ImportError("gRPC needs grpcio: pip install 'keras-vision-transformers[serving]'") from error
    return grpc
