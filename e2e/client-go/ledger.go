package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ledger has all that was written of a resource, as its writers know it: each
// object has one writer, who goes on only when it knows what has become of its
// last request. So in the end the ledger is whole.
type ledger struct {
	mutex   sync.Mutex
	objects map[types.UID]*entry
}

type entry struct {
	name string
	// Of its creation and of each change, in order.
	versions []uint64
	// Somebody has asked for its end, or even knows of it.
	leaving, gone bool
}

func newLedger() *ledger {
	return &ledger{objects: map[types.UID]*entry{}}
}

// wrote is an acknowledged write. To be told twice of the same is no harm.
func (l *ledger) wrote(object metav1.Object) error {
	version, err := versionOf(object)
	if err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	known := l.objects[object.GetUID()]
	if known == nil {
		known = &entry{name: object.GetName()}
		l.objects[object.GetUID()] = known
	}
	switch last := known.last(); {
	case version < last:
		return fmt.Errorf("%s was at %d and is written at %d", known.name, last, version)
	case version > last:
		known.versions = append(known.versions, version)
	}
	return nil
}

// leaves is called before anybody is asked to delete an object.
func (l *ledger) leaves(uid types.UID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.objects[uid].leaving = true
}

func (l *ledger) left(uid types.UID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.objects[uid].gone = true
}

// mayBeGone is whether it is no lie that an object is deleted.
func (l *ledger) mayBeGone(uid types.UID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	known := l.objects[uid]
	return known != nil && known.leaving
}

// living has the last version of each object that is there, by uid.
func (l *ledger) living() map[types.UID]uint64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	living := map[types.UID]uint64{}
	for uid, object := range l.objects {
		if !object.gone {
			living[uid] = object.last()
		}
	}
	return living
}

// written is everything, for when nobody writes any more.
func (l *ledger) written() map[types.UID]entry {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	written := map[types.UID]entry{}
	for uid, object := range l.objects {
		written[uid] = *object
	}
	return written
}

func (e *entry) last() uint64 {
	if len(e.versions) == 0 {
		return 0
	}
	return e.versions[len(e.versions)-1]
}

// at is the version that the object had when the store had this one; 0 if it was
// not there yet.
func (e *entry) at(version uint64) uint64 {
	place, exact := slices.BinarySearch(e.versions, version)
	switch {
	case exact:
		return version
	case place == 0:
		return 0
	default:
		return e.versions[place-1]
	}
}

func versionOf(object metav1.Object) (uint64, error) {
	version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil || version == 0 {
		return 0, fmt.Errorf("%s has the version %q", object.GetName(), object.GetResourceVersion())
	}
	return version, nil
}

// faults are what must not happen: the first of each sort is kept in words, all
// are counted.
type faults struct {
	mutex  sync.Mutex
	counts map[string]int
	first  map[string]string
}

func newFaults() *faults {
	return &faults{counts: map[string]int{}, first: map[string]string{}}
}

func (f *faults) add(sort, format string, about ...any) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.counts[sort]++
	if f.counts[sort] == 1 {
		f.first[sort] = fmt.Sprintf(format, about...)
	}
}

func (f *faults) told() []string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	sorts := slices.SortedFunc(maps.Keys(f.counts), cmp.Compare[string])
	told := []string{}
	for _, sort := range sorts {
		told = append(told, fmt.Sprintf("%s, %d times; first: %s", sort, f.counts[sort], f.first[sort]))
	}
	return told
}
