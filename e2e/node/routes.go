package main

import (
	"fmt"
	"log"
	"net/http"
	"strconv"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	// Longer than any test.
	idleTimeout = time.Hour
	// For a client that requests streams and does not open them.
	streamCreationTimeout = remotecommand.DefaultStreamCreationTimeout
	// The number of log lines of every container.
	logLines = 1000
)

// routes serves the kubelet paths that kube-apiserver uses for pods.
func routes(c container) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", logs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", c.exec)
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", c.attach)
	mux.HandleFunc("/portForward/{namespace}/{pod}", c.portForward)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Println(r.Method, r.URL.Path, r.Header.Get("Upgrade"))
		mux.ServeHTTP(w, r)
	})
}

// logs sends the same lines for every container. With follow each line is flushed, and
// the response then ends as if the container had exited.
func logs(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	count := logLines
	if tail := query.Get("tailLines"); tail != "" {
		lines, err := strconv.Atoi(tail)
		if err != nil || lines < 0 {
			http.Error(w, "tailLines is not a number", http.StatusBadRequest)
			return
		}
		count = min(lines, logLines)
	}
	follow := query.Get("follow") == "true"
	w.Header().Set("Content-Type", "text/plain")
	for line := logLines - count + 1; line <= logLines; line++ {
		fmt.Fprintf(w, "line %d of %s\n", line, r.PathValue("container"))
		if follow {
			w.(http.Flusher).Flush()
		}
	}
}

func (c container) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, c, r.PathValue("pod"), "", r.PathValue("container"),
		r.URL.Query()["command"], options, idleTimeout, streamCreationTimeout,
		remotecommand.SupportedStreamingProtocols)
}

func (c container) attach(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, r, c, r.PathValue("pod"), "", r.PathValue("container"),
		options, idleTimeout, streamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

func (c container) portForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, c, r.PathValue("pod"), "", options, idleTimeout, streamCreationTimeout,
		portforward.SupportedProtocols)
}
