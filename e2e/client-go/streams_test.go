package main

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func seen(how, uid, version string) sighting {
	return sighted(how, metav1.ObjectMeta{Name: uid, UID: types.UID(uid), ResourceVersion: version})
}

// One object stays, at 2, 4 and 6; another comes at 3 and goes at 5.
func TestWhatIsToldIsComparedWithWhatWasWritten(t *testing.T) {
	written := map[types.UID]entry{
		"stays": {name: "stays", versions: []uint64{2, 4, 6}},
		"goes":  {name: "goes", versions: []uint64{3}, leaving: true, gone: true},
	}
	watch := func(from uint64, events ...sighting) segment { return segment{from: from, events: events} }
	list := func(at uint64, listed ...sighting) segment {
		return segment{from: at, isList: true, listed: listed}
	}
	rows := []struct {
		told   segment
		faults []string
	}{
		{watch(1, seen("ADDED", "stays", "2"), seen("ADDED", "goes", "3"), seen("MODIFIED", "stays", "4"),
			seen("DELETED", "goes", "5"), seen("MODIFIED", "stays", "6"), seen("BOOKMARK", "", "6")), nil},
		// What comes after the last event may still be on its way.
		{watch(3, seen("MODIFIED", "stays", "4")), nil},
		{watch(1, seen("ADDED", "stays", "2"), seen("MODIFIED", "stays", "4")), []string{"missing in a watch"}},
		{watch(4, seen("BOOKMARK", "", "7")), []string{"missing in a watch"}},
		{watch(1, seen("ADDED", "stays", "2"), seen("ADDED", "stays", "2")), []string{"not in order"}},
		{watch(2, seen("MODIFIED", "stays", "4"), seen("ADDED", "goes", "3")), []string{"not in order"}},
		{watch(4, seen("DELETED", "stays", "5")), []string{"a false deletion"}},
		{watch(4, seen("ADDED", "other", "5")), []string{"told and never written"}},
		{watch(4, seen("MODIFIED", "stays", "5")), []string{"told and never written"}},
		{list(5, seen("listed", "stays", "4")), nil},
		{list(4, seen("listed", "stays", "4"), seen("listed", "goes", "3")), nil},
		{list(5), []string{"missing in a list"}},
		{list(5, seen("listed", "stays", "2")), []string{"listed as it was not"}},
		{list(5, seen("listed", "stays", "4"), seen("listed", "stays", "4")), []string{"doubled in a list"}},
		{list(5, seen("listed", "stays", "4"), seen("listed", "other", "1")), []string{"listed and never written"}},
	}
	for number, row := range rows {
		found := newFaults()
		told := streams{segments: []*segment{&row.told}}
		told.judge(written, found.add)
		sorts := slices.Sorted(maps.Keys(found.counts))
		if !slices.Equal(sorts, row.faults) {
			t.Errorf("row %d: %v instead of %v", number, found.told(), row.faults)
		}
	}
}
