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

// Query parameters that are the same in every run. A resource version is not.
var recordedParameters = []string{"allowWatchBookmarks", "fieldManager", "force", "limit", "resourceVersionMatch", "sendInitialEvents", "watch"}

// requestRecorder records the requests and responses of a client, which itself reports
// neither their encoding nor failed attempts.
type requestRecorder struct {
	namespace    string
	next         http.RoundTripper
	mutex        sync.Mutex
	exchanges    []string
	contentTypes []string
}

// withRecorder returns the target with a client configuration that records its requests.
func (t target) withRecorder() (target, *requestRecorder) {
	recorder := &requestRecorder{namespace: t.namespace}
	t.config = rest.CopyConfig(t.config)
	t.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		recorder.next = next
		return recorder
	})
	return t, recorder
}

func (r *requestRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	contentType := response.Header.Get("Content-Type")
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.contentTypes = append(r.contentTypes, contentType)
	r.exchanges = append(r.exchanges, fmt.Sprintf("%s %s%s%s: %d %s%s",
		request.Method,
		strings.TrimPrefix(request.URL.Path, "/api/v1/namespaces/"+r.namespace+"/"),
		query(request.URL.Query()),
		inParentheses(request.Header.Get("Content-Type")),
		response.StatusCode,
		contentType,
		compression(response)))
	return response, nil
}

// recordedExchanges returns all exchanges so far, in order.
func (r *requestRecorder) recordedExchanges() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return slices.Clone(r.exchanges)
}

// requireContentType fails unless every response had this content type, or that of a stream of it.
func (r *requestRecorder) requireContentType(mediaType string) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for number, contentType := range r.contentTypes {
		if !strings.HasPrefix(contentType, mediaType) {
			return fmt.Errorf("not %s: %s", mediaType, r.exchanges[number])
		}
	}
	return nil
}

func query(all url.Values) string {
	shown := url.Values{}
	for _, name := range recordedParameters {
		if all.Has(name) {
			shown.Set(name, all.Get(name))
		}
	}
	// Its value is opaque.
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
