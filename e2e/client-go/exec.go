package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// It shows all three streams, the end of the first, and an exit code.
var command = []string{"sh", "-c", "cat; echo err >&2; exit 7"}

type execSeen struct {
	Bytes  int
	Stderr string
	Code   int
	// Whether WebSocket was tried in vain.
	FellBack bool `json:",omitempty"`
}

func execSpdy(ctx context.Context, t target) (any, error) {
	return execute(ctx, t, func(config *rest.Config, where *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, where)
	})
}

func execWebSocket(ctx context.Context, t target) (any, error) {
	return execute(ctx, t, func(config *rest.Config, where *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, where.String())
	})
}

// execFallback is what kubectl does: WebSocket first, and SPDY where that is refused.
func execFallback(ctx context.Context, t target) (any, error) {
	fellBack := false
	seen, err := execute(ctx, t, func(config *rest.Config, where *url.URL) (remotecommand.Executor, error) {
		first, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, where.String())
		if err != nil {
			return nil, err
		}
		second, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, where)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewFallbackExecutor(first, second, func(err error) bool {
			fellBack = httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
			return fellBack
		})
	})
	if seen, ok := seen.(execSeen); ok {
		seen.FellBack = fellBack
		return seen, err
	}
	return seen, err
}

type newExecutor func(*rest.Config, *url.URL) (remotecommand.Executor, error)

// execute sends a mebibyte through a command and wants it back.
func execute(ctx context.Context, t target, by newExecutor) (any, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	where := client.CoreV1().RESTClient().Post().
		Namespace(t.namespace).Resource("pods").Name(t.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: t.container,
			Command:   command,
			Stdin:     true,
			Stdout:    true,
			Stderr:    true,
		}, scheme.ParameterCodec).
		URL()
	executor, err := by(rest.CopyConfig(t.config), where)
	if err != nil {
		return nil, err
	}
	sent := mebibyte()
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin:  bytes.NewReader(sent),
		Stdout: &stdout,
		Stderr: &stderr,
	})
	var exit utilexec.CodeExitError
	if !errors.As(err, &exit) {
		return nil, fmt.Errorf("instead of an exit code after %d bytes: %v", stdout.Len(), err)
	}
	if exit.Code != 7 || stderr.String() != "err\n" {
		return nil, fmt.Errorf("exit code %d, stderr %q", exit.Code, stderr.String())
	}
	if !bytes.Equal(stdout.Bytes(), sent) {
		return nil, fmt.Errorf("other bytes came back: %d for %d", stdout.Len(), len(sent))
	}
	return execSeen{Bytes: stdout.Len(), Stderr: stderr.String(), Code: exit.Code}, nil
}

// mebibyte has no period that divides the size of a buffer or a frame, so that
// a piece lost, doubled or out of its place shows.
func mebibyte() []byte {
	data := make([]byte, 1<<20)
	for at := range data {
		data[at] = byte(at*7 + at>>8*13 + at>>16*101)
	}
	return data
}
