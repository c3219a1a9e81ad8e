"""Uses the official Python client as its users do: user name, list, watch, exec.

client.py NAMESPACE POD CONTAINER prints its results as one line of JSON.
"""

import json
import ssl
import sys
import urllib.request

from kubernetes import client, config, watch
from kubernetes.stream import stream

# On an idle machine every operation takes less than a tenth of this.
TIMEOUT_SECONDS = 60

STDIN = "to the pod and back"


def watch_events(core, namespace):
    """The event types of a ConfigMap that is created, patched and deleted."""
    name = "from-python"
    body = {"metadata": {"name": name}}
    core.create_namespaced_config_map(namespace, body)
    events = []
    watcher = watch.Watch()
    for event in watcher.stream(
        core.list_namespaced_config_map,
        namespace,
        field_selector=f"metadata.name={name}",
        timeout_seconds=TIMEOUT_SECONDS,
    ):
        events.append(event["type"])
        if event["type"] == "ADDED":
            core.patch_namespaced_config_map(name, namespace, {"data": {"a": "b"}})
        elif event["type"] == "MODIFIED":
            core.delete_namespaced_config_map(name, namespace)
        else:
            watcher.stop()
    return events


def run_command(core, namespace, pod, container):
    """The output and the exit code of a command in a container."""
    script = f"head -c {len(STDIN)}; echo err >&2; exit 7"
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
    process.write_stdin(STDIN)
    process.run_forever(timeout=TIMEOUT_SECONDS)
    return {
        "stdout": process.read_stdout(),
        "stderr": process.read_stderr(),
        "code": process.returncode,
    }


def strict_tls_status(configuration):
    """The HTTP status on a connection with the certificate checks that are default from
    Python 3.13 on."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(configuration.cert_file, configuration.key_file)
    url = configuration.host + "/version"
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS, context=context) as response:
        return response.status


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
                "events": watch_events(core, namespace),
                "command": run_command(core, namespace, pod, container),
                "strict_tls_status": strict_tls_status(core.api_client.configuration),
            }
        )
    )


main(*sys.argv[1:])
