package main

import (
	"context"
	"errors"
	"fmt"
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
	cancel  context.CancelFunc
	gone    chan struct{}
}

func stand(ctx context.Context, t target, name string) (*candidate, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	standing := &candidate{leaders: make(chan string, 16), gone: make(chan struct{})}
	standing.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: t.namespace, Name: lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
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
		return nil, err
	}
	ctx, standing.cancel = context.WithCancel(ctx)
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

func (c *candidate) withdraw() {
	c.cancel()
	<-c.gone
}
