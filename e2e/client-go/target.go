package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// target is the cluster, namespace, container and resource that a check uses.
type target struct {
	kubeconfig     string
	config         *rest.Config
	namespace      string
	pod, container string
	resource       string
}

// newTarget reads the given kubeconfig, or else that of KUBECONFIG, and creates the
// namespace.
func newTarget(ctx context.Context, kubeconfig, namespace, userAgent string) (target, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return target{}, err
	}
	// No client-side rate limit.
	config.QPS = -1
	config.UserAgent = userAgent
	created := target{kubeconfig: kubeconfig, config: config, namespace: namespace}
	client, err := created.client()
	if err != nil {
		return target{}, err
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err = client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return target{}, fmt.Errorf("namespace %s: %w", namespace, err)
	}
	return created, nil
}

// client returns a new client at every call.
func (t target) client() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(rest.CopyConfig(t.config))
}

// configMaps is the resource that most checks use: plain data that every version serves
// and no controller modifies.
func (t target) configMaps() (typedcorev1.ConfigMapInterface, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return client.CoreV1().ConfigMaps(t.namespace), nil
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}
