package main

import (
	"fmt"
	"net/http"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// What is ours in a resource that others write too.
const ours = "written-by=upgrades"

// followed is a resource that is written and followed by all ways.
type followed struct {
	resource schema.GroupVersionResource
	kind     string
	// Empty: it is none of a namespace.
	namespace string
	spec      map[string]any
	ledger    *ledger
	// No server has it, and to say so is true.
	absent atomic.Bool
}

func (f *followed) isAbsent() bool {
	return f.absent.Load()
}

func (f *followed) object(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if f.spec != nil {
		object.Object["spec"] = f.spec
	}
	object.SetAPIVersion(f.resource.GroupVersion().String())
	object.SetKind(f.kind)
	object.SetName(name)
	object.SetNamespace(f.namespace)
	object.SetLabels(map[string]string{"written-by": "upgrades"})
	object.SetAnnotations(map[string]string{stepKey: "0"})
	return object
}

// follower is an informer, and what it was told.
type follower struct {
	by       string
	kind     *followed
	faults   *faults
	streams  *streams
	informer cache.SharedIndexInformer
	factory  kubeinformers.SharedInformerFactory
	// What it has called out.
	added, updated, deleted atomic.Int64
	refused                 atomic.Int64
}

func newFollower(by string, config *rest.Config, kind *followed, faults *faults) (*follower, error) {
	made := &follower{by: by, kind: kind, faults: faults, streams: &streams{absent: kind.isAbsent}}
	made.streams.refused = made.notServed
	client, err := kubernetes.NewForConfig(made.streams.on(config))
	if err != nil {
		return nil, err
	}
	made.factory = kubeinformers.NewSharedInformerFactoryWithOptions(client, 0,
		kubeinformers.WithNamespace(kind.namespace),
		kubeinformers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = ours }))
	generic, err := made.factory.ForResource(kind.resource)
	if err != nil {
		return nil, err
	}
	made.informer = generic.Informer()
	_, err = made.informer.AddEventHandler(made)
	return made, err
}

// notServed hears of answers that are no success.
func (f *follower) notServed(request *http.Request, response *http.Response, absent bool) {
	f.refused.Add(1)
	if response.StatusCode == http.StatusNotFound && !absent && !f.kind.isAbsent() {
		f.fault("a false 404", "%s", request.URL.Path)
	}
}

func (f *follower) fault(sort, format string, about ...any) {
	where := fmt.Sprintf("%s by %s: ", f.kind.resource.Resource, f.by)
	f.faults.add(sort, where+format, about...)
}

func (f *follower) OnAdd(any, bool) {
	f.added.Add(1)
}

func (f *follower) OnUpdate(old, new any) {
	f.updated.Add(1)
	from, fromErr := versionOf(old.(metav1.Object))
	to, toErr := versionOf(new.(metav1.Object))
	if fromErr != nil || toErr != nil || to < from {
		f.fault("back in time", "%s from %d to %d", new.(metav1.Object).GetName(), from, to)
	}
}

func (f *follower) OnDelete(object any) {
	f.deleted.Add(1)
	if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = missed.Obj
	}
	deleted := object.(metav1.Object)
	if !f.kind.ledger.mayBeGone(deleted.GetUID()) {
		f.fault("a false deletion", "%s", deleted.GetName())
	}
}

// store has the version of each object that the informer has.
func (f *follower) store() map[types.UID]uint64 {
	store := map[types.UID]uint64{}
	for _, object := range f.informer.GetStore().List() {
		known := object.(metav1.Object)
		store[known.GetUID()], _ = versionOf(known)
	}
	return store
}

// lacks is what the informer has not heard of, of what was there.
func (f *follower) lacks(living map[types.UID]uint64) int {
	store := f.store()
	lacking := 0
	for uid, version := range living {
		if store[uid] < version && !f.kind.ledger.mayBeGone(uid) {
			lacking++
		}
	}
	return lacking
}
