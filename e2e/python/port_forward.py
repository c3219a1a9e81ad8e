"""Port-forward by the official Python client: a WebSocket with v4.channel.k8s.io.

port_forward.py KUBECONFIG CONTEXT NAMESPACE POD PORT prints one line of JSON: what the HTTP
server at the port answers, and what is said of a port that nothing listens on.
"""

import json
import sys
import time

from kubernetes import client, config
from kubernetes.stream import portforward

# Nothing needs a tenth of this on an idle machine.
SECONDS = 60

# The discard service: nothing in a pod of the playground listens there.
CLOSED_PORT = 9


def answer(socket):
    socket.settimeout(SECONDS)
    socket.sendall(b"GET / HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
    data = b""
    while piece := socket.recv(65536):
        data += piece
    return data.decode()


def main(kubeconfig, context, namespace, pod, port):
    config.load_kube_config(kubeconfig, context)
    core = client.CoreV1Api()
    port = int(port)
    forwarded = portforward(
        core.connect_get_namespaced_pod_portforward,
        pod,
        namespace,
        ports=f"{port},{CLOSED_PORT}",
    )
    answered = answer(forwarded.socket(port))
    until = time.monotonic() + SECONDS
    while forwarded.error(CLOSED_PORT) is None and time.monotonic() < until:
        time.sleep(0.01)
    print(json.dumps({"answer": answered, "error": forwarded.error(CLOSED_PORT)}))


main(*sys.argv[1:])
