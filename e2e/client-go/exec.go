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

// Uses all three streams, ends at the end of stdin, and has an exit code.
var command = []string{"sh", "-c", "cat; echo err >&2; exit 7"}

type execResult struct {
	Bytes  int
	Stderr string
	Code   int
	// Whether WebSocket was refused and SPDY was used.
	FellBack bool `json:",omitempty"`
}

func execSpdy(ctx context.Context, t target) (any, error) {
	return execute(ctx, t, func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
	})
}

func execWebSocket(ctx context.Context, t target) (any, error) {
	return execute(ctx, t, func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	})
}

// execFallback does what kubectl does: it tries WebSocket first, and SPDY if that is
// refused.
func execFallback(ctx context.Context, t target) (any, error) {
	fellBack := false
	result, err := execute(ctx, t, func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		first, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
		if err != nil {
			return nil, err
		}
		second, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewFallbackExecutor(first, second, func(err error) bool {
			fellBack = httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
			return fellBack
		})
	})
	if result, ok := result.(execResult); ok {
		result.FellBack = fellBack
		return result, err
	}
	return result, err
}

type newExecutor func(*rest.Config, *url.URL) (remotecommand.Executor, error)

// execute sends a mebibyte to a command and compares it with the output.
func execute(ctx context.Context, t target, newExecutor newExecutor) (any, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	url := client.CoreV1().RESTClient().Post().
		Namespace(t.namespace).Resource("pods").Name(t.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: t.container,
			Command:   command,
			Stdin:     true,
			Stdout:    true,
			Stderr:    true,
		}, scheme.ParameterCodec).
		URL()
	executor, err := newExecutor(rest.CopyConfig(t.config), url)
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
		return nil, fmt.Errorf("expected an exit code, got after %d bytes: %v", stdout.Len(), err)
	}
	if exit.Code != 7 || stderr.String() != "err\n" {
		return nil, fmt.Errorf("exit code %d, stderr %q", exit.Code, stderr.String())
	}
	if !bytes.Equal(stdout.Bytes(), sent) {
		return nil, fmt.Errorf("received other bytes than were sent: %d instead of %d", stdout.Len(), len(sent))
	}
	return execResult{Bytes: stdout.Len(), Stderr: stderr.String(), Code: exit.Code}, nil
}

// mebibyte has no period that divides the size of a buffer or a frame, so that a lost,
// duplicated or misplaced part is detected.
func mebibyte() []byte {
	data := make([]byte, 1<<20)
	for at := range data {
		data[at] = byte(at*7 + at>>8*13 + at>>16*101)
	}
	return data
}
