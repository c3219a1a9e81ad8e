package main

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func seen(how, uid, version string) observation {
	return observe(how, metav1.ObjectMeta{Name: uid, UID: types.UID(uid), ResourceVersion: version})
}

// One object stays, with versions 2, 4 and 6; another is created at 3 and deleted at 5.
func TestRecordedResponsesAreComparedWithWrites(t *testing.T) {
	written := map[types.UID]objectHistory{
		"stays": {name: "stays", versions: []uint64{2, 4, 6}},
		"goes":  {name: "goes", versions: []uint64{3}, deleting: true, deleted: true},
	}
	watch := func(from uint64, events ...observation) recordedStream {
		return recordedStream{from: from, events: events}
	}
	list := func(at uint64, listed ...observation) recordedStream {
		return recordedStream{from: at, isList: true, listed: listed}
	}
	rows := []struct {
		stream     recordedStream
		violations []string
	}{
		{watch(1, seen("ADDED", "stays", "2"), seen("ADDED", "goes", "3"), seen("MODIFIED", "stays", "4"),
			seen("DELETED", "goes", "5"), seen("MODIFIED", "stays", "6"), seen("BOOKMARK", "", "6")), nil},
		// Events after the last one may not have arrived yet.
		{watch(3, seen("MODIFIED", "stays", "4")), nil},
		{watch(1, seen("ADDED", "stays", "2"), seen("MODIFIED", "stays", "4")), []string{"missing in a watch"}},
		{watch(4, seen("BOOKMARK", "", "7")), []string{"missing in a watch"}},
		{watch(1, seen("ADDED", "stays", "2"), seen("ADDED", "stays", "2")), []string{"out of order"}},
		{watch(2, seen("MODIFIED", "stays", "4"), seen("ADDED", "goes", "3")), []string{"out of order"}},
		{watch(4, seen("DELETED", "stays", "5")), []string{"false deletion"}},
		{watch(4, seen("ADDED", "other", "5")), []string{"event without a write"}},
		{watch(4, seen("MODIFIED", "stays", "5")), []string{"event without a write"}},
		{list(5, seen("listed", "stays", "4")), nil},
		{list(4, seen("listed", "stays", "4"), seen("listed", "goes", "3")), nil},
		{list(5), []string{"missing in a list"}},
		{list(5, seen("listed", "stays", "2")), []string{"listed with a wrong version"}},
		{list(5, seen("listed", "stays", "4"), seen("listed", "stays", "4")), []string{"duplicate in a list"}},
		{list(5, seen("listed", "stays", "4"), seen("listed", "other", "1")), []string{"listed but never written"}},
	}
	for number, row := range rows {
		found := newViolations()
		recorder := listWatchRecorder{streams: []*recordedStream{&row.stream}}
		recorder.verify(written, found.add)
		categories := slices.Sorted(maps.Keys(found.counts))
		if !slices.Equal(categories, row.violations) {
			t.Errorf("row %d: %v instead of %v", number, found.summaries(), row.violations)
		}
	}
}
