"""What must agree between the files of deploy/kubernetes/, and with the container file and the join script."""
import pathlib
import re
import shutil
import subprocess

import yaml

TOP = pathlib.Path(__file__).resolve().parents[3]
FOLDER = TOP / "deploy/kubernetes"
SECRETS = {"nsa-coordinator", "nsa-agents"}  # made by the commands of the README


def read_files():
    """All objects, by file."""
    return {file.name: list(yaml.safe_load_all(file.read_text())) for file in sorted(FOLDER.glob("*.yaml"))}


def one(objects, kind, name):
    (found,) = [thing for thing in objects if thing["kind"] == kind and thing["metadata"]["name"] == name]
    return found


def pods(objects):
    """Name, labels and pod specification of everything that starts pods."""
    owners = [(thing, thing.get("spec", {}).get("jobTemplate", thing).get("spec", {})) for thing in objects]
    return [(thing["metadata"]["name"], spec["template"]["metadata"]["labels"], spec["template"]["spec"], thing) for thing, spec in owners if "template" in spec]


def claims(objects):
    """Names of the claims: those of files, and those that a StatefulSet makes for its first pod."""
    made = {f"{claim['metadata']['name']}-{thing['metadata']['name']}-0" for thing in objects for claim in thing.get("spec", {}).get("volumeClaimTemplates", [])}
    return made | {thing["metadata"]["name"] for thing in objects if thing["kind"] == "PersistentVolumeClaim"}


def check_volumes(name, spec, owner, objects):
    """Every mount has a volume, every volume is mounted, and what volumes take is there."""
    volumes = {volume["name"] for volume in spec["volumes"]} | {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])}
    mounts = {mount["name"] for container in containers(spec) for mount in container["volumeMounts"]}
    assert volumes == mounts, f"{name}: volumes {volumes}, mounts {mounts}"
    for volume in spec["volumes"]:
        if "configMap" in volume:
            one(objects, "ConfigMap", volume["configMap"]["name"])
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims(objects), volume
        if "secret" in volume:
            assert volume["secret"]["secretName"] in SECRETS, volume
    one(objects, "ServiceAccount", spec["serviceAccountName"])


def containers(spec):
    return [*spec.get("initContainers", []), *spec["containers"]]


def check_security(name, spec, uid):
    """What "restricted" asks for (but for the hostPath), no access to Kubernetes, nothing writable but volumes."""
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"] is True and pod["runAsUser"] == uid and pod["fsGroup"] == uid, name
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"} and pod["fsGroupChangePolicy"] == "OnRootMismatch", name
    assert spec["automountServiceAccountToken"] is False, name
    for container in containers(spec):
        own = container["securityContext"]
        assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, (name, container["name"])
        assert "requests" in container["resources"], (name, container["name"])


def check_selectors(objects):
    for thing in objects:
        selector = thing.get("spec", {}).get("selector")
        if thing["kind"] == "Service":
            assert any(selector.items() <= labels.items() for _, labels, _, _ in pods(objects)), thing["metadata"]
        elif selector:
            labels = thing["spec"]["template"]["metadata"]["labels"]
            assert selector["matchLabels"].items() <= labels.items(), thing["metadata"]
    # The network policies choose by the same labels.
    names = {labels["app.kubernetes.io/name"] for _, labels, _, _ in pods(objects)}
    text = (FOLDER / "4-network.yaml").read_text()
    assert names == {"nsa-coordinator", "nsa-agent", "nsa-backup", "nsa-gang"} and all(name in text for name in names), names


def check_addresses(objects):
    """The ports and the name of the coordinator are the same everywhere."""
    coordinator = yaml.safe_load(one(objects, "ConfigMap", "nsa-coordinator")["data"]["coordinator.yaml"])
    agent = yaml.safe_load(one(objects, "ConfigMap", "nsa-agent")["data"]["agent.yaml"])
    service = one(objects, "Service", "nsa-coordinator")
    owner = one(objects, "StatefulSet", "nsa-coordinator")
    (main,) = owner["spec"]["template"]["spec"]["containers"]
    numbers = {name: int(coordinator[key].rpartition(":")[2]) for name, key in (("grpc", "listen_address"), ("metrics", "metrics_address"))}
    assert {one["name"]: one["containerPort"] for one in main["ports"]} == numbers, main["ports"]
    assert {one["targetPort"]: one["port"] for one in service["spec"]["ports"]} == numbers, service["spec"]["ports"]
    number = numbers["grpc"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert agent["coordinator_address"] == f"{host}:{number}" and owner["spec"]["serviceName"] == service["metadata"]["name"], agent
    for text in (FOLDER / "join_nodes.sh").read_text(), (FOLDER / "README.md").read_text():
        assert f"--host {host}" in text
    ingress = one(objects, "NetworkPolicy", "nsa-coordinator")["spec"]["ingress"]
    assert [rule["ports"] for rule in ingress] == [[{"protocol": "TCP", "port": name}] for name in numbers], ingress
    assert f"{host}:{numbers['metrics']}" in (FOLDER / "README.md").read_text() and coordinator["page_url"] == f"https://{host}:{numbers['metrics']}/"
    assert f"port: {number}" in (FOLDER / "4-network.yaml").read_text()


def check_scripts(objects):
    """What shellcheck finds in the scripts of the ConfigMaps, where it is installed."""
    if shutil.which("shellcheck") is None:
        return
    scripts = {name: text for thing in objects if thing["kind"] == "ConfigMap" for name, text in thing["data"].items() if name.endswith(".sh")}
    assert set(scripts) == {"prepare.sh", "rank.sh"}, scripts.keys()
    scripts["run_daemon.sh"] = (TOP / "deploy/docker/run_daemon.sh").read_text()
    for name, text in scripts.items():
        found = subprocess.run(["shellcheck", "-s", "sh", "-"], input=text, capture_output=True, text=True, check=False).stdout
        assert not found, f"{name}: {found}"


def check_ends(objects):
    """A pod has as long to end as its processes take."""
    default = float(re.search(r"stop_grace_seconds, ([\d.]+)\)", (TOP / "common/job/defaults.cc").read_text())[1])
    spec = one(objects, "DaemonSet", "nsa-agent")["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    stop = int({entry["name"]: entry.get("value") for entry in agent["env"]}["STOP_SECONDS"])
    assert stop == 10 * default < spec["terminationGracePeriodSeconds"], (stop, default)


def check(bin_dir):
    """Everything that needs no program to run."""
    files = read_files()
    objects = [thing for things in files.values() for thing in things]
    uid = int(re.search(r"--uid (\d+)", (TOP / "deploy/docker/Dockerfile").read_text())[1])
    images = set()
    for name, _, spec, owner in pods(objects):
        check_volumes(name, spec, owner, objects)
        check_security(name, spec, uid)
        for container in containers(spec):
            images.add(container["image"])
            for program in re.findall(r"/opt/nsa/bin/([\w-]+)", " ".join(container["command"])):
                assert (bin_dir / program).exists(), program
    assert len(images) == 1, images
    assert all(thing["metadata"].get("namespace") == "nsa" for thing in objects if thing["kind"] != "Namespace")
    check_selectors(objects)
    check_addresses(objects)
    check_ends(objects)
    check_scripts(objects)
    readme = (FOLDER / "README.md").read_text()
    for file in FOLDER.iterdir():
        assert file.name in readme, f"README.md does not name {file.name}"
    return objects
