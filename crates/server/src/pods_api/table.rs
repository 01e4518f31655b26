//! Field numbers of a pod and of all types in it (Kubernetes: `core/v1`, `meta/v1`).
//!
//! Each line has number, JSON name, when the field is written, and its type. `managedFields` is
//! missing: no pod here has any. The numbers never change upstream; new fields come with a new
//! version of the API.

use super::encode::{Field, Kind, Shape};

macro_rules! messages {
    ($($name:ident { $($number:literal $json:literal $shape:ident $kind:ident $(($inner:ident))?),* $(,)? })*) => {$(
        pub(super) static $name: &[Field] = &[$(Field {
            number: $number,
            name: $json,
            shape: Shape::$shape,
            kind: Kind::$kind $(($inner))?,
        }),*];
    )*};
}

messages! {
    POD {
        1 "metadata" Always Message(OBJECT_META), 2 "spec" Always Message(POD_SPEC),
        3 "status" Always Message(POD_STATUS),
    }
    OBJECT_META {
        1 "name" Always Text, 2 "generateName" Always Text, 3 "namespace" Always Text,
        4 "selfLink" Always Text, 5 "uid" Always Text, 6 "resourceVersion" Always Text,
        7 "generation" Always Integer, 8 "creationTimestamp" Always Time,
        9 "deletionTimestamp" IfSet Time, 10 "deletionGracePeriodSeconds" IfSet Integer,
        11 "labels" Map Text, 12 "annotations" Map Text,
        13 "ownerReferences" List Message(OWNER_REFERENCE), 14 "finalizers" List Text,
    }
    POD_SPEC {
        1 "volumes" List Message(VOLUME), 2 "containers" List Message(CONTAINER),
        3 "restartPolicy" Always Text, 4 "terminationGracePeriodSeconds" IfSet Integer,
        5 "activeDeadlineSeconds" IfSet Integer, 6 "dnsPolicy" Always Text,
        7 "nodeSelector" Map Text, 8 "serviceAccountName" Always Text,
        9 "serviceAccount" Always Text, 10 "nodeName" Always Text, 11 "hostNetwork" Always Bool,
        12 "hostPID" Always Bool, 13 "hostIPC" Always Bool,
        14 "securityContext" IfSet Message(POD_SECURITY_CONTEXT),
        15 "imagePullSecrets" List Message(LOCAL_OBJECT_REFERENCE), 16 "hostname" Always Text,
        17 "subdomain" Always Text, 18 "affinity" IfSet Message(AFFINITY),
        19 "schedulerName" Always Text, 20 "initContainers" List Message(CONTAINER),
        21 "automountServiceAccountToken" IfSet Bool, 22 "tolerations" List Message(TOLERATION),
        23 "hostAliases" List Message(HOST_ALIAS), 24 "priorityClassName" Always Text,
        25 "priority" IfSet Integer, 26 "dnsConfig" IfSet Message(POD_DNS_CONFIG),
        27 "shareProcessNamespace" IfSet Bool, 28 "readinessGates" List Message(POD_READINESS_GATE),
        29 "runtimeClassName" IfSet Text, 30 "enableServiceLinks" IfSet Bool,
        31 "preemptionPolicy" IfSet Text, 32 "overhead" Map Quantity,
        33 "topologySpreadConstraints" List Message(TOPOLOGY_SPREAD_CONSTRAINT),
        34 "ephemeralContainers" List Message(EPHEMERAL_CONTAINER),
        35 "setHostnameAsFQDN" IfSet Bool, 36 "os" IfSet Message(POD_OS), 37 "hostUsers" IfSet Bool,
        38 "schedulingGates" List Message(POD_SCHEDULING_GATE),
        39 "resourceClaims" List Message(POD_RESOURCE_CLAIM),
        40 "resources" IfSet Message(RESOURCE_REQUIREMENTS), 41 "hostnameOverride" IfSet Text,
        43 "schedulingGroup" IfSet Message(POD_SCHEDULING_GROUP),
    }
    POD_STATUS {
        1 "phase" Always Text, 2 "conditions" List Message(POD_CONDITION), 3 "message" Always Text,
        4 "reason" Always Text, 5 "hostIP" Always Text, 6 "podIP" Always Text,
        7 "startTime" IfSet Time, 8 "containerStatuses" List Message(CONTAINER_STATUS),
        9 "qosClass" Always Text, 10 "initContainerStatuses" List Message(CONTAINER_STATUS),
        11 "nominatedNodeName" Always Text, 12 "podIPs" List Message(POD_IP),
        13 "ephemeralContainerStatuses" List Message(CONTAINER_STATUS), 14 "resize" Always Text,
        15 "resourceClaimStatuses" List Message(POD_RESOURCE_CLAIM_STATUS),
        16 "hostIPs" List Message(HOST_IP), 17 "observedGeneration" Always Integer,
        18 "extendedResourceClaimStatus" IfSet Message(POD_EXTENDED_RESOURCE_CLAIM_STATUS),
        19 "allocatedResources" Map Quantity, 20 "resources" IfSet Message(RESOURCE_REQUIREMENTS),
        21 "nodeAllocatableResourceClaimStatuses" List Message(NODE_ALLOCATABLE_RESOURCE_CLAIM_STATUS),
    }
    OWNER_REFERENCE {
        1 "kind" Always Text, 3 "name" Always Text, 4 "uid" Always Text, 5 "apiVersion" Always Text,
        6 "controller" IfSet Bool, 7 "blockOwnerDeletion" IfSet Bool,
    }
    VOLUME { 1 "name" Always Text, 2 "" Flat Message(VOLUME_SOURCE) }
    CONTAINER {
        1 "name" Always Text, 2 "image" Always Text, 3 "command" List Text, 4 "args" List Text,
        5 "workingDir" Always Text, 6 "ports" List Message(CONTAINER_PORT),
        7 "env" List Message(ENV_VAR), 8 "resources" Always Message(RESOURCE_REQUIREMENTS),
        9 "volumeMounts" List Message(VOLUME_MOUNT), 10 "livenessProbe" IfSet Message(PROBE),
        11 "readinessProbe" IfSet Message(PROBE), 12 "lifecycle" IfSet Message(LIFECYCLE),
        13 "terminationMessagePath" Always Text, 14 "imagePullPolicy" Always Text,
        15 "securityContext" IfSet Message(SECURITY_CONTEXT), 16 "stdin" Always Bool,
        17 "stdinOnce" Always Bool, 18 "tty" Always Bool,
        19 "envFrom" List Message(ENV_FROM_SOURCE), 20 "terminationMessagePolicy" Always Text,
        21 "volumeDevices" List Message(VOLUME_DEVICE), 22 "startupProbe" IfSet Message(PROBE),
        23 "resizePolicy" List Message(CONTAINER_RESIZE_POLICY), 24 "restartPolicy" IfSet Text,
        25 "restartPolicyRules" List Message(CONTAINER_RESTART_RULE),
    }
    EPHEMERAL_CONTAINER {
        1 "" Flat Message(EPHEMERAL_CONTAINER_COMMON), 2 "targetContainerName" Always Text,
    }
    POD_SECURITY_CONTEXT {
        1 "seLinuxOptions" IfSet Message(SE_LINUX_OPTIONS), 2 "runAsUser" IfSet Integer,
        3 "runAsNonRoot" IfSet Bool, 4 "supplementalGroups" List Integer, 5 "fsGroup" IfSet Integer,
        6 "runAsGroup" IfSet Integer, 7 "sysctls" List Message(SYSCTL),
        8 "windowsOptions" IfSet Message(WINDOWS_SECURITY_CONTEXT_OPTIONS),
        9 "fsGroupChangePolicy" IfSet Text, 10 "seccompProfile" IfSet Message(SECCOMP_PROFILE),
        11 "appArmorProfile" IfSet Message(APP_ARMOR_PROFILE),
        12 "supplementalGroupsPolicy" IfSet Text, 13 "seLinuxChangePolicy" IfSet Text,
    }
    LOCAL_OBJECT_REFERENCE { 1 "name" Always Text }
    AFFINITY {
        1 "nodeAffinity" IfSet Message(NODE_AFFINITY), 2 "podAffinity" IfSet Message(POD_AFFINITY),
        3 "podAntiAffinity" IfSet Message(POD_ANTI_AFFINITY),
    }
    TOLERATION {
        1 "key" Always Text, 2 "operator" Always Text, 3 "value" Always Text,
        4 "effect" Always Text, 5 "tolerationSeconds" IfSet Integer,
    }
    HOST_ALIAS { 1 "ip" Always Text, 2 "hostnames" List Text }
    POD_DNS_CONFIG {
        1 "nameservers" List Text, 2 "searches" List Text,
        3 "options" List Message(POD_DNS_CONFIG_OPTION),
    }
    POD_READINESS_GATE { 1 "conditionType" Always Text }
    TOPOLOGY_SPREAD_CONSTRAINT {
        1 "maxSkew" Always Integer, 2 "topologyKey" Always Text, 3 "whenUnsatisfiable" Always Text,
        4 "labelSelector" IfSet Message(LABEL_SELECTOR), 5 "minDomains" IfSet Integer,
        6 "nodeAffinityPolicy" IfSet Text, 7 "nodeTaintsPolicy" IfSet Text,
        8 "matchLabelKeys" List Text,
    }
    POD_OS { 1 "name" Always Text }
    POD_SCHEDULING_GATE { 1 "name" Always Text }
    POD_RESOURCE_CLAIM {
        1 "name" Always Text, 3 "resourceClaimName" IfSet Text,
        4 "resourceClaimTemplateName" IfSet Text,
    }
    RESOURCE_REQUIREMENTS {
        1 "limits" Map Quantity, 2 "requests" Map Quantity, 3 "claims" List Message(RESOURCE_CLAIM),
    }
    POD_SCHEDULING_GROUP { 1 "podGroupName" IfSet Text }
    POD_CONDITION {
        1 "type" Always Text, 2 "status" Always Text, 3 "lastProbeTime" Always Time,
        4 "lastTransitionTime" Always Time, 5 "reason" Always Text, 6 "message" Always Text,
        7 "observedGeneration" Always Integer,
    }
    HOST_IP { 1 "ip" Always Text }
    POD_IP { 1 "ip" Always Text }
    CONTAINER_STATUS {
        1 "name" Always Text, 2 "state" Always Message(CONTAINER_STATE),
        3 "lastState" Always Message(CONTAINER_STATE), 4 "ready" Always Bool,
        5 "restartCount" Always Integer, 6 "image" Always Text, 7 "imageID" Always Text,
        8 "containerID" Always Text, 9 "started" IfSet Bool, 10 "allocatedResources" Map Quantity,
        11 "resources" IfSet Message(RESOURCE_REQUIREMENTS),
        12 "volumeMounts" List Message(VOLUME_MOUNT_STATUS),
        13 "user" IfSet Message(CONTAINER_USER),
        14 "allocatedResourcesStatus" List Message(RESOURCE_STATUS), 15 "stopSignal" IfSet Text,
    }
    POD_RESOURCE_CLAIM_STATUS { 1 "name" Always Text, 2 "resourceClaimName" IfSet Text }
    POD_EXTENDED_RESOURCE_CLAIM_STATUS {
        1 "requestMappings" List Message(CONTAINER_EXTENDED_RESOURCE_REQUEST),
        2 "resourceClaimName" Always Text,
    }
    NODE_ALLOCATABLE_RESOURCE_CLAIM_STATUS {
        1 "resourceClaimName" Always Text, 2 "containers" List Text, 3 "resources" Map Quantity,
    }
    VOLUME_SOURCE {
        1 "hostPath" IfSet Message(HOST_PATH_VOLUME_SOURCE),
        2 "emptyDir" IfSet Message(EMPTY_DIR_VOLUME_SOURCE),
        3 "gcePersistentDisk" IfSet Message(GCE_PERSISTENT_DISK_VOLUME_SOURCE),
        4 "awsElasticBlockStore" IfSet Message(AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE),
        5 "gitRepo" IfSet Message(GIT_REPO_VOLUME_SOURCE),
        6 "secret" IfSet Message(SECRET_VOLUME_SOURCE), 7 "nfs" IfSet Message(NFS_VOLUME_SOURCE),
        8 "iscsi" IfSet Message(ISCSI_VOLUME_SOURCE),
        9 "glusterfs" IfSet Message(GLUSTERFS_VOLUME_SOURCE),
        10 "persistentVolumeClaim" IfSet Message(PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE),
        11 "rbd" IfSet Message(RBD_VOLUME_SOURCE),
        12 "flexVolume" IfSet Message(FLEX_VOLUME_SOURCE),
        13 "cinder" IfSet Message(CINDER_VOLUME_SOURCE),
        14 "cephfs" IfSet Message(CEPH_FS_VOLUME_SOURCE),
        15 "flocker" IfSet Message(FLOCKER_VOLUME_SOURCE),
        16 "downwardAPI" IfSet Message(DOWNWARD_API_VOLUME_SOURCE),
        17 "fc" IfSet Message(FC_VOLUME_SOURCE),
        18 "azureFile" IfSet Message(AZURE_FILE_VOLUME_SOURCE),
        19 "configMap" IfSet Message(CONFIG_MAP_VOLUME_SOURCE),
        20 "vsphereVolume" IfSet Message(VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE),
        21 "quobyte" IfSet Message(QUOBYTE_VOLUME_SOURCE),
        22 "azureDisk" IfSet Message(AZURE_DISK_VOLUME_SOURCE),
        23 "photonPersistentDisk" IfSet Message(PHOTON_PERSISTENT_DISK_VOLUME_SOURCE),
        24 "portworxVolume" IfSet Message(PORTWORX_VOLUME_SOURCE),
        25 "scaleIO" IfSet Message(SCALE_IO_VOLUME_SOURCE),
        26 "projected" IfSet Message(PROJECTED_VOLUME_SOURCE),
        27 "storageos" IfSet Message(STORAGE_OS_VOLUME_SOURCE),
        28 "csi" IfSet Message(CSI_VOLUME_SOURCE),
        29 "ephemeral" IfSet Message(EPHEMERAL_VOLUME_SOURCE),
        30 "image" IfSet Message(IMAGE_VOLUME_SOURCE),
    }
    CONTAINER_PORT {
        1 "name" Always Text, 2 "hostPort" Always Integer, 3 "containerPort" Always Integer,
        4 "protocol" Always Text, 5 "hostIP" Always Text,
    }
    ENV_FROM_SOURCE {
        1 "prefix" Always Text, 2 "configMapRef" IfSet Message(CONFIG_MAP_ENV_SOURCE),
        3 "secretRef" IfSet Message(SECRET_ENV_SOURCE),
    }
    ENV_VAR {
        1 "name" Always Text, 2 "value" Always Text, 3 "valueFrom" IfSet Message(ENV_VAR_SOURCE),
    }
    CONTAINER_RESIZE_POLICY { 1 "resourceName" Always Text, 2 "restartPolicy" Always Text }
    CONTAINER_RESTART_RULE {
        1 "action" Always Text, 2 "exitCodes" IfSet Message(CONTAINER_RESTART_RULE_ON_EXIT_CODES),
    }
    VOLUME_MOUNT {
        1 "name" Always Text, 2 "readOnly" Always Bool, 3 "mountPath" Always Text,
        4 "subPath" Always Text, 5 "mountPropagation" IfSet Text, 6 "subPathExpr" Always Text,
        7 "recursiveReadOnly" IfSet Text,
    }
    VOLUME_DEVICE { 1 "name" Always Text, 2 "devicePath" Always Text }
    PROBE {
        1 "" Flat Message(PROBE_HANDLER), 2 "initialDelaySeconds" Always Integer,
        3 "timeoutSeconds" Always Integer, 4 "periodSeconds" Always Integer,
        5 "successThreshold" Always Integer, 6 "failureThreshold" Always Integer,
        7 "terminationGracePeriodSeconds" IfSet Integer,
    }
    LIFECYCLE {
        1 "postStart" IfSet Message(LIFECYCLE_HANDLER),
        2 "preStop" IfSet Message(LIFECYCLE_HANDLER), 3 "stopSignal" IfSet Text,
    }
    SECURITY_CONTEXT {
        1 "capabilities" IfSet Message(CAPABILITIES), 2 "privileged" IfSet Bool,
        3 "seLinuxOptions" IfSet Message(SE_LINUX_OPTIONS), 4 "runAsUser" IfSet Integer,
        5 "runAsNonRoot" IfSet Bool, 6 "readOnlyRootFilesystem" IfSet Bool,
        7 "allowPrivilegeEscalation" IfSet Bool, 8 "runAsGroup" IfSet Integer,
        9 "procMount" IfSet Text,
        10 "windowsOptions" IfSet Message(WINDOWS_SECURITY_CONTEXT_OPTIONS),
        11 "seccompProfile" IfSet Message(SECCOMP_PROFILE),
        12 "appArmorProfile" IfSet Message(APP_ARMOR_PROFILE),
    }
    EPHEMERAL_CONTAINER_COMMON {
        1 "name" Always Text, 2 "image" Always Text, 3 "command" List Text, 4 "args" List Text,
        5 "workingDir" Always Text, 6 "ports" List Message(CONTAINER_PORT),
        7 "env" List Message(ENV_VAR), 8 "resources" Always Message(RESOURCE_REQUIREMENTS),
        9 "volumeMounts" List Message(VOLUME_MOUNT), 10 "livenessProbe" IfSet Message(PROBE),
        11 "readinessProbe" IfSet Message(PROBE), 12 "lifecycle" IfSet Message(LIFECYCLE),
        13 "terminationMessagePath" Always Text, 14 "imagePullPolicy" Always Text,
        15 "securityContext" IfSet Message(SECURITY_CONTEXT), 16 "stdin" Always Bool,
        17 "stdinOnce" Always Bool, 18 "tty" Always Bool,
        19 "envFrom" List Message(ENV_FROM_SOURCE), 20 "terminationMessagePolicy" Always Text,
        21 "volumeDevices" List Message(VOLUME_DEVICE), 22 "startupProbe" IfSet Message(PROBE),
        23 "resizePolicy" List Message(CONTAINER_RESIZE_POLICY), 24 "restartPolicy" IfSet Text,
        25 "restartPolicyRules" List Message(CONTAINER_RESTART_RULE),
    }
    SE_LINUX_OPTIONS {
        1 "user" Always Text, 2 "role" Always Text, 3 "type" Always Text, 4 "level" Always Text,
    }
    WINDOWS_SECURITY_CONTEXT_OPTIONS {
        1 "gmsaCredentialSpecName" IfSet Text, 2 "gmsaCredentialSpec" IfSet Text,
        3 "runAsUserName" IfSet Text, 4 "hostProcess" IfSet Bool,
    }
    SYSCTL { 1 "name" Always Text, 2 "value" Always Text }
    SECCOMP_PROFILE { 1 "type" Always Text, 2 "localhostProfile" IfSet Text }
    APP_ARMOR_PROFILE { 1 "type" Always Text, 2 "localhostProfile" IfSet Text }
    NODE_AFFINITY {
        1 "requiredDuringSchedulingIgnoredDuringExecution" IfSet Message(NODE_SELECTOR),
        2 "preferredDuringSchedulingIgnoredDuringExecution" List Message(PREFERRED_SCHEDULING_TERM),
    }
    POD_AFFINITY {
        1 "requiredDuringSchedulingIgnoredDuringExecution" List Message(POD_AFFINITY_TERM),
        2 "preferredDuringSchedulingIgnoredDuringExecution" List Message(WEIGHTED_POD_AFFINITY_TERM),
    }
    POD_ANTI_AFFINITY {
        1 "requiredDuringSchedulingIgnoredDuringExecution" List Message(POD_AFFINITY_TERM),
        2 "preferredDuringSchedulingIgnoredDuringExecution" List Message(WEIGHTED_POD_AFFINITY_TERM),
    }
    POD_DNS_CONFIG_OPTION { 1 "name" Always Text, 2 "value" IfSet Text }
    LABEL_SELECTOR {
        1 "matchLabels" Map Text, 2 "matchExpressions" List Message(LABEL_SELECTOR_REQUIREMENT),
    }
    RESOURCE_CLAIM { 1 "name" Always Text, 2 "request" Always Text }
    CONTAINER_STATE {
        1 "waiting" IfSet Message(CONTAINER_STATE_WAITING),
        2 "running" IfSet Message(CONTAINER_STATE_RUNNING),
        3 "terminated" IfSet Message(CONTAINER_STATE_TERMINATED),
    }
    VOLUME_MOUNT_STATUS {
        1 "name" Always Text, 2 "mountPath" Always Text, 3 "readOnly" Always Bool,
        4 "recursiveReadOnly" IfSet Text, 5 "volumeStatus" IfSet Message(VOLUME_STATUS),
    }
    CONTAINER_USER { 1 "linux" IfSet Message(LINUX_CONTAINER_USER) }
    RESOURCE_STATUS { 1 "name" Always Text, 2 "resources" List Message(RESOURCE_HEALTH) }
    CONTAINER_EXTENDED_RESOURCE_REQUEST {
        1 "containerName" Always Text, 2 "resourceName" Always Text, 3 "requestName" Always Text,
    }
    HOST_PATH_VOLUME_SOURCE { 1 "path" Always Text, 2 "type" IfSet Text }
    EMPTY_DIR_VOLUME_SOURCE { 1 "medium" Always Text, 2 "sizeLimit" IfSet Quantity }
    GCE_PERSISTENT_DISK_VOLUME_SOURCE {
        1 "pdName" Always Text, 2 "fsType" Always Text, 3 "partition" Always Integer,
        4 "readOnly" Always Bool,
    }
    AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE {
        1 "volumeID" Always Text, 2 "fsType" Always Text, 3 "partition" Always Integer,
        4 "readOnly" Always Bool,
    }
    GIT_REPO_VOLUME_SOURCE {
        1 "repository" Always Text, 2 "revision" Always Text, 3 "directory" Always Text,
    }
    SECRET_VOLUME_SOURCE {
        1 "secretName" Always Text, 2 "items" List Message(KEY_TO_PATH),
        3 "defaultMode" IfSet Integer, 4 "optional" IfSet Bool,
    }
    NFS_VOLUME_SOURCE { 1 "server" Always Text, 2 "path" Always Text, 3 "readOnly" Always Bool }
    ISCSI_VOLUME_SOURCE {
        1 "targetPortal" Always Text, 2 "iqn" Always Text, 3 "lun" Always Integer,
        4 "iscsiInterface" Always Text, 5 "fsType" Always Text, 6 "readOnly" Always Bool,
        7 "portals" List Text, 8 "chapAuthDiscovery" Always Bool,
        10 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE), 11 "chapAuthSession" Always Bool,
        12 "initiatorName" IfSet Text,
    }
    GLUSTERFS_VOLUME_SOURCE {
        1 "endpoints" Always Text, 2 "path" Always Text, 3 "readOnly" Always Bool,
    }
    PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE { 1 "claimName" Always Text, 2 "readOnly" Always Bool }
    RBD_VOLUME_SOURCE {
        1 "monitors" List Text, 2 "image" Always Text, 3 "fsType" Always Text, 4 "pool" Always Text,
        5 "user" Always Text, 6 "keyring" Always Text,
        7 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE), 8 "readOnly" Always Bool,
    }
    FLEX_VOLUME_SOURCE {
        1 "driver" Always Text, 2 "fsType" Always Text,
        3 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE), 4 "readOnly" Always Bool,
        5 "options" Map Text,
    }
    CINDER_VOLUME_SOURCE {
        1 "volumeID" Always Text, 2 "fsType" Always Text, 3 "readOnly" Always Bool,
        4 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE),
    }
    CEPH_FS_VOLUME_SOURCE {
        1 "monitors" List Text, 2 "path" Always Text, 3 "user" Always Text,
        4 "secretFile" Always Text, 5 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE),
        6 "readOnly" Always Bool,
    }
    FLOCKER_VOLUME_SOURCE { 1 "datasetName" Always Text, 2 "datasetUUID" Always Text }
    DOWNWARD_API_VOLUME_SOURCE {
        1 "items" List Message(DOWNWARD_API_VOLUME_FILE), 2 "defaultMode" IfSet Integer,
    }
    FC_VOLUME_SOURCE {
        1 "targetWWNs" List Text, 2 "lun" IfSet Integer, 3 "fsType" Always Text,
        4 "readOnly" Always Bool, 5 "wwids" List Text,
    }
    AZURE_FILE_VOLUME_SOURCE {
        1 "secretName" Always Text, 2 "shareName" Always Text, 3 "readOnly" Always Bool,
    }
    CONFIG_MAP_VOLUME_SOURCE {
        1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "items" List Message(KEY_TO_PATH),
        3 "defaultMode" IfSet Integer, 4 "optional" IfSet Bool,
    }
    VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE {
        1 "volumePath" Always Text, 2 "fsType" Always Text, 3 "storagePolicyName" Always Text,
        4 "storagePolicyID" Always Text,
    }
    QUOBYTE_VOLUME_SOURCE {
        1 "registry" Always Text, 2 "volume" Always Text, 3 "readOnly" Always Bool,
        4 "user" Always Text, 5 "group" Always Text, 6 "tenant" Always Text,
    }
    AZURE_DISK_VOLUME_SOURCE {
        1 "diskName" Always Text, 2 "diskURI" Always Text, 3 "cachingMode" IfSet Text,
        4 "fsType" IfSet Text, 5 "readOnly" IfSet Bool, 6 "kind" IfSet Text,
    }
    PHOTON_PERSISTENT_DISK_VOLUME_SOURCE { 1 "pdID" Always Text, 2 "fsType" Always Text }
    PROJECTED_VOLUME_SOURCE {
        1 "sources" List Message(VOLUME_PROJECTION), 2 "defaultMode" IfSet Integer,
    }
    PORTWORX_VOLUME_SOURCE {
        1 "volumeID" Always Text, 2 "fsType" Always Text, 3 "readOnly" Always Bool,
    }
    SCALE_IO_VOLUME_SOURCE {
        1 "gateway" Always Text, 2 "system" Always Text,
        3 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE), 4 "sslEnabled" Always Bool,
        5 "protectionDomain" Always Text, 6 "storagePool" Always Text, 7 "storageMode" Always Text,
        8 "volumeName" Always Text, 9 "fsType" Always Text, 10 "readOnly" Always Bool,
    }
    STORAGE_OS_VOLUME_SOURCE {
        1 "volumeName" Always Text, 2 "volumeNamespace" Always Text, 3 "fsType" Always Text,
        4 "readOnly" Always Bool, 5 "secretRef" IfSet Message(LOCAL_OBJECT_REFERENCE),
    }
    CSI_VOLUME_SOURCE {
        1 "driver" Always Text, 2 "readOnly" IfSet Bool, 3 "fsType" IfSet Text,
        4 "volumeAttributes" Map Text,
        5 "nodePublishSecretRef" IfSet Message(LOCAL_OBJECT_REFERENCE),
    }
    EPHEMERAL_VOLUME_SOURCE {
        1 "volumeClaimTemplate" IfSet Message(PERSISTENT_VOLUME_CLAIM_TEMPLATE),
    }
    IMAGE_VOLUME_SOURCE { 1 "reference" Always Text, 2 "pullPolicy" Always Text }
    CONFIG_MAP_ENV_SOURCE { 1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "optional" IfSet Bool }
    SECRET_ENV_SOURCE { 1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "optional" IfSet Bool }
    ENV_VAR_SOURCE {
        1 "fieldRef" IfSet Message(OBJECT_FIELD_SELECTOR),
        2 "resourceFieldRef" IfSet Message(RESOURCE_FIELD_SELECTOR),
        3 "configMapKeyRef" IfSet Message(CONFIG_MAP_KEY_SELECTOR),
        4 "secretKeyRef" IfSet Message(SECRET_KEY_SELECTOR),
        5 "fileKeyRef" IfSet Message(FILE_KEY_SELECTOR),
    }
    CONTAINER_RESTART_RULE_ON_EXIT_CODES { 1 "operator" Always Text, 2 "values" List Integer }
    PROBE_HANDLER {
        1 "exec" IfSet Message(EXEC_ACTION), 2 "httpGet" IfSet Message(HTTP_GET_ACTION),
        3 "tcpSocket" IfSet Message(TCP_SOCKET_ACTION), 4 "grpc" IfSet Message(GRPC_ACTION),
    }
    LIFECYCLE_HANDLER {
        1 "exec" IfSet Message(EXEC_ACTION), 2 "httpGet" IfSet Message(HTTP_GET_ACTION),
        3 "tcpSocket" IfSet Message(TCP_SOCKET_ACTION), 4 "sleep" IfSet Message(SLEEP_ACTION),
    }
    CAPABILITIES { 1 "add" List Text, 2 "drop" List Text }
    NODE_SELECTOR { 1 "nodeSelectorTerms" List Message(NODE_SELECTOR_TERM) }
    PREFERRED_SCHEDULING_TERM {
        1 "weight" Always Integer, 2 "preference" Always Message(NODE_SELECTOR_TERM),
    }
    POD_AFFINITY_TERM {
        1 "labelSelector" IfSet Message(LABEL_SELECTOR), 2 "namespaces" List Text,
        3 "topologyKey" Always Text, 4 "namespaceSelector" IfSet Message(LABEL_SELECTOR),
        5 "matchLabelKeys" List Text, 6 "mismatchLabelKeys" List Text,
    }
    WEIGHTED_POD_AFFINITY_TERM {
        1 "weight" Always Integer, 2 "podAffinityTerm" Always Message(POD_AFFINITY_TERM),
    }
    LABEL_SELECTOR_REQUIREMENT {
        1 "key" Always Text, 2 "operator" Always Text, 3 "values" List Text,
    }
    CONTAINER_STATE_WAITING { 1 "reason" Always Text, 2 "message" Always Text }
    CONTAINER_STATE_RUNNING { 1 "startedAt" Always Time }
    CONTAINER_STATE_TERMINATED {
        1 "exitCode" Always Integer, 2 "signal" Always Integer, 3 "reason" Always Text,
        4 "message" Always Text, 5 "startedAt" Always Time, 6 "finishedAt" Always Time,
        7 "containerID" Always Text,
    }
    VOLUME_STATUS { 1 "image" IfSet Message(IMAGE_VOLUME_STATUS) }
    LINUX_CONTAINER_USER {
        1 "uid" Always Integer, 2 "gid" Always Integer, 3 "supplementalGroups" List Integer,
    }
    RESOURCE_HEALTH { 1 "resourceID" Always Text, 2 "health" Always Text, 6 "message" IfSet Text }
    KEY_TO_PATH { 1 "key" Always Text, 2 "path" Always Text, 3 "mode" IfSet Integer }
    DOWNWARD_API_VOLUME_FILE {
        1 "path" Always Text, 2 "fieldRef" IfSet Message(OBJECT_FIELD_SELECTOR),
        3 "resourceFieldRef" IfSet Message(RESOURCE_FIELD_SELECTOR), 4 "mode" IfSet Integer,
    }
    VOLUME_PROJECTION {
        1 "secret" IfSet Message(SECRET_PROJECTION),
        2 "downwardAPI" IfSet Message(DOWNWARD_API_PROJECTION),
        3 "configMap" IfSet Message(CONFIG_MAP_PROJECTION),
        4 "serviceAccountToken" IfSet Message(SERVICE_ACCOUNT_TOKEN_PROJECTION),
        5 "clusterTrustBundle" IfSet Message(CLUSTER_TRUST_BUNDLE_PROJECTION),
        6 "podCertificate" IfSet Message(POD_CERTIFICATE_PROJECTION),
    }
    PERSISTENT_VOLUME_CLAIM_TEMPLATE {
        1 "metadata" Always Message(OBJECT_META),
        2 "spec" Always Message(PERSISTENT_VOLUME_CLAIM_SPEC),
    }
    OBJECT_FIELD_SELECTOR { 1 "apiVersion" Always Text, 2 "fieldPath" Always Text }
    RESOURCE_FIELD_SELECTOR {
        1 "containerName" Always Text, 2 "resource" Always Text, 3 "divisor" Always Quantity,
    }
    CONFIG_MAP_KEY_SELECTOR {
        1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "key" Always Text, 3 "optional" IfSet Bool,
    }
    SECRET_KEY_SELECTOR {
        1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "key" Always Text, 3 "optional" IfSet Bool,
    }
    FILE_KEY_SELECTOR {
        1 "volumeName" Always Text, 2 "path" Always Text, 3 "key" Always Text,
        4 "optional" IfSet Bool,
    }
    EXEC_ACTION { 1 "command" List Text }
    HTTP_GET_ACTION {
        1 "path" Always Text, 2 "port" Always IntOrString, 3 "host" Always Text,
        4 "scheme" Always Text, 5 "httpHeaders" List Message(HTTP_HEADER),
    }
    TCP_SOCKET_ACTION { 1 "port" Always IntOrString, 2 "host" Always Text }
    GRPC_ACTION { 1 "port" Always Integer, 2 "service" IfSet Text }
    SLEEP_ACTION { 1 "seconds" Always Integer }
    NODE_SELECTOR_TERM {
        1 "matchExpressions" List Message(NODE_SELECTOR_REQUIREMENT),
        2 "matchFields" List Message(NODE_SELECTOR_REQUIREMENT),
    }
    IMAGE_VOLUME_STATUS { 1 "imageRef" Always Text }
    SECRET_PROJECTION {
        1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "items" List Message(KEY_TO_PATH),
        4 "optional" IfSet Bool,
    }
    DOWNWARD_API_PROJECTION { 1 "items" List Message(DOWNWARD_API_VOLUME_FILE) }
    CONFIG_MAP_PROJECTION {
        1 "" Flat Message(LOCAL_OBJECT_REFERENCE), 2 "items" List Message(KEY_TO_PATH),
        4 "optional" IfSet Bool,
    }
    SERVICE_ACCOUNT_TOKEN_PROJECTION {
        1 "audience" Always Text, 2 "expirationSeconds" IfSet Integer, 3 "path" Always Text,
    }
    CLUSTER_TRUST_BUNDLE_PROJECTION {
        1 "name" IfSet Text, 2 "signerName" IfSet Text,
        3 "labelSelector" IfSet Message(LABEL_SELECTOR), 4 "path" Always Text,
        5 "optional" IfSet Bool,
    }
    POD_CERTIFICATE_PROJECTION {
        1 "signerName" Always Text, 2 "keyType" Always Text, 3 "maxExpirationSeconds" IfSet Integer,
        4 "credentialBundlePath" Always Text, 5 "keyPath" Always Text,
        6 "certificateChainPath" Always Text, 7 "userAnnotations" Map Text,
    }
    PERSISTENT_VOLUME_CLAIM_SPEC {
        1 "accessModes" List Text, 2 "resources" Always Message(VOLUME_RESOURCE_REQUIREMENTS),
        3 "volumeName" Always Text, 4 "selector" IfSet Message(LABEL_SELECTOR),
        5 "storageClassName" IfSet Text, 6 "volumeMode" IfSet Text,
        7 "dataSource" IfSet Message(TYPED_LOCAL_OBJECT_REFERENCE),
        8 "dataSourceRef" IfSet Message(TYPED_OBJECT_REFERENCE),
        9 "volumeAttributesClassName" IfSet Text,
    }
    HTTP_HEADER { 1 "name" Always Text, 2 "value" Always Text }
    NODE_SELECTOR_REQUIREMENT {
        1 "key" Always Text, 2 "operator" Always Text, 3 "values" List Text,
    }
    VOLUME_RESOURCE_REQUIREMENTS { 1 "limits" Map Quantity, 2 "requests" Map Quantity }
    TYPED_LOCAL_OBJECT_REFERENCE {
        1 "apiGroup" IfSet Text, 2 "kind" Always Text, 3 "name" Always Text,
    }
    TYPED_OBJECT_REFERENCE {
        1 "apiGroup" IfSet Text, 2 "kind" Always Text, 3 "name" Always Text,
        4 "namespace" IfSet Text,
    }
}
