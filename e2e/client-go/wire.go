package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Parameters of a request that are the same at every run; a resource version is
// not.
var told = []string{"allowWatchBookmarks", "fieldManager", "force", "limit", "resourceVersionMatch", "sendInitialEvents", "watch"}

// wire remembers what was really asked and answered: a client shows neither
// the encoding nor what it tried before.
type wire struct {
	namespace string
	next      http.RoundTripper
	mutex     sync.Mutex
	exchanges []string
	types     []string
}

// recorded is the target with a look at the wire.
func (t target) recorded() (target, *wire) {
	seen := &wire{namespace: t.namespace}
	t.config = rest.CopyConfig(t.config)
	t.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		seen.next = next
		return seen
	})
	return t, seen
}

func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	answered := response.Header.Get("Content-Type")
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.types = append(w.types, answered)
	w.exchanges = append(w.exchanges, fmt.Sprintf("%s %s%s%s: %d %s%s",
		request.Method,
		strings.TrimPrefix(request.URL.Path, "/api/v1/namespaces/"+w.namespace+"/"),
		query(request.URL.Query()),
		inParentheses(request.Header.Get("Content-Type")),
		response.StatusCode,
		answered,
		compression(response)))
	return response, nil
}

// seen is every exchange so far, in order.
func (w *wire) seen() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.Clone(w.exchanges)
}

// onlyAnswered fails unless every answer was of this type, or a stream of it.
func (w *wire) onlyAnswered(mediaType string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for number, answered := range w.types {
		if !strings.HasPrefix(answered, mediaType) {
			return fmt.Errorf("not %s: %s", mediaType, w.exchanges[number])
		}
	}
	return nil
}

func query(all url.Values) string {
	shown := url.Values{}
	for _, name := range told {
		if all.Has(name) {
			shown.Set(name, all.Get(name))
		}
	}
	// Its value is a secret of the server.
	if all.Has("continue") {
		shown.Set("continue", "")
	}
	if len(shown) == 0 {
		return ""
	}
	return "?" + shown.Encode()
}

func inParentheses(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func compression(response *http.Response) string {
	if response.Uncompressed {
		return " compressed"
	}
	return ""
}
