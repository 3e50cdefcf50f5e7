"""The files of `deploy/` as far as possible without the server, and the programs of the page about phones."""

import contextlib
import functools
import http.server
import json
import re
import runpy
import shlex
import subprocess
import threading

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2

from keras_vit import exporting, inference
from tests import test_packaging, tiny
from tests.docs import pages
from tests.docs.command_lines import setup_file

DEPLOY = pages.ROOT / "deploy"
CONFIG = DEPLOY / "config"
# From `tensorflow_model_server --help`.
SERVER_FLAGS = {
    *("port", "rest_api_port", "model_config_file", "model_config_file_poll_wait_seconds", "monitoring_config_file"),
    *("enable_batching", "batching_parameters_file", "allow_version_labels_for_unavailable_models"),
}


def read(path):
    return path.read_text(encoding="utf-8")


def documents(name):
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(read(DEPLOY / name)))


def instructions(folder=DEPLOY):
    """The instructions of the Dockerfile as (name, rest), without comments and line breaks."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", read(folder / "Dockerfile"), flags=re.MULTILINE))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines()]


def message(name, fields):
    """A message class with fields (name, number, kind) as the server's .proto files define them."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    file.dependency.append("google/protobuf/wrappers.proto")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    for owner, field, number, kind in fields:
        entry = next((entry for entry in file.message_type if entry.name == owner), None)
        entry = entry or file.message_type.add(name=owner)
        types = descriptor_pb2.FieldDescriptorProto
        repeated, kind = kind.endswith("*"), kind.rstrip("*")
        scalar = {"bool": types.TYPE_BOOL, "string": types.TYPE_STRING, "int64": types.TYPE_INT64}.get(kind)
        label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
        added = entry.field.add(name=field, number=number, label=label, type=scalar or types.TYPE_MESSAGE)
        if not scalar:
            added.type_name = kind
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def parsed(path, kind):
    return text_format.Parse(read(path), kind())


