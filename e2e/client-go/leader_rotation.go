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
	// A leader that cannot renew its lease stops leading after half of the lease duration.
	// The other half is a margin for a busy machine: no other candidate may lead earlier.
	rotationLeaseDuration = 8 * time.Second
	rotationRenewDeadline = 4 * time.Second
	// A leader releases the lease after this time, so that leadership rotates.
	maxLeadership = 6 * time.Second
	// Pause before the next candidacy, so that another candidate acquires the lease.
	candidacyPause = time.Second
)

// leaderMonitor records which candidate holds the lease. There is one candidate
// per bridge.
type leaderMonitor struct {
	violations *violations

	mutex sync.Mutex
	// The holder of the lease, and former holders whose OnStoppedLeading has not run yet.
	holders []*candidacy
	// The number of leadership terms per bridge.
	terms map[string]int
}

// candidacy is one run of a leader elector. The next one has another name.
type candidacy struct {
	*leaderMonitor
	bridge string
	name   string
	lock   *gracefulLock
	// When the last successful request for the lease was sent.
	renewed time.Time
	// The holder in the last Lease that was read. Only the elector's goroutine uses it.
	holder string
}

// runCandidates runs candidacies through one bridge until the context ends.
func (m *leaderMonitor) runCandidates(ctx context.Context, bridge string, client kubernetes.Interface, namespace string) error {
	for number := 0; ctx.Err() == nil; number++ {
		candidacy := &candidacy{leaderMonitor: m, bridge: bridge, name: fmt.Sprintf("%s-%d", bridge, number)}
		if err := candidacy.run(ctx, client, namespace); err != nil {
			return err
		}
		pause(ctx, candidacyPause)
	}
	return nil
}

func (c *candidacy) run(ctx context.Context, client kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.lock = &gracefulLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.name},
		},
		cancel: cancel,
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            monitoredLock{c.lock, c},
		LeaseDuration:   rotationLeaseDuration,
		RenewDeadline:   rotationRenewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: c.onStartedLeading,
			OnStoppedLeading: c.onStoppedLeading,
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	return nil
}

// onStartedLeading releases the lease after maxLeadership.
func (c *candidacy) onStartedLeading(ctx context.Context) {
	pause(ctx, maxLeadership)
	c.lock.releasing.Store(true)
}

// recordRenewal is called after each successful write of the lease.
func (c *candidacy) recordRenewal(since time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, other := range c.holders {
		if other != c && other.mayBeLeading() {
			c.violations.add("two leaders", "%s, renewed %v ago, and %s", other.name, time.Since(other.renewed), c.name)
		}
	}
	if !slices.Contains(c.holders, c) {
		c.holders = append(c.holders, c)
		c.terms[c.bridge]++
	}
	c.renewed = since
}

// onStoppedLeading is also called for candidates that never led.
func (c *candidacy) onStoppedLeading() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.holders = slices.DeleteFunc(c.holders, func(it *candidacy) bool { return it == c })
}

// mayBeLeading reports whether the candidate may consider itself the leader. A leader
// that cannot renew its lease is no leader from the renew deadline on, but the library
// calls OnStoppedLeading later: after it has tried to release a lease that it cannot
// reach.
func (c *candidacy) mayBeLeading() bool {
	return time.Since(c.renewed) < rotationRenewDeadline
}

// leader returns the bridge of the current leader, or "" if there is none.
func (m *leaderMonitor) leader() string {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, holder := range m.holders {
		if holder.mayBeLeading() {
			return holder.bridge
		}
	}
	return ""
}

// renewedSince reports whether the lease was acquired or renewed after a time.
func (m *leaderMonitor) renewedSince(since time.Time) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.ContainsFunc(m.holders, func(it *candidacy) bool { return it.renewed.After(since) })
}

func (m *leaderMonitor) hasHadLeader() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return len(m.terms) > 0
}

// monitoredLock reports writes of the lease to the leaderMonitor. A candidate that
// releases the lease is no leader from then on.
type monitoredLock struct {
	*gracefulLock
	candidacy *candidacy
}

// Get must find the lease once it has had a holder: it is never deleted.
func (l monitoredLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	known := l.candidacy.hasHadLeader()
	record, raw, err := l.gracefulLock.Get(ctx)
	if known && apierrors.IsNotFound(err) {
		l.candidacy.violations.add("false 404", "lease through %s: %v", l.candidacy.bridge, err)
	}
	if err == nil {
		l.candidacy.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l monitoredLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.recordWrite(func() error { return l.gracefulLock.Create(ctx, record) })
}

func (l monitoredLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		l.candidacy.onStoppedLeading()
		// A candidate that could not renew reads the lease before it releases it, but the
		// library does not check the holder: it would release the lease of the next leader.
		if l.candidacy.holder != l.candidacy.name {
			return fmt.Errorf("%s holds the lease", l.candidacy.holder)
		}
		return l.gracefulLock.Update(ctx, record)
	}
	return l.recordWrite(func() error { return l.gracefulLock.Update(ctx, record) })
}

func (l monitoredLock) recordWrite(write func() error) error {
	began := time.Now()
	err := write()
	if err == nil {
		l.candidacy.recordRenewal(began)
	}
	return err
}
