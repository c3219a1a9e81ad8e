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

// writeLog records all writes of a resource. Each object has one writer, which continues only when
// the outcome of its last request is known. So the log is complete at the end.
type writeLog struct {
	mutex   sync.Mutex
	objects map[types.UID]*objectHistory
}

type objectHistory struct {
	name string
	// The resource versions of its creation and of each update, in order.
	versions []uint64
	// Its deletion was requested; its deletion was confirmed.
	deleting, deleted bool
}

func newWriteLog() *writeLog {
	return &writeLog{objects: map[types.UID]*objectHistory{}}
}

// recordWrite records an acknowledged write. Recording the same write twice is harmless.
func (l *writeLog) recordWrite(object metav1.Object) error {
	version, err := versionOf(object)
	if err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	known := l.objects[object.GetUID()]
	if known == nil {
		known = &objectHistory{name: object.GetName()}
		l.objects[object.GetUID()] = known
	}
	switch last := known.last(); {
	case version < last:
		return fmt.Errorf("%s was at version %d and was then written at version %d", known.name, last, version)
	case version > last:
		known.versions = append(known.versions, version)
	}
	return nil
}

// markDeleting is called before the request to delete an object is sent.
func (l *writeLog) markDeleting(uid types.UID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.objects[uid].deleting = true
}

func (l *writeLog) markDeleted(uid types.UID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.objects[uid].deleted = true
}

// mayBeDeleted reports whether a deletion of the object was requested.
func (l *writeLog) mayBeDeleted(uid types.UID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	known := l.objects[uid]
	return known != nil && known.deleting
}

// liveObjects returns the last version of each object that is not deleted, by UID.
func (l *writeLog) liveObjects() map[types.UID]uint64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	live := map[types.UID]uint64{}
	for uid, object := range l.objects {
		if !object.deleted {
			live[uid] = object.last()
		}
	}
	return live
}

// histories returns all objects. It is called when there are no more writes.
func (l *writeLog) histories() map[types.UID]objectHistory {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	written := map[types.UID]objectHistory{}
	for uid, object := range l.objects {
		written[uid] = *object
	}
	return written
}

func (e *objectHistory) last() uint64 {
	if len(e.versions) == 0 {
		return 0
	}
	return e.versions[len(e.versions)-1]
}

// at returns the version of the object at a resource version of the store; 0 if the
// object did not exist yet.
func (e *objectHistory) at(version uint64) uint64 {
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
		return 0, fmt.Errorf("%s has resource version %q", object.GetName(), object.GetResourceVersion())
	}
	return version, nil
}

// violations counts violated guarantees by category, and keeps the description of the
// first of each category.
type violations struct {
	mutex  sync.Mutex
	counts map[string]int
	first  map[string]string
}

func newViolations() *violations {
	return &violations{counts: map[string]int{}, first: map[string]string{}}
}

func (f *violations) add(category, format string, args ...any) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.counts[category]++
	if f.counts[category] == 1 {
		f.first[category] = fmt.Sprintf(format, args...)
	}
}

func (f *violations) summaries() []string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	categories := slices.SortedFunc(maps.Keys(f.counts), cmp.Compare[string])
	lines := []string{}
	for _, category := range categories {
		lines = append(lines, fmt.Sprintf("%s, %d times; first: %s", category, f.counts[category], f.first[category]))
	}
	return lines
}
