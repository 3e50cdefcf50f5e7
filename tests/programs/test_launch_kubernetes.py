"""The YAML of `keras-vit launch`, checked against the schemas of Kubernetes and JobSet, and the slices of TPUs."""

import copy
import json
import os
import pathlib
import stat
import subprocess

import pytest

from keras_vit.runs import restarts
from keras_vit.training import distribute
from tests.programs.test_launch import NEEDS_A_PERSON, ODD, job, rendered
from train.launching import files, tpus

SCHEMA = pathlib.Path(__file__).parent / "jobset_schema.json"


def documents(text):
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(text))


def check(document):
    """Raise an error for a document with a field that Kubernetes does not know, or of another type.

    The Jobs of a JobSet are templates of the kind Job; its own fields are those of its published schema.
    """
    validator = pytest.importorskip("kubernetes_validate")
    version = validator.latest_version()
    if document["kind"] != "JobSet":
        validator.validate(document, version, strict=True)
        return
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    pytest.importorskip("jsonschema").Draft202012Validator(schema).validate(document)
    for replicated in document["spec"]["replicatedJobs"]:
        template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, **replicated["template"]}
        validator.validate(template, version, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kinds"), [("kubernetes", {"Service", "Job"}), ("jobset", {"JobSet"})])
def test_kubernetes_accepts_the_files(target, kinds):
    for text in rendered(target):
        assert "{{" not in text
        assert {document["kind"] for document in documents(text)} - {"ConfigMap"} == kinds
        for document in documents(text):
            check(document)


def paths(value, prefix=()):
    """The paths of all fields of a document."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*prefix, key)
        if isinstance(child, dict | list):
            yield from paths(child, (*prefix, key))


FREE = {"metadata", "labels", "annotations", "nodeSelector", "limits", "requests", "matchLabels", "data", "selector"}


@pytest.mark.slow
def test_misspelled_fields_are_reported():
    """In the name of any field; those of labels, selectors and resources are free."""
    validator = pytest.importorskip("kubernetes_validate")
    errors = (validator.ValidationError, pytest.importorskip("jsonschema").ValidationError)
    for document in [documents(next(rendered(target)))[-1] for target in ("kubernetes", "jobset")]:
        check(document)
        found = [path for path in paths(document) if path[0] == "spec" and not FREE & set(path[:-1])]
        assert len(found) > 50
        for path in [path for path in found if isinstance(path[-1], str)]:
            wrong = copy.deepcopy(document)
            parent = wrong
            for key in path[:-1]:
                parent = parent[key]
            parent[f"{path[-1]}s"] = parent.pop(path[-1])
            with pytest.raises(errors):
                check(wrong)


def test_pods_of_a_job_find_each_other(monkeypatch):
    one = job("kubernetes", nodes=3, gpus=4)
    service, batch = documents(one.render())
    pod = batch["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and pod["subdomain"] == name == batch["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    names = [variable["name"] for variable in container["env"]]
    text = container["env"][names.index("TF_CONFIG")]["value"]
    assert names.index("INDEX") < names.index("TF_CONFIG")  # Kubernetes replaces the preceding text
    assert max(names.index("INDEX"), names.index("JOB")) < names.index(restarts.VARIABLE)
    assert container["env"][names.index(restarts.VARIABLE)]["value"] == "$(JOB)-$(INDEX)"
    for index in range(3):
        monkeypatch.setenv("TF_CONFIG", text.replace("$(INDEX)", str(index)))
        distribute.check_tf_config()
        config = json.loads(os.environ["TF_CONFIG"])
        assert config["cluster"]["worker"][config["task"]["index"]] == f"{name}-{index}.{name}:2222"
    assert container["args"] == ["train", *(text.replace("$", "$$") for text in one.arguments)]
    rules = {
        rule["action"]: rule.get("onExitCodes", {}).get("values") for rule in batch["spec"]["podFailurePolicy"]["rules"]
    }
    assert rules == {"Ignore": [75, 134], "FailJob": NEEDS_A_PERSON} and batch["spec"]["backoffLimit"] == 2
    assert any(mount["mountPath"] == "/shared" for mount in container["volumeMounts"])


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_a_run_in_a_bucket_needs_no_claim(target):
    """The volume has the local copies, in the home directory of the container's user."""
    one = job(target, "gs://bucket/runs/S_16", tpu=tpus.parse("v6e-8"))
    spec = documents(one.render())[-1]["spec"]
    batch = spec["replicatedJobs"][0]["template"]["spec"] if target == "jobset" else spec
    pod = batch["template"]["spec"]
    assert {"name": "shared", "emptyDir": {}} in pod["volumes"] and "Claim" not in json.dumps(pod)
    assert {"name": "shared", "mountPath": "/root/.keras"} in pod["containers"][0]["volumeMounts"]
    assert "--workdir=gs://bucket/runs/S_16" in pod["containers"][0]["args"]


def test_a_recipe_file_is_in_the_pod(tmp_path):
    (tmp_path / "mine.py").write_text('"""Mine."""\n\n\ndef get_config():\n    return {{name}}\n')
    *_, batch, recipe = documents(job("kubernetes", recipe_file=str(tmp_path / "mine.py")).render())
    assert recipe["data"] == {"mine.py": (tmp_path / "mine.py").read_text()}
    pod = batch["spec"]["template"]["spec"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "recipe"]
    assert volume["configMap"]["name"] == recipe["metadata"]["name"]
    assert {"name": "recipe", "mountPath": files.RECIPES["kubernetes"]} in pod["containers"][0]["volumeMounts"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 0


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_unusual_names_are_quoted_in_yaml(target, tmp_path):
    mount, file = "/" + ODD.replace(": ", " "), tmp_path / ODD.replace("/", "_")
    file.write_text("text = '{{name}}: $(x)'")
    one = job(target, f"{mount}/{ODD}\n", tpu=tpus.parse("v6e-8"), container_image=ODD, recipe_file=str(file))
    with pytest.raises(ValueError, match="--workdir"):
        one.render()
    given = {"tpu": tpus.parse("v6e-8"), "container_image": ODD, "recipe_file": str(file)}
    one = job(target, f"{mount}/{ODD}", **given, arguments=["a\n\x7f"])
    *_, batch, recipe = documents(one.render())
    batch = batch["spec"]["replicatedJobs"][0]["template"] if target == "jobset" else batch
    (container,) = batch["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["train", *(text.replace("$", "$$") for text in one.arguments)]
    assert container["image"] == ODD and mount in [volume["mountPath"] for volume in container["volumeMounts"]]
    assert recipe["data"] == {files.recipe_name(str(file)): f"{file.read_text()}\n"}
    file.write_text("a\0")
    with pytest.raises(ValueError, match="--config"):
        one.render()


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "topology", "machine"),
    [  # Google Cloud's tables of v5e, v6e, v4 and v5p
        ("v5litepod-1", 1, 1, "1x1", "ct5lp-hightpu-1t"),
        ("v5e-8", 8, 1, "2x4", "ct5lp-hightpu-8t"),
        ("v5litepod-16", 16, 4, "4x4", "ct5lp-hightpu-4t"),
        ("v5litepod-128", 128, 32, "8x16", "ct5lp-hightpu-4t"),
        ("v6e-4", 4, 1, "2x2", "ct6e-standard-4t"),
        ("v6e-8", 8, 2, "2x4", "ct6e-standard-4t"),
        ("v6e-256", 256, 64, "16x16", "ct6e-standard-4t"),
        ("v4-8", 4, 1, "2x2x1", "ct4p-hightpu-4t"),
        ("v4-32", 16, 4, "2x2x4", "ct4p-hightpu-4t"),
        ("v5p-64", 32, 8, "2x4x4", "ct5p-hightpu-4t"),
        ("v5p-256", 128, 32, "4x4x8", "ct5p-hightpu-4t"),
    ],
)
def test_tpu_slices_have_the_published_topology(name, chips, hosts, topology, machine):
    found = tpus.parse(name)
    assert (found.chips, found.hosts, found.topology, found.machine) == (chips, hosts, topology, machine)
    (jobset,) = documents(job("jobset", tpu=found, slices=3).render())
    (replicated,) = jobset["spec"]["replicatedJobs"]
    pods = replicated["template"]["spec"]
    assert replicated["replicas"] == 3 and pods["parallelism"] == pods["completions"] == hosts
    assert pods["backoffLimit"] == 0 and jobset["spec"]["failurePolicy"]["maxRestarts"] == 2
    pod = pods["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips // hosts}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert (pods["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]) == NEEDS_A_PERSON