def test_model_configuration_is_valid():
    published = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    (config,) = parsed(CONFIG / "models.config", published.ModelServerConfig).model_config_list.config
    assert config.base_path == f"/models/{config.name}" and config.model_platform == "tensorflow"
    served = set(config.model_version_policy.specific.versions)
    assert config.version_labels["stable"] in served and set(config.version_labels.values()) <= served
    page = read(pages.ROOT / "docs/how_to/production.md")
    (step,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    rolled = text_format.Parse(step, published.ModelConfig())
    assert set(rolled.version_labels.values()) == set(rolled.model_version_policy.specific.versions) == {1, 2}


def test_batching_and_monitoring_configurations_are_valid():
    wrapped = ".google.protobuf.Int64Value"
    names = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads")
    fields = [("BatchingParameters", name, number, wrapped) for number, name in enumerate(names, 1)]
    kind = message("BatchingParameters", [*fields, ("BatchingParameters", "allowed_batch_sizes", 6, "int64*")])
    batching = parsed(CONFIG / "batching.config", kind)
    sizes = list(batching.allowed_batch_sizes)
    assert sizes == sorted(sizes) and sizes[-1] == batching.max_batch_size.value
    (export,) = re.findall(r"--batch_sizes=([\d,]+)", read(pages.ROOT / "docs/how_to/production.md"))
    assert [int(size) for size in export.split(",")] == sizes  # those that the warm-up runs

    fields = [("PrometheusConfig", "enable", 1, "bool"), ("PrometheusConfig", "path", 2, "string")]
    kind = message("MonitoringConfig", [*fields, ("MonitoringConfig", "prometheus_config", 1, ".PrometheusConfig")])
    metrics = parsed(CONFIG / "monitoring.config", kind).prometheus_config
    assert metrics.enable
    (job,) = documents("prometheus.yml")[0]["scrape_configs"]
    assert job["metrics_path"] == metrics.path
    services = documents("compose.yaml")[0]["services"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert host in services and f"--rest_api_port={port}" in dict(instructions())["CMD"]


def test_the_image_contains_the_paths_of_its_command():
    copied = dict(shlex.split(rest)[-2:] for name, rest in instructions() if name == "COPY")
    assert set(copied) == {"served/photos", "deploy/config"}
    command = json.loads(dict(instructions())["CMD"])
    flags = dict(flag.removeprefix("--").split("=") for flag in command)
    assert set(flags) <= SERVER_FLAGS
    for value in flags.values():
        if value.startswith("/"):
            assert (CONFIG / value.removeprefix(f"{copied['deploy/config']}/")).is_file(), value
    kept = [line.removeprefix("!") for line in read(DEPLOY / "Dockerfile.dockerignore").splitlines()[1:]]
    assert all(any(f"{source}/".startswith(f"{path}/") for path in kept) for source in copied)
    assert f'base_path: "{copied["served/photos"]}"' in read(CONFIG / "models.config")


def test_the_training_image_is_built_from_the_files_of_the_wheel():
    found = instructions(DEPLOY / "train")
    copied = [word for name, rest in found if name == "COPY" for word in shlex.split(rest)[:-1]]
    assert sorted(copied) == sorted(test_packaging.COPIED)
    kept = [line.removeprefix("!") for line in read(DEPLOY / "train/Dockerfile.dockerignore").splitlines()]
    assert kept[0] == "*" and set(copied) == set(kept[1:-1])
    (install,) = [rest for name, rest in found if name == "RUN"]
    assert install == 'pip install --no-cache-dir ".[$EXTRAS]"'
    named = re.findall(r"^# +((?:gpu|cpu)[\w,-]*)", read(DEPLOY / "train/Dockerfile"), re.MULTILINE)
    assert len(named) == 5 and {extra for text in named for extra in text.split(",")} <= set(setup_file()["EXTRAS"])
    assert json.loads(dict(found)["ENTRYPOINT"]) == ["keras-vit"]


def test_kubernetes_manifests_are_consistent():
    deployment, service, scaler = documents("kubernetes.yaml")
    pod = deployment["spec"]["template"]
    labels, (container,) = pod["metadata"]["labels"], pod["spec"]["containers"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    command = dict(instructions())["CMD"]
    assert all(f"port={number}" in command for number in ports.values())
    assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name].get("httpGet") or container[name]["tcpSocket"]
        assert probe["port"] in ports and probe.get("path") in (None, "/v1/models/photos/labels/stable")
    mounts, volumes = container["volumeMounts"], pod["spec"]["volumes"]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes}
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    annotations = pod["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in read(CONFIG / "monitoring.config")


def test_compose_mounts_existing_paths():
    services = documents("compose.yaml")[0]["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = (DEPLOY / volume.split(":")[0]).resolve()
            assert source.exists() or source == pages.ROOT / "served" / "photos", volume
    build = services["serving"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


@contextlib.contextmanager
def server(state):
    """A server whose model has a state."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/v1/models/photos" else 404)
            self.end_headers()
            status = {"version": "1", "state": state, "status": {"error_code": "OK", "error_message": ""}}
            if self.path == "/v1/models/photos":
                self.wfile.write(json.dumps({"model_version_status": [status]}, indent=1).encode())

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running.server_port
        running.shutdown()
        thread.join()


@pytest.mark.slow
def test_health_check_follows_the_state_of_the_model():
    check = functools.partial(subprocess.run, check=False, timeout=20, stderr=subprocess.DEVNULL)
    script = str(CONFIG / "healthy.sh")
    with server("AVAILABLE") as port:
        assert check(["bash", script, "photos", str(port)]).returncode == 0
        assert check(["bash", script, "other", str(port)]).returncode == 1
    assert check(["bash", script, "photos", str(port)]).returncode == 1  # the server has ended
    with server("LOADING") as port:
        assert check(["bash", script, "photos", str(port)]).returncode == 1


@pytest.mark.slow
def test_the_program_for_phones_predicts_like_predict(tmp_path, monkeypatch, capsys):
    """Pillow rounds resized pixels, and TensorFlow truncates. Noise has other probabilities without antialiasing."""
    pytest.importorskip("ai_edge_litert")
    path = str(tmp_path / "photos.tflite")
    pp = tiny.PREPROCESS.replace(f"resize({tiny.SIZE})", f"resize({tiny.SIZE}, antialias=True)")
    names = dict(preprocess=pp, class_names=tiny.CLASS_NAMES)
    exporting.export(tiny.model(), path, images=tiny.arrays(), input_dtype="uint8", **names)
    photo = tiny.encode(np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8), "PNG")
    (tmp_path / "photo.jpg").write_bytes(photo)
    page = read(pages.ROOT / "docs/how_to/phone.md")
    (program,) = [block.code for block in pages.blocks(page) if block.language == "python"]
    assert len([line for line in program.splitlines() if line and "import" not in line]) <= 10
    (tmp_path / "phone.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("phone.py")
    name, probability = capsys.readouterr().out.split()
    predictor = inference.open_predictor(path)
    wanted = predictor.predict(predictor.preprocess([photo]))[0]
    assert name == predictor.class_names[wanted.argmax()]
    assert float(probability) == pytest.approx(wanted.max(), abs=0.01)


def test_the_other_programs_for_phones_use_the_card():
    blocks = {block.language: block.code for block in pages.blocks(read(pages.ROOT / "docs/how_to/phone.md"))}
    for language in ("python", "kotlin", "swift"):
        code = blocks[language]
        assert "class_names" in code and "image_shape" in code, language
        assert "224" not in code
        assert all(code.count(first) == code.count(last) for first, last in ("()", "{}", "[]"))
