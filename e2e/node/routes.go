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
	idle = time.Hour
	// For a client that asks for streams and does not open them.
	opening = remotecommand.DefaultStreamCreationTimeout
	// How many lines every container has logged.
	logged = 1000
)

// routes are the paths under which kube-apiserver looks for a pod's streams.
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

// logs are the same lines for everybody. One who follows gets each as it
// comes, and then the end of the container.
func logs(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	count := logged
	if tail := query.Get("tailLines"); tail != "" {
		lines, err := strconv.Atoi(tail)
		if err != nil || lines < 0 {
			http.Error(w, "tailLines is not a number", http.StatusBadRequest)
			return
		}
		count = min(lines, logged)
	}
	follow := query.Get("follow") == "true"
	w.Header().Set("Content-Type", "text/plain")
	for line := logged - count + 1; line <= logged; line++ {
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
		r.URL.Query()["command"], options, idle, opening,
		remotecommand.SupportedStreamingProtocols)
}

func (c container) attach(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, r, c, r.PathValue("pod"), "", r.PathValue("container"),
		options, idle, opening, remotecommand.SupportedStreamingProtocols)
}

func (c container) portForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, c, r.PathValue("pod"), "", options, idle, opening,
		portforward.SupportedProtocols)
}