def test_hosts_have_four_or_eight_chips():
    assert tpus.parse("v6e-8", 8).hosts == 1 and tpus.parse("v5e-8", 4).hosts == 2
    for name, chips_per_vm in (("v6e-16", 8), ("v4-16", 8), ("v6e-8", 2)):
        with pytest.raises(ValueError, match="--chips_per_vm of .* must be 4.* Received"):
            tpus.parse(name, chips_per_vm)
    for name in ("v6e-2", "v6e-12", "v4-4", "v4-7", "v6e-0"):
        counted = "TensorCores.* such as v4-8, v4-16," if name[:2] == "v4" else "chips.* such as v6e-4, v6e-8,"
        with pytest.raises(ValueError, match=f"--accelerator counts {counted}.* Received: {name}"):
            tpus.parse(name)


@pytest.mark.parametrize(
    ("workdir", "name"),
    [
        ("/shared/runs/S_16.b", "s-16-b"),
        ("/shared/16-digits", "run-16-digits"),
        ("/shared/__", "run"),
        (f"/shared/{'a' * 39}_b", "a" * 39),  # at most 40 characters, of which a hyphen must not be the last
    ],
)
def test_resource_names_are_valid(workdir, name):
    assert files.resource_name(workdir) == name


GCLOUD = """#!/bin/bash
echo "$3 $4 $5" >> calls
case "$3 $4" in
"queued-resources describe") cat state 2>/dev/null || exit 1 ;;
"queued-resources create") echo ACTIVE > state; echo "$*" > created ;;
"queued-resources delete") rm state ;;
"tpu-vm ssh")
    for argument; do case $argument in --command=*) command=${argument#--command=} ;; esac; done
    case $command in
    *pip*) echo "$command" > setup ;;
    *) HOME=$PWD bash -c "$command"; code=$?; [ $code != 255 ] || echo SUSPENDED > state; exit $code ;;
    esac ;;
esac
"""


