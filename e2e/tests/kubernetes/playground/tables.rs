//! Tables: the default output of `kubectl get`.

use super::fixture::Targets::{All, Servers};
use super::fixture::{Entry, Target};

/// One object of each kind that has its own columns.
const OBJECTS: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 2
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: i:1}, {name: e, image: j:1}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec:
  serviceName: s
  selector: {matchLabels: {app: s}}
  template:
    metadata: {labels: {app: s}}
    spec: {containers: [{name: c, image: i:1}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: every}
spec:
  selector: {matchLabels: {app: every}}
  template:
    metadata: {labels: {app: every}}
    spec: {nodeSelector: {disk: fast}, containers: [{name: c, image: i:1}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: r}
spec:
  selector: {matchLabels: {app: r}}
  template:
    metadata: {labels: {app: r}}
    spec: {containers: [{name: c, image: i:1}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often}
spec:
  schedule: '*/5 * * * *'
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i:1}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i:1}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: d}, ports: [{port: 80, name: web}, {port: 53, protocol: UDP, name: dns}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {a: b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plain}
data: {a: b}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}, {kind: ServiceAccount, name: robot, namespace: default}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: door}
spec:
  ingressClassName: front
  rules:
  - host: example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: headless, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: fence}
spec: {podSelector: {matchLabels: {app: d}}, policyTypes: [Ingress]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: some}
spec: {minAvailable: 1, selector: {matchLabels: {app: d}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: more}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: held}
spec: {holderIdentity: me}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec: {limits: [{type: Container, default: {cpu: 100m}}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: headless}
subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 80, name: web}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: headless-1}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1]}]
ports: [{port: 80, name: web}]
";

/// Without jobs: the playground generates no selectors for them.
const WORKLOADS: &str = "deployments,statefulsets,daemonsets,replicasets,cronjobs";
const OTHERS: &str = "services,secrets,configmaps,serviceaccounts,roles,rolebindings,ingresses,\
                      networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,leases,\
                      persistentvolumeclaims,limitranges,endpoints,endpointslices";

pub(super) async fn run_scenario(target: &Target<'_>) -> Vec<Entry> {
    let namespace = target.namespace("tables");
    let ns = namespace.as_str();
    let mut entries = vec![target.step(ns, &format!("create namespace {ns}"), "").await];
    let steps = [
        (All, "apply -f -".to_owned(), OBJECTS),
        (All, "get all".to_owned(), ""),
        (Servers, format!("get {WORKLOADS} -o wide"), ""),
        (Servers, format!("get {OTHERS}"), ""),
        (Servers, format!("get {OTHERS} -o wide"), ""),
        (Servers, format!("get {WORKLOADS} -o yaml"), ""),
        (Servers, "get secret/hidden -o yaml".to_owned(), ""),
        (All, "get deployments --show-labels".to_owned(), ""),
        (All, "get pods".to_owned(), ""),
        (
            All,
            "describe deployment/d service/headless configmap/plain".to_owned(),
            "",
        ),
        (All, format!("get namespace {ns}"), ""),
        (All, "delete deployments,services --all".to_owned(), ""),
    ];
    for (at, words, stdin) in steps {
        entries.push(target.step_for(at, ns, &words, stdin).await);
    }
    entries
}
