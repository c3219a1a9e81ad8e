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

// Selects the objects of this program in resources that other clients write too.
const labelSelector = "written-by=upgrades"

// testResource is a resource that is written and watched through all bridges.
type testResource struct {
	resource schema.GroupVersionResource
	kind     string
	// Empty for a cluster-scoped resource.
	namespace string
	spec      map[string]any
	writeLog  *writeLog
	// No server serves the resource, so that 404 is correct.
	unserved atomic.Bool
}

func (f *testResource) isUnserved() bool {
	return f.unserved.Load()
}

func (f *testResource) object(name string) *unstructured.Unstructured {
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

// recordedInformer is an informer with a record of the responses that it received.
type recordedInformer struct {
	bridge     string
	kind       *testResource
	violations *violations
	recorder   *listWatchRecorder
	informer   cache.SharedIndexInformer
	factory    kubeinformers.SharedInformerFactory
	// Calls of the event handlers.
	added, updated, deleted atomic.Int64
	// Responses other than 200.
	errors atomic.Int64
}

func newRecordedInformer(bridge string, config *rest.Config, kind *testResource, violations *violations) (*recordedInformer, error) {
	recorded := &recordedInformer{bridge: bridge, kind: kind, violations: violations, recorder: &listWatchRecorder{unserved: kind.isUnserved}}
	recorded.recorder.onErrorResponse = recorded.onErrorResponse
	client, err := kubernetes.NewForConfig(recorded.recorder.wrap(config))
	if err != nil {
		return nil, err
	}
	recorded.factory = kubeinformers.NewSharedInformerFactoryWithOptions(client, 0,
		kubeinformers.WithNamespace(kind.namespace),
		kubeinformers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = labelSelector }))
	generic, err := recorded.factory.ForResource(kind.resource)
	if err != nil {
		return nil, err
	}
	recorded.informer = generic.Informer()
	_, err = recorded.informer.AddEventHandler(recorded)
	return recorded, err
}

// onErrorResponse is called for responses other than 200.
func (f *recordedInformer) onErrorResponse(request *http.Request, response *http.Response, unserved bool) {
	f.errors.Add(1)
	if response.StatusCode == http.StatusNotFound && !unserved && !f.kind.isUnserved() {
		f.violation("false 404", "%s", request.URL.Path)
	}
}

func (f *recordedInformer) violation(category, format string, args ...any) {
	where := fmt.Sprintf("%s through %s: ", f.kind.resource.Resource, f.bridge)
	f.violations.add(category, where+format, args...)
}

func (f *recordedInformer) OnAdd(any, bool) {
	f.added.Add(1)
}

func (f *recordedInformer) OnUpdate(old, new any) {
	f.updated.Add(1)
	from, fromErr := versionOf(old.(metav1.Object))
	to, toErr := versionOf(new.(metav1.Object))
	if fromErr != nil || toErr != nil || to < from {
		f.violation("older version in an update", "%s from %d to %d", new.(metav1.Object).GetName(), from, to)
	}
}

func (f *recordedInformer) OnDelete(object any) {
	f.deleted.Add(1)
	if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = missed.Obj
	}
	deleted := object.(metav1.Object)
	if !f.kind.writeLog.mayBeDeleted(deleted.GetUID()) {
		f.violation("false deletion", "%s", deleted.GetName())
	}
}

// store returns the version of each object in the informer's store.
func (f *recordedInformer) store() map[types.UID]uint64 {
	store := map[types.UID]uint64{}
	for _, object := range f.informer.GetStore().List() {
		known := object.(metav1.Object)
		store[known.GetUID()], _ = versionOf(known)
	}
	return store
}

// missingCount returns how many of these objects the informer does not have in this
// version or a newer one.
func (f *recordedInformer) missingCount(live map[types.UID]uint64) int {
	store := f.store()
	missing := 0
	for uid, version := range live {
		if store[uid] < version && !f.kind.writeLog.mayBeDeleted(uid) {
			missing++
		}
	}
	return missing
}
