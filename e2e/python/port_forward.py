"""Port-forward with the official Python client: a WebSocket with v4.channel.k8s.io.

port_forward.py KUBECONFIG CONTEXT NAMESPACE POD PORT prints one line of JSON: the response of
the HTTP server at the port, and the error for a port without a listener.
"""

import json
import sys
import time

from kubernetes import client, config
from kubernetes.stream import portforward

# On an idle machine every operation takes less than a tenth of this.
TIMEOUT_SECONDS = 60

# The discard service: nothing in a pod of the playground listens there.
CLOSED_PORT = 9


def http_response(socket):
    socket.settimeout(TIMEOUT_SECONDS)
    socket.sendall(b"GET / HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
    data = b""
    while chunk := socket.recv(65536):
        data += chunk
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
    response = http_response(forwarded.socket(port))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while forwarded.error(CLOSED_PORT) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    print(json.dumps({"response": response, "error": forwarded.error(CLOSED_PORT)}))


main(*sys.argv[1:])
