import os

import pytest
import yaml

from keras_vit.serving import deployment


def test_all_files_are_written(tmp_path):
    folder = deployment.write(str(tmp_path), "pets", [1, 8, 4])
    assert sorted(os.listdir(folder)) == [
        "batching.config",
        "docker-compose.yml",
        "kubernetes.yaml",
        "models.config",
        "monitoring.config",
    ]


def test_batches_match_the_warm_up():
    lines = deployment.batching_config([8, 1, 4, 4]).splitlines()
    # The server demands that the sizes ascend and that the largest is max_batch_size.
    assert [line for line in lines if "allowed" in line] == [f"allowed_batch_sizes: {size}" for size in (1, 4, 8)]
    assert "max_batch_size { value: 8 }" in lines


def test_models_config_is_what_the_server_parses():
    config_pb2 = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    parsed = text_format.Parse(deployment.models_config("pets"), config_pb2.ModelServerConfig())
    (config,) = parsed.model_config_list.config
    assert (config.name, config.base_path, config.model_platform) == ("pets", "/models/pets", "tensorflow")
    assert config.model_version_policy.latest.num_versions == 1


def test_compose_serves_the_folder_above():
    (service,) = yaml.safe_load(deployment.docker_compose("pets"))["services"].values()
    assert service["volumes"] == ["..:/models/pets:ro"]
    assert service["ports"] == ["8500:8500", "8501:8501"]
    assert "--model_config_file=/models/pets/deployment/models.config" in service["command"]
    probe = service["healthcheck"]["test"]
    assert probe[:3] == ["CMD", "bash", "-c"]
    assert "GET /v1/models/pets HTTP/1.0\r\n\r\n" in probe[3]


def test_kubernetes_parts_fit_together():
    config, workload, service = yaml.safe_load_all(deployment.kubernetes("my.pets", [1, 4]))
    template = workload["spec"]["template"]
    assert workload["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"] == service["spec"]["selector"]
    assert config["data"]["models.config"] == deployment.models_config("my.pets")
    assert config["data"]["batching.config"] == deployment.batching_config([1, 4])
    (container,) = template["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"models": "/models/my.pets", "config": "/config"}
    assert {volume["name"] for volume in template["spec"]["volumes"]} == set(mounts)
    for argument in container["args"]:
        name, value = argument.removeprefix("--").split("=")
        if name.endswith("_file"):
            assert os.path.dirname(value) == "/config"
            assert os.path.basename(value) in config["data"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models/my.pets"
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports


@pytest.mark.parametrize("name", ["", "Pets", "a b", "../up", "x" * 64, "-a", 'a"b'])
def test_names_that_cannot_be_served(name):
    with pytest.raises(ValueError, match="name of a served model"):
        deployment.check_name(name)


def test_batch_sizes_must_be_positive():
    for sizes in ([], [0, 2]):
        with pytest.raises(ValueError, match="batch sizes of at least 1"):
            deployment.check_batch_sizes(sizes)
