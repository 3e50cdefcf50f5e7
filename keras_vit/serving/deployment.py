"""Files that start the official TF Serving image on a model: its configuration, Docker Compose and Kubernetes."""

import os
import re

from keras_vit import _io

FOLDER = "deployment"
GRPC_PORT, REST_PORT = 8500, 8501
METRICS_PATH = "/monitoring/prometheus/metrics"
IMAGE = "tensorflow/serving:latest"


def check_name(name: str) -> str:
    """A model name that is safe in paths, URLs and as a Kubernetes label.

    Raises:
        ValueError: If it is not.
    """
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", name):
        raise ValueError(
            "The name of a served model must be made of small letters, digits, '-', '_' and '.', begin and end with a "
            f"letter or digit and have at most 63 characters. Received: {name!r}. Choose one with --name."
        )
    return name


def check_batch_sizes(batch_sizes: list[int]) -> list[int]:
    """Allowed batch sizes, ascending.

    Raises:
        ValueError: If there is none, or one below 1.
    """
    sizes = sorted(set(batch_sizes))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"Expected batch sizes of at least 1. Received: {batch_sizes}.")
    return sizes


def write(base: str, name: str, batch_sizes: list[int]) -> str:
    """Writes all files into `BASE/deployment`, which the server ignores because its name is no number.

    Args:
        base: The directory that holds the versions.
        name: Name of the model on the server.
        batch_sizes: Allowed batch sizes, those of the warm-up.

    Returns:
        The folder.
    """
    folder = os.path.join(base, FOLDER)
    files = {
        "models.config": models_config(name),
        "batching.config": batching_config(batch_sizes),
        "monitoring.config": f'prometheus_config {{\n  enable: true\n  path: "{METRICS_PATH}"\n}}\n',
        "docker-compose.yml": docker_compose(name),
        "kubernetes.yaml": kubernetes(name, batch_sizes),
    }
    for file_name, text in files.items():
        _io.write_text(os.path.join(folder, file_name), text)
    return folder


def models_config(name: str) -> str:
    """The server's list of models, as a text protocol buffer; it serves the newest version."""
    return f"""\
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
    # To go back to a version: model_version_policy {{ specific {{ versions: 1 }} }}
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""


def batching_config(batch_sizes: list[int], timeout_micros: int = 2000, threads: int = 4) -> str:
    """How the server joins requests.

    Args:
        batch_sizes: Batches are filled up to the next of these, so that no other size ever runs.
        timeout_micros: How long the first request of a batch waits for others.
        threads: Batches in the works at a time.
    """
    sizes = check_batch_sizes(batch_sizes)
    lines = [
        f"max_batch_size {{ value: {sizes[-1]} }}",
        f"batch_timeout_micros {{ value: {timeout_micros} }}",
        "max_enqueued_batches { value: 100 }",
        f"num_batch_threads {{ value: {threads} }}",
        *(f"allowed_batch_sizes: {size}" for size in sizes),
    ]
    return "\n".join(lines) + "\n"


def _arguments(folder):
    return [
        f"--port={GRPC_PORT}",
        f"--rest_api_port={REST_PORT}",
        f"--model_config_file={folder}/models.config",
        "--enable_batching=true",
        f"--batching_parameters_file={folder}/batching.config",
        f"--monitoring_config_file={folder}/monitoring.config",
    ]


def docker_compose(name: str) -> str:
    """A Compose file that lies in `BASE/deployment` and serves `BASE`."""
    arguments = "\n".join(f"      - {argument}" for argument in _arguments(f"/models/{name}/{FOLDER}"))
    # The image has bash but no curl.
    probe = (
        f"exec 3<>/dev/tcp/127.0.0.1/{REST_PORT} && "
        f"printf 'GET /v1/models/{name} HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q AVAILABLE <&3"
    )
    return f"""\
# docker compose up; then POST pictures to http://localhost:{REST_PORT}/v1/models/{name}:predict
# The server should not be older than the TensorFlow that exported the model: see the card of each version.
services:
  serving:
    image: ${{TF_SERVING_IMAGE:-{IMAGE}}}
    command:
{arguments}
    ports:
      - "{GRPC_PORT}:{GRPC_PORT}"
      - "{REST_PORT}:{REST_PORT}"
    volumes:
      - ..:/models/{name}:ro
    healthcheck:
      test: ["CMD", "bash", "-c", "{probe}"]
      interval: 10s
      timeout: 5s
      retries: 3
      start_period: 60s
    restart: unless-stopped
"""


def kubernetes(name: str, batch_sizes: list[int]) -> str:
    """A Deployment and a Service, with the server's configuration in a ConfigMap and the versions on a volume claim."""
    resource = re.sub(r"[^a-z0-9-]", "-", name)
    arguments = "\n".join(f"            - {argument}" for argument in _arguments("/config"))

    def indented(text):
        return "".join(f"    {line}\n" for line in text.splitlines())

    return f"""\
# kubectl apply -f kubernetes.yaml, after copying the version directories to the volume of the claim
# "{resource}-models".
apiVersion: v1
kind: ConfigMap
metadata:
  name: {resource}-serving
data:
  models.config: |
{indented(models_config(name))}  batching.config: |
{indented(batching_config(batch_sizes))}  monitoring.config: |
    prometheus_config {{ enable: true path: "{METRICS_PATH}" }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {resource}-serving
  labels: {{app: {resource}-serving}}
spec:
  replicas: 1
  selector:
    matchLabels: {{app: {resource}-serving}}
  template:
    metadata:
      labels: {{app: {resource}-serving}}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "{REST_PORT}"
        prometheus.io/path: {METRICS_PATH}
    spec:
      containers:
        - name: serving
          image: {IMAGE}
          args:
{arguments}
          ports:
            - {{name: grpc, containerPort: {GRPC_PORT}}}
            - {{name: rest, containerPort: {REST_PORT}}}
          # The server opens its ports when the model is loaded and warm.
          startupProbe:
            httpGet: {{path: /v1/models/{name}, port: rest}}
            periodSeconds: 5
            failureThreshold: 60
          readinessProbe:
            httpGet: {{path: /v1/models/{name}, port: rest}}
            periodSeconds: 5
          livenessProbe:
            tcpSocket: {{port: grpc}}
            periodSeconds: 20
          resources:
            requests: {{cpu: "2", memory: 2Gi}}
            limits: {{memory: 4Gi}}
          volumeMounts:
            - {{name: models, mountPath: /models/{name}, readOnly: true}}
            - {{name: config, mountPath: /config, readOnly: true}}
      volumes:
        - name: models
          persistentVolumeClaim: {{claimName: {resource}-models, readOnly: true}}
        - name: config
          configMap: {{name: {resource}-serving}}
---
apiVersion: v1
kind: Service
metadata:
  name: {resource}-serving
spec:
  selector: {{app: {resource}-serving}}
  ports:
    - {{name: grpc, port: {GRPC_PORT}, targetPort: grpc}}
    - {{name: rest, port: {REST_PORT}, targetPort: rest}}
"""