def run_tpu_vm(directory, codes, **options):
    """Run the script where the training ends with these codes, one after the other; 255 also preempts the slice."""
    program = '#!/bin/bash\necho "$KERAS_VIT_RESTART $KERAS_BACKEND $*" >> trained\n'
    program += 'read -r code < codes; sed -i 1d codes; exit "$code"\n'
    for path, text in (("bin/gcloud", GCLOUD), ("keras-vit/bin/keras-vit", program)):
        (directory / path).parent.mkdir(parents=True)
        (directory / path).write_text(text)
        (directory / path).chmod(stat.S_IRWXU)
    (directory / "codes").write_text("".join(f"{code}\n" for code in codes))
    script = job("tpu-vm", backend="jax", tpu=tpus.parse("v5e-16"), spot=True, **options).render()
    (directory / "run.sh").write_text(script)
    environment = {**os.environ, "PATH": f"{directory}/bin:{os.environ['PATH']}", "WAIT": "0"}
    command = ["bash", "run.sh", "run"]
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)
    calls = (directory / "calls").read_text().splitlines()
    return result, [call.split()[1] for call in calls if "describe" not in call]


@pytest.mark.parametrize("code", [75, 134])
def test_a_slice_is_created_again_after_a_preemption(tmp_path, code):
    result, calls = run_tpu_vm(tmp_path, [255, code, 0])
    assert result.returncode == 0, result.stderr
    assert calls == ["create", "ssh", "ssh", "delete", "create", "ssh", "ssh", "ssh", "ssh", "delete"]
    command = "jax train " + " ".join(job("tpu-vm").arguments)
    assert (tmp_path / "trained").read_text().splitlines() == [f"{number} {command}" for number in range(3)]
    created = (tmp_path / "created").read_text()
    assert all(word in created for word in ("--accelerator-type=v5litepod-16", "--spot", "v2-alpha-tpuv5-lite"))


def test_a_failed_training_keeps_its_slice(tmp_path):
    result, calls = run_tpu_vm(tmp_path, [2])
    assert result.returncode == 2 and "The slice still exists" in result.stdout
    assert calls == ["create", "ssh", "ssh"]
    setup = (tmp_path / "setup").read_text()
    assert "gcsfuse --implicit-dirs my-bucket /shared/runs" in setup and "chown $USER /shared/runs" in setup


def test_a_run_in_a_bucket_mounts_nothing(tmp_path):
    result, calls = run_tpu_vm(tmp_path, [0], workdir="gs://bucket/runs/S_16")
    assert result.returncode == 0 and calls == ["create", "ssh", "ssh", "delete"], result.stderr
    setup, trained = ((tmp_path / name).read_text() for name in ("setup", "trained"))
    assert "buckets]" in setup and "gcsfuse" not in setup and "--workdir=gs://bucket/runs/S_16" in trained


def test_a_bucket_is_mounted_at_a_directory_with_any_name(tmp_path):
    result, calls = run_tpu_vm(tmp_path, [0], workdir=f"/{ODD}/a b/run")
    assert result.returncode == 0 and calls == ["create", "ssh", "ssh", "delete"], result.stderr
    stubs = 'sudo() { printf \'%s\\n\' "$@"; }; mountpoint() { return 1; }; gcsfuse() { sudo "$@"; }\n'
    mount = (tmp_path / "setup").read_text().partition("jax-tpu,data]' && ")[2]
    mounted = subprocess.run(["bash", "-c", stubs + mount], cwd=tmp_path, capture_output=True, text=True)
    assert mounted.stdout.splitlines()[-3:] == ["--implicit-dirs", "my-bucket", f"/{ODD}/a b"], mounted.stderr
    assert mounted.stdout.splitlines()[:3] == ["mkdir", "-p", f"/{ODD}/a b"]
    assert not (tmp_path / "PWN").exists()
