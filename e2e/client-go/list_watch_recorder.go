package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// listWatchRecorder records the responses to all lists and watches of an informer. The
// informer itself does not report objects that it receives twice.
type listWatchRecorder struct {
	next http.RoundTripper
	// Called for every response other than 200. unserved: 404 was correct when the request
	// was sent.
	onErrorResponse func(request *http.Request, response *http.Response, unserved bool)
	unserved        func() bool

	mutex   sync.Mutex
	streams []*recordedStream
}

// recordedStream is a list, a watch, or a streaming list.
type recordedStream struct {
	// The resource version of the list, or the one after which the watch starts.
	from   uint64
	isList bool
	// The objects of the list.
	listed []observation
	// The events after it.
	events []observation
}

// observation is an object in a list or an event.
type observation struct {
	// "listed", or the type of the event.
	event  string
	object metav1.ObjectMeta
	at     uint64
}

// wrap returns a client configuration whose exchanges are recorded.
func (s *listWatchRecorder) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s.next = next
		return s
	})
	return config
}

func (s *listWatchRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	unserved := s.unserved()
	response, err := s.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		s.onErrorResponse(request, response, unserved)
		return response, nil
	}
	query := request.URL.Query()
	begun := &recordedStream{isList: query.Get("watch") == "" || query.Get("sendInitialEvents") == "true"}
	// A list has at least the requested version; its metadata has the exact one.
	if !begun.isList {
		begun.from, _ = strconv.ParseUint(query.Get("resourceVersion"), 10, 64)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if query.Get("watch") == "" {
		response.Body = &observedBody{ReadCloser: response.Body, end: func(body []byte) { s.list(begun, body) }}
	} else {
		response.Body = &observedBody{ReadCloser: response.Body, line: func(line []byte) { s.event(begun, line) }}
	}
	s.streams = append(s.streams, begun)
	return response, nil
}

func (s *listWatchRecorder) list(of *recordedStream, body []byte) {
	var list struct {
		Metadata metav1.ListMeta
		Items    []struct{ Metadata metav1.ObjectMeta }
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	// The informer ignores a truncated list too.
	if json.Unmarshal(body, &list) != nil || list.Metadata.Continue != "" {
		of.isList = false
		return
	}
	of.from, _ = strconv.ParseUint(list.Metadata.ResourceVersion, 10, 64)
	for _, item := range list.Items {
		of.listed = append(of.listed, observe("listed", item.Metadata))
	}
}

func (s *listWatchRecorder) event(of *recordedStream, line []byte) {
	var event struct {
		Type   string
		Object struct{ Metadata metav1.ObjectMeta }
	}
	if json.Unmarshal(line, &event) != nil || event.Type == "ERROR" {
		return
	}
	observed := observe(event.Type, event.Object.Metadata)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	isEnd := observed.object.Annotations[metav1.InitialEventsAnnotationKey] == "true"
	switch {
	case !of.isList || of.from != 0:
		of.events = append(of.events, observed)
	case isEnd:
		of.from = observed.at
	default:
		of.listed = append(of.listed, observed)
	}
}

func observe(event string, object metav1.ObjectMeta) observation {
	at, _ := strconv.ParseUint(object.ResourceVersion, 10, 64)
	return observation{event: event, object: object, at: at}
}

// verify compares all recorded responses with what was written.
func (s *listWatchRecorder) verify(written map[types.UID]objectHistory, violation func(category, format string, args ...any)) (lists, events int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range s.streams {
		if stream.from == 0 {
			continue
		}
		if stream.isList {
			lists++
			stream.verifyList(written, violation)
		}
		events += len(stream.events)
		stream.verifyEvents(written, violation)
	}
	return lists, events
}

// verifyList checks that the list has each object once, as it was at the version of the
// list.
func (s *recordedStream) verifyList(written map[types.UID]objectHistory, violation func(category, format string, args ...any)) {
	listed := map[types.UID]bool{}
	for _, observed := range s.listed {
		name := observed.object.Name
		if listed[observed.object.UID] {
			violation("duplicate in a list", "%s at %d", name, s.from)
		}
		listed[observed.object.UID] = true
		if known, ok := written[observed.object.UID]; !ok {
			violation("listed but never written", "%s at %d", name, s.from)
		} else if was := known.at(s.from); observed.at != was {
			violation("listed with a wrong version", "%s at %d: %d instead of %d", name, s.from, observed.at, was)
		}
	}
	for uid, known := range written {
		if known.at(s.from) != 0 && !known.deleting && !listed[uid] {
			violation("missing in a list", "%s at %d", known.name, s.from)
		}
	}
}

// verifyEvents checks that the watch has each write once and in order, between the first
// and the last version in it.
func (s *recordedStream) verifyEvents(written map[types.UID]objectHistory, violation func(category, format string, args ...any)) {
	last := s.from
	delivered := map[uint64]bool{}
	for _, observed := range s.events {
		name := observed.object.Name
		switch {
		case observed.event == "BOOKMARK" && observed.at >= last:
		case observed.at <= last:
			violation("out of order", "%s %s at %d after %d", observed.event, name, observed.at, last)
		}
		last = max(last, observed.at)
		known, ok := written[observed.object.UID]
		switch {
		case observed.event == "BOOKMARK":
		case !ok:
			violation("event without a write", "%s %s at %d", observed.event, name, observed.at)
		case observed.event == "DELETED":
			if !known.deleting {
				violation("false deletion", "%s at %d", name, observed.at)
			}
		default:
			delivered[observed.at] = true
			if !slices.Contains(known.versions, observed.at) {
				violation("event without a write", "%s %s at %d of %v", observed.event, name, observed.at, known.versions)
			}
		}
	}
	for _, known := range written {
		for _, version := range known.versions {
			if s.from < version && version <= last && !delivered[version] {
				violation("missing in a watch", "%s at %d, between %d and %d", known.name, version, s.from, last)
			}
		}
	}
}

// observedBody passes a response body on, and also gives it to a callback: each line, or
// the whole body at its end.
type observedBody struct {
	io.ReadCloser
	line func([]byte)
	end  func([]byte)
	kept bytes.Buffer
}

func (b *observedBody) Read(into []byte) (int, error) {
	count, err := b.ReadCloser.Read(into)
	b.kept.Write(into[:count])
	for b.line != nil {
		line, rest, whole := bytes.Cut(b.kept.Bytes(), []byte("\n"))
		if !whole {
			break
		}
		b.line(line)
		b.kept.Next(b.kept.Len() - len(rest))
	}
	if err == io.EOF && b.end != nil {
		b.end(b.kept.Bytes())
		b.end = nil
	}
	return count, err
}
