"""What users of the official Python client do: ask who they are, list, watch, exec.

client.py NAMESPACE POD CONTAINER prints one line of JSON with what it saw.
"""

import json
import ssl
import sys
import urllib.request

from kubernetes import client, config, watch
from kubernetes.stream import stream

# Nothing needs a tenth of this on an idle machine.
SECONDS = 60

TYPED = "to the pod and back"


def watched(core, namespace):
    """The types of the events of a ConfigMap that comes, changes and goes."""
    name = "from-python"
    body = {"metadata": {"name": name}}
    core.create_namespaced_config_map(namespace, body)
    seen = []
    following = watch.Watch()
    for event in following.stream(
        core.list_namespaced_config_map,
        namespace,
        field_selector=f"metadata.name={name}",
        timeout_seconds=SECONDS,
    ):
        seen.append(event["type"])
        if event["type"] == "ADDED":
            core.patch_namespaced_config_map(name, namespace, {"data": {"a": "b"}})
        elif event["type"] == "MODIFIED":
            core.delete_namespaced_config_map(name, namespace)
        else:
            following.stop()
    return seen


def ran(core, namespace, pod, container):
    """What a command in a container says, and how it ends."""
    script = f"head -c {len(TYPED)}; echo err >&2; exit 7"
    process = stream(
        core.connect_get_namespaced_pod_exec,
        pod,
        namespace,
        container=container,
        command=["sh", "-c", script],
        stdin=True,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    process.write_stdin(TYPED)
    process.run_forever(timeout=SECONDS)
    return {
        "stdout": process.read_stdout(),
        "stderr": process.read_stderr(),
        "code": process.returncode,
    }


def strictly(configuration):
    """The status of an answer on a connection as Python opens them from 3.13 on."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(configuration.cert_file, configuration.key_file)
    url = configuration.host + "/version"
    with urllib.request.urlopen(url, timeout=SECONDS, context=context) as answer:
        return answer.status


def main(namespace, pod, container):
    config.load_kube_config()
    core = client.CoreV1Api()
    review = client.AuthenticationV1Api().create_self_subject_review({})
    listed = core.list_namespaced_pod(namespace)
    print(
        json.dumps(
            {
                "user": review.status.user_info.username,
                "pods": [pod.metadata.name for pod in listed.items],
                "watched": watched(core, namespace),
                "ran": ran(core, namespace, pod, container),
                "strictly": strictly(core.api_client.configuration),
            }
        )
    )


main(*sys.argv[1:])
