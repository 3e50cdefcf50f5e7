import os
import re

import pytest

from keras_vit.tf_serving import deployment

yaml = pytest.importorskip("yaml")


def render(name="pets", batch_sizes=(1, 4, 8), model_bytes=350_000_000):
    return deployment.render(name, batch_sizes, model_bytes)


def test_all_files_are_written(tmp_path):
    folder = deployment.write(str(tmp_path), "pets", [1, 8, 4], 1000)
    assert sorted(os.listdir(folder)) == [
        "batching.config",
        "docker-compose.yml",
        "kubernetes.yaml",
        "models.config",
        "monitoring.config",
    ]
    for name, text in deployment.render("pets", [1, 8, 4], 1000).items():
        assert (tmp_path / "deployment" / name).read_text() == text
        assert "@" not in text


def test_batches_match_the_warm_up():
    lines = render(batch_sizes=[8, 1, 4, 4])["batching.config"].splitlines()
    # The server demands that the sizes ascend and that the largest is max_batch_size.
    assert [line for line in lines if line.startswith("allowed")] == [f"allowed_batch_sizes: {n}" for n in (1, 4, 8)]
    assert "max_batch_size { value: 8 }" in lines


def test_models_config_is_what_the_server_parses(published):
    config_pb2 = published("tensorflow_serving.config.model_server_config_pb2")
    text_format = published("google.protobuf.text_format")
    parsed = text_format.Parse(render()["models.config"], config_pb2.ModelServerConfig())
    (config,) = parsed.model_config_list.config
    assert (config.name, config.base_path, config.model_platform) == ("pets", "/models/pets", "tensorflow")
    assert config.model_version_policy.latest.num_versions == 1


def test_compose_serves_the_folder_above_on_this_machine():
    (service,) = yaml.safe_load(render()["docker-compose.yml"])["services"].values()
    assert service["volumes"] == ["..:/models/pets:ro"]
    assert service["ports"] == ["${BIND:-127.0.0.1}:8500:8500", "${BIND:-127.0.0.1}:8501:8501"]
    assert "--model_config_file=/models/pets/deployment/models.config" in service["command"]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["mem_limit"] == f"{deployment.memory(350_000_000, 8)[1]}m"
    probe = service["healthcheck"]["test"]
    assert probe[:3] == ["CMD", "bash", "-c"]
    assert "GET /v1/models/pets HTTP/1.0\\r\\n\\r\\n" in probe[3]


def test_the_image_is_pinned():
    files = render()
    (service,) = yaml.safe_load(files["docker-compose.yml"])["services"].values()
    (_, workload, _) = yaml.safe_load_all(files["kubernetes.yaml"])
    image = workload["spec"]["template"]["spec"]["containers"][0]["image"]
    assert re.fullmatch(r"tensorflow/serving:\d+\.\d+\.\d+", image)
    assert service["image"] == f"${{TF_SERVING_IMAGE:-{image}}}"


def test_kubernetes_parts_fit_together():
    files = render("my.pets", [1, 4])
    config, workload, service = yaml.safe_load_all(files["kubernetes.yaml"])
    template = workload["spec"]["template"]
    assert workload["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"] == service["spec"]["selector"]
    for name in ("models.config", "batching.config", "monitoring.config"):
        assert config["data"][name].rstrip("\n") == files[name].rstrip("\n")
    (container,) = template["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"models": "/models/my.pets", "config": "/config", "temporary": "/tmp"}
    assert {volume["name"] for volume in template["spec"]["volumes"]} == set(mounts)
    for argument in container["args"]:
        name, value = argument.removeprefix("--").split("=")
        if name.endswith("_file"):
            assert os.path.dirname(value) == "/config"
            assert os.path.basename(value) in config["data"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models/my.pets"
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports


def test_the_container_has_no_rights_that_it_does_not_need():
    _, workload, _ = yaml.safe_load_all(render()["kubernetes.yaml"])
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_memory_follows_the_size_of_the_model():
    assert deployment.memory(0, 8) == (512, 1536)
    request, limit = deployment.memory(1200 << 20, 8)  # ViT-L/16
    assert 1200 + 512 <= request < limit
    assert limit >= 1024 + 3 * 1200
    _, workload, _ = yaml.safe_load_all(render(model_bytes=1200 << 20)["kubernetes.yaml"])
    resources = workload["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (f"{request}Mi", f"{limit}Mi")


@pytest.mark.parametrize(
    "name", ["pets", "p", "a.b", "a_b", "9lives", "x" * 55, "x" * 56, "x" * 63, "a" + "." * 61 + "b"]
)
def test_names_in_kubernetes_are_dns_labels(name):
    documents = list(yaml.safe_load_all(render(name)["kubernetes.yaml"]))
    (_, workload, _) = documents
    labels = [document["metadata"]["name"] for document in documents]
    labels += workload["spec"]["template"]["metadata"]["labels"].values()
    (claim,) = (v for v in workload["spec"]["template"]["spec"]["volumes"] if v["name"] == "models")
    labels.append(claim["persistentVolumeClaim"]["claimName"])
    for label in labels:
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", label)


def test_names_in_kubernetes_do_not_collide():
    names = ["a.b", "a_b", "a-b", "x" * 60, "x" * 61]
    assert len({deployment.resource_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", "Pets", "a b", "../up", "x" * 64, "-a", 'a"b'])
def test_names_that_cannot_be_served(name):
    with pytest.raises(ValueError, match="name of a served model"):
        deployment.check_name(name)


def test_batch_sizes_must_be_positive():
    for sizes in ([], [0, 2]):
        with pytest.raises(ValueError, match="batch sizes of at least 1"):
            deployment.check_batch_sizes(sizes)
