package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	lease = "leader"
	// A leader of a busy machine must not lose what it has not given up.
	leaseDuration = 8 * time.Second
	renewDeadline = 6 * time.Second
	retryPeriod   = 200 * time.Millisecond
)

type electionSeen struct {
	Leaders     []string
	Transitions int32
	// Who holds the lease when everybody has gone.
	HolderAfter string
}

// election has two candidates for one lease: the second waits for the first,
// and leads when that has let go.
func election(ctx context.Context, t target) (any, error) {
	first, err := stand(ctx, t, "first")
	if err != nil {
		return nil, err
	}
	defer first.withdraw()
	if err := first.awaitLeader(ctx, "first"); err != nil {
		return nil, err
	}
	second, err := stand(ctx, t, "second")
	if err != nil {
		return nil, err
	}
	defer second.withdraw()
	if err := second.awaitLeader(ctx, "first"); err != nil {
		return nil, err
	}
	if second.elector.IsLeader() {
		return nil, errors.New("two leaders")
	}

	first.withdraw()
	if err := second.awaitLeader(ctx, "second"); err != nil {
		return nil, err
	}
	second.withdraw()

	client, err := t.client()
	if err != nil {
		return nil, err
	}
	held, err := client.CoordinationV1().Leases(t.namespace).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	seen := electionSeen{Leaders: []string{"first", "second"}}
	if held.Spec.LeaseTransitions != nil {
		seen.Transitions = *held.Spec.LeaseTransitions
	}
	if held.Spec.HolderIdentity != nil {
		seen.HolderAfter = *held.Spec.HolderIdentity
	}
	return seen, nil
}

type candidate struct {
	elector *leaderelection.LeaderElector
	// Each leader this candidate hears of, itself included.
	leaders chan string
	lock    *patientLock
	gone    chan struct{}
}

// patientLock lets a candidate go right after a renewal. One that is broken off
// on its way may be done all the same, between the two requests by which a
// candidate lets go of its lease, and then that fails.
type patientLock struct {
	resourcelock.Interface
	leaves atomic.Bool
	cancel context.CancelFunc
}

func (l *patientLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	if l.leaves.Load() {
		l.cancel()
	}
	return err
}

func stand(ctx context.Context, t target, name string) (*candidate, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	lock := &patientLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: t.namespace, Name: lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		cancel: cancel,
	}
	standing := &candidate{leaders: make(chan string, 16), lock: lock, gone: make(chan struct{})}
	standing.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(leader string) { standing.leaders <- leader },
		},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer close(standing.gone)
		standing.elector.Run(ctx)
	}()
	return standing, nil
}

func (c *candidate) awaitLeader(ctx context.Context, wanted string) error {
	for {
		select {
		case leader := <-c.leaders:
			// Between two leaders there is none for a while.
			if leader == wanted {
				return nil
			}
			if leader != "" {
				return fmt.Errorf("not %s leads but %s", wanted, leader)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s never leads: %w", wanted, ctx.Err())
		}
	}
}

// withdraw has a leader let go of its lease, and anybody else stop.
func (c *candidate) withdraw() {
	if c.elector.IsLeader() {
		c.lock.leaves.Store(true)
	} else {
		c.lock.cancel()
	}
	<-c.gone
}
