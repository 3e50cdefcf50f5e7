"""The gRPC half of the development server and of the client: TF Serving's services on generic handlers and stubs."""

import concurrent.futures

from keras_vit.serving import protocol, rest

METADATA_TYPE = f"type.googleapis.com/{protocol.PACKAGE}.SignatureDefMap"
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


def _grpc():
    try:
        import grpc
    except ImportError as error:
        raise ImportError("gRPC needs grpcio: pip install 'keras-vision-transformers[serving]'") from error
    return grpc


def start_server(model, port: int, host: str = "localhost", workers: int = 16):
    """Serves a model over gRPC.

    Args:
        model: A `server.ServedModel`.
        port: The port; 0 for any free one.
        host: The address to listen at.
        workers: Requests that are answered at a time.

    Returns:
        The server (`stop(grace)` ends it) and its port.

    Raises:
        ImportError: If grpcio is not installed.
        OSError: If the port is taken.
    """
    grpc = _grpc()
    messages = protocol.messages()

    def answering(method):
        def call(request, context):
            try:
                return method(request)
            except rest.RequestError as error:
                code = grpc.StatusCode.NOT_FOUND if error.status == 404 else grpc.StatusCode.INVALID_ARGUMENT
                context.abort(code, str(error))

        return call

    def version_of(spec):
        return spec.version.value if spec.HasField("version") else None

    def predict(request):
        spec = request.model_spec
        version, outputs, _ = model.predict(
            spec.name, version_of(spec), spec.signature_name, lambda inputs: (_decode(request.inputs, inputs), None)
        )
        response = messages.PredictResponse()
        response.model_spec.name = spec.name
        response.model_spec.version.value = version
        response.model_spec.signature_name = spec.signature_name or "serving_default"
        wanted = set(request.output_filter) or outputs.keys()
        if not wanted <= outputs.keys():
            raise rest.RequestError(f"output_filter must be out of {sorted(outputs)}. Received: {sorted(wanted)}.")
        for name in wanted:
            response.outputs[name] = protocol.encode_tensor(outputs[name])
        return response

    def metadata(request):
        with model.use(request.model_spec.name, version_of(request.model_spec)) as (version, artefact):
            definitions = messages.SignatureDefMap()
            for name, definition in artefact.signatures.items():
                definitions.signature_def[name] = definition.SerializeToString()
            response = messages.GetModelMetadataResponse()
            response.model_spec.name = model.name
            response.model_spec.version.value = version
            packed = messages.Any(type_url=METADATA_TYPE, value=definitions.SerializeToString())
            response.metadata["signature_def"] = packed.SerializeToString()
            return response

    def status(request):
        with model.use(request.model_spec.name, version_of(request.model_spec)) as (version, _):
            response = messages.GetModelStatusResponse()
            response.model_version_status.add(version=version, state=protocol.VERSION_STATES["AVAILABLE"])
            return response

    def handler(function, request_class):
        return grpc.unary_unary_rpc_method_handler(
            answering(function), request_class.FromString, lambda message: message.SerializeToString()
        )

    prediction = {
        "Predict": handler(predict, messages.PredictRequest),
        "GetModelMetadata": handler(metadata, messages.GetModelMetadataRequest),
    }
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(workers), options=_OPTIONS)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(protocol.PREDICTION_SERVICE, prediction),
            grpc.method_handlers_generic_handler(
                protocol.MODEL_SERVICE, {"GetModelStatus": handler(status, messages.GetModelStatusRequest)}
            ),
        )
    )
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(f"Cannot listen at {host}:{port}: {error}") from error
    server.start()
    return server, bound


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


def _decode(inputs, expected):
    """Arrays of a request, checked against the signature's types and shapes."""
    if set(inputs) != set(expected):
        raise rest.RequestError(f"The signature takes the inputs {sorted(expected)}. Received: {sorted(inputs)}.")
    arrays = {}
    for name, content in inputs.items():
        try:
            arrays[name] = protocol.decode_tensor(content)
        except Exception as error:  # damaged messages raise whatever their field raises
            raise rest.RequestError(f"The input {name!r} is not a tensor: {error}") from error
        rest.check_tensor(arrays[name], name, expected[name])
    return arrays
