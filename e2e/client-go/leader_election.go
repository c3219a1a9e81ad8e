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
	// Long enough that a leader on a busy machine does not lose its lease.
	leaseDuration = 8 * time.Second
	renewDeadline = 6 * time.Second
	retryPeriod   = 200 * time.Millisecond
)

type leaderElectionResult struct {
	Leaders     []string
	Transitions int32
	// The holder of the lease after all candidates have stopped.
	HolderAfter string
}

// leaderElection runs two candidates for one lease: the second waits for the first, and
// leads after the first has released the lease.
func leaderElection(ctx context.Context, t target) (any, error) {
	first, err := startCandidate(ctx, t, "first")
	if err != nil {
		return nil, err
	}
	defer first.stop()
	if err := first.awaitLeader(ctx, "first"); err != nil {
		return nil, err
	}
	second, err := startCandidate(ctx, t, "second")
	if err != nil {
		return nil, err
	}
	defer second.stop()
	if err := second.awaitLeader(ctx, "first"); err != nil {
		return nil, err
	}
	if second.elector.IsLeader() {
		return nil, errors.New("two leaders")
	}

	first.stop()
	if err := second.awaitLeader(ctx, "second"); err != nil {
		return nil, err
	}
	second.stop()

	client, err := t.client()
	if err != nil {
		return nil, err
	}
	held, err := client.CoordinationV1().Leases(t.namespace).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	result := leaderElectionResult{Leaders: []string{"first", "second"}}
	if held.Spec.LeaseTransitions != nil {
		result.Transitions = *held.Spec.LeaseTransitions
	}
	if held.Spec.HolderIdentity != nil {
		result.HolderAfter = *held.Spec.HolderIdentity
	}
	return result, nil
}

type candidate struct {
	elector *leaderelection.LeaderElector
	// Each leader that this candidate observes, including itself.
	leaders chan string
	lock    *gracefulLock
	done    chan struct{}
}

// gracefulLock stops a candidate right after a renewal. A renewal that is cancelled in
// flight may still be executed, between the two requests by which a candidate releases its
// lease, and the release would then fail.
type gracefulLock struct {
	resourcelock.Interface
	releasing atomic.Bool
	cancel    context.CancelFunc
}

func (l *gracefulLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	if l.releasing.Load() {
		l.cancel()
	}
	return err
}

func startCandidate(ctx context.Context, t target, name string) (*candidate, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	lock := &gracefulLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: t.namespace, Name: lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		cancel: cancel,
	}
	started := &candidate{leaders: make(chan string, 16), lock: lock, done: make(chan struct{})}
	started.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(leader string) { started.leaders <- leader },
		},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer close(started.done)
		started.elector.Run(ctx)
	}()
	return started, nil
}

func (c *candidate) awaitLeader(ctx context.Context, expected string) error {
	for {
		select {
		case leader := <-c.leaders:
			// Between two leaders there is none ("").
			if leader == expected {
				return nil
			}
			if leader != "" {
				return fmt.Errorf("the leader is %s instead of %s", leader, expected)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s did not become leader: %w", expected, ctx.Err())
		}
	}
}

// stop ends a candidate. A leader releases its lease first.
func (c *candidate) stop() {
	if c.elector.IsLeader() {
		c.lock.releasing.Store(true)
	} else {
		c.lock.cancel()
	}
	<-c.done
}
