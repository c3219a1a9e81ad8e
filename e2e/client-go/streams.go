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

// streams remembers all lists and watches of an informer as they came over the
// wire: an informer itself does not tell what came twice.
type streams struct {
	next http.RoundTripper
	// Told of every answer that is no success, and whether it would have been true
	// when it was asked for that nobody serves this.
	refused func(request *http.Request, response *http.Response, absent bool)
	absent  func() bool

	mutex    sync.Mutex
	segments []*segment
}

// segment is a list, a watch, or a watch that begins with a list.
type segment struct {
	// The version of the list, or after which the watch tells what happens.
	from   uint64
	isList bool
	// What the list had.
	listed []sighting
	// What was told after it.
	events []sighting
}

// sighting is an object as it was told, and how.
type sighting struct {
	how    string
	object metav1.ObjectMeta
	at     uint64
}

// on has the exchanges of a client remembered.
func (s *streams) on(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s.next = next
		return s
	})
	return config
}

func (s *streams) RoundTrip(request *http.Request) (*http.Response, error) {
	absent := s.absent()
	response, err := s.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		s.refused(request, response, absent)
		return response, nil
	}
	query := request.URL.Query()
	begun := &segment{isList: query.Get("watch") == "" || query.Get("sendInitialEvents") == "true"}
	// Of a list it is at least this; which one it is, the list tells.
	if !begun.isList {
		begun.from, _ = strconv.ParseUint(query.Get("resourceVersion"), 10, 64)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if query.Get("watch") == "" {
		response.Body = &heard{ReadCloser: response.Body, end: func(body []byte) { s.list(begun, body) }}
	} else {
		response.Body = &heard{ReadCloser: response.Body, line: func(line []byte) { s.event(begun, line) }}
	}
	s.segments = append(s.segments, begun)
	return response, nil
}

func (s *streams) list(of *segment, body []byte) {
	var list struct {
		Metadata metav1.ListMeta
		Items    []struct{ Metadata metav1.ObjectMeta }
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	// One that was cut was not believed by the informer either.
	if json.Unmarshal(body, &list) != nil || list.Metadata.Continue != "" {
		of.isList = false
		return
	}
	of.from, _ = strconv.ParseUint(list.Metadata.ResourceVersion, 10, 64)
	for _, item := range list.Items {
		of.listed = append(of.listed, sighted("listed", item.Metadata))
	}
}

func (s *streams) event(of *segment, line []byte) {
	var event struct {
		Type   string
		Object struct{ Metadata metav1.ObjectMeta }
	}
	if json.Unmarshal(line, &event) != nil || event.Type == "ERROR" {
		return
	}
	seen := sighted(event.Type, event.Object.Metadata)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	isEnd := seen.object.Annotations[metav1.InitialEventsAnnotationKey] == "true"
	switch {
	case !of.isList || of.from != 0:
		of.events = append(of.events, seen)
	case isEnd:
		of.from = seen.at
	default:
		of.listed = append(of.listed, seen)
	}
}

func sighted(how string, object metav1.ObjectMeta) sighting {
	at, _ := strconv.ParseUint(object.ResourceVersion, 10, 64)
	return sighting{how: how, object: object, at: at}
}

// judge compares all that was told with what was written.
func (s *streams) judge(written map[types.UID]entry, fault func(sort, format string, about ...any)) (lists, events int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, told := range s.segments {
		if told.from == 0 {
			continue
		}
		if told.isList {
			lists++
			told.judgeList(written, fault)
		}
		events += len(told.events)
		told.judgeEvents(written, fault)
	}
	return lists, events
}

// judgeList wants each object once, as it was at the version of the list.
func (s *segment) judgeList(written map[types.UID]entry, fault func(sort, format string, about ...any)) {
	listed := map[types.UID]bool{}
	for _, seen := range s.listed {
		name := seen.object.Name
		if listed[seen.object.UID] {
			fault("doubled in a list", "%s at %d", name, s.from)
		}
		listed[seen.object.UID] = true
		if known, ok := written[seen.object.UID]; !ok {
			fault("listed and never written", "%s at %d", name, s.from)
		} else if was := known.at(s.from); seen.at != was {
			fault("listed as it was not", "%s at %d, where it had %d: %d", name, s.from, was, seen.at)
		}
	}
	for uid, known := range written {
		if known.at(s.from) != 0 && !known.leaving && !listed[uid] {
			fault("missing in a list", "%s at %d", known.name, s.from)
		}
	}
}

// judgeEvents wants each write once and in its order, from the first to the last
// version that was told of.
func (s *segment) judgeEvents(written map[types.UID]entry, fault func(sort, format string, about ...any)) {
	last := s.from
	told := map[uint64]bool{}
	for _, seen := range s.events {
		name := seen.object.Name
		switch {
		case seen.how == "BOOKMARK" && seen.at >= last:
		case seen.at <= last:
			fault("not in order", "%s %s at %d after %d", seen.how, name, seen.at, last)
		}
		last = max(last, seen.at)
		known, ok := written[seen.object.UID]
		switch {
		case seen.how == "BOOKMARK":
		case !ok:
			fault("told and never written", "%s %s at %d", seen.how, name, seen.at)
		case seen.how == "DELETED":
			if !known.leaving {
				fault("a false deletion", "%s at %d", name, seen.at)
			}
		default:
			told[seen.at] = true
			if !slices.Contains(known.versions, seen.at) {
				fault("told and never written", "%s %s at %d of %v", seen.how, name, seen.at, known.versions)
			}
		}
	}
	for _, known := range written {
		for _, version := range known.versions {
			if s.from < version && version <= last && !told[version] {
				fault("missing in a watch", "%s at %d, between %d and %d", known.name, version, s.from, last)
			}
		}
	}
}

// heard has somebody listen to a body: to each line, or to the end.
type heard struct {
	io.ReadCloser
	line func([]byte)
	end  func([]byte)
	kept bytes.Buffer
}

func (h *heard) Read(into []byte) (int, error) {
	count, err := h.ReadCloser.Read(into)
	h.kept.Write(into[:count])
	for h.line != nil {
		line, rest, whole := bytes.Cut(h.kept.Bytes(), []byte("\n"))
		if !whole {
			break
		}
		h.line(line)
		h.kept.Next(h.kept.Len() - len(rest))
	}
	if err == io.EOF && h.end != nil {
		h.end(h.kept.Bytes())
		h.end = nil
	}
	return count, err
}
