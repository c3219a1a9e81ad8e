package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	// Who cannot renew a lease leads for half of it: on a busy machine, too, nobody
	// else may lead before.
	termLease    = 8 * time.Second
	termDeadline = 4 * time.Second
	// How long somebody leads who could go on.
	reign = 6 * time.Second
	// Then it is the others' turn.
	afterReign = time.Second
)

// throne is what candidates want, one by each way.
type throne struct {
	faults *faults

	mutex sync.Mutex
	// Who has the lease, and whoever had it and has not been told yet.
	holders []*term
	// How often somebody has led, by the way taken.
	terms map[string]int
}

// term is one candidacy. Another one follows it, under another name.
type term struct {
	*throne
	by   string
	name string
	lock *patientLock
	// When it last asked for the lease and was given it.
	renewed time.Time
	// Who had the lease when it last looked; only the library's own thread looks.
	holder string
}

// compete stands for election by one way until the end.
func (t *throne) compete(ctx context.Context, by string, client kubernetes.Interface, namespace string) error {
	for number := 0; ctx.Err() == nil; number++ {
		term := &term{throne: t, by: by, name: fmt.Sprintf("%s-%d", by, number)}
		if err := term.stand(ctx, client, namespace); err != nil {
			return err
		}
		pause(ctx, afterReign)
	}
	return nil
}

func (t *term) stand(ctx context.Context, client kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.lock = &patientLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: t.name},
		},
		cancel: cancel,
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            termLock{t.lock, t},
		LeaseDuration:   termLease,
		RenewDeadline:   termDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: t.leads,
			OnStoppedLeading: t.ends,
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	return nil
}

// leads lets a leader go when others have waited long enough.
func (t *term) leads(ctx context.Context) {
	pause(ctx, reign)
	t.lock.leaves.Store(true)
}

// holds is called when it was given the lease, or has it still.
func (t *term) holds(since time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, other := range t.holders {
		if other != t && other.leadsNow() {
			t.faults.add("two leaders", "%s, since %v, and %s", other.name, time.Since(other.renewed), t.name)
		}
	}
	if !slices.Contains(t.holders, t) {
		t.holders = append(t.holders, t)
		t.terms[t.by]++
	}
	t.renewed = since
}

// ends is called when it leads no more, if it ever did.
func (t *term) ends() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.holders = slices.DeleteFunc(t.holders, func(it *term) bool { return it == t })
}

// leadsNow is whether it may take itself for the leader. Who cannot renew the lease
// may no more from the deadline on, and is told so by the library later: when it has
// tried to let go of what it cannot reach.
func (t *term) leadsNow() bool {
	return time.Since(t.renewed) < termDeadline
}

// leader is by which way somebody leads; nobody: "".
func (t *throne) leader() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, holder := range t.holders {
		if holder.leadsNow() {
			return holder.by
		}
	}
	return ""
}

// isRenewed is whether somebody leads who was given the lease since.
func (t *throne) isRenewed(since time.Time) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return slices.ContainsFunc(t.holders, func(it *term) bool { return it.renewed.After(since) })
}

func (t *throne) hasBeenHeld() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return len(t.terms) > 0
}

// termLock tells of the lease. Who lets go of it leads no more from then on.
type termLock struct {
	*patientLock
	term *term
}

// Get must find the lease once somebody has had it: nobody deletes it.
func (l termLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	known := l.term.hasBeenHeld()
	record, raw, err := l.patientLock.Get(ctx)
	if known && apierrors.IsNotFound(err) {
		l.term.faults.add("a false 404", "the lease by %s: %v", l.term.by, err)
	}
	if err == nil {
		l.term.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l termLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.written(func() error { return l.patientLock.Create(ctx, record) })
}

func (l termLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		l.term.ends()
		// Who could not renew looks at the lease before it lets go, but not at whose it
		// is by then: the library would take it from the next leader.
		if l.term.holder != l.term.name {
			return fmt.Errorf("%s has the lease", l.term.holder)
		}
		return l.patientLock.Update(ctx, record)
	}
	return l.written(func() error { return l.patientLock.Update(ctx, record) })
}

func (l termLock) written(write func() error) error {
	began := time.Now()
	err := write()
	if err == nil {
		l.term.holds(began)
	}
	return err
}
