//! Objects with resource versions, and the history that watches replay.

use super::patch;
use super::path::{Query, Target};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KINDS: [(&str, &str); 19] = [
    ("Pod", "pods"),
    ("Node", "nodes"),
    ("Secret", "secrets"),
    ("ConfigMap", "configmaps"),
    ("Service", "services"),
    ("ServiceAccount", "serviceaccounts"),
    ("Namespace", "namespaces"),
    ("Event", "events"),
    ("Lease", "leases"),
    ("RuntimeClass", "runtimeclasses"),
    ("PersistentVolume", "persistentvolumes"),
    ("PersistentVolumeClaim", "persistentvolumeclaims"),
    ("CertificateSigningRequest", "certificatesigningrequests"),
    ("CSINode", "csinodes"),
    ("CSIDriver", "csidrivers"),
    ("VolumeAttachment", "volumeattachments"),
    ("ClusterTrustBundle", "clustertrustbundles"),
    ("TokenReview", "tokenreviews"),
    ("SubjectAccessReview", "subjectaccessreviews"),
];

/// The kind of a plural; the plural itself if it is not known.
pub(super) fn kind_of(plural: &str) -> &str {
    KINDS.iter().find(|(_, p)| *p == plural).map_or(plural, |(kind, _)| kind)
}

fn plural_of(kind: &str) -> String {
    let known = KINDS.iter().find(|(k, _)| *k == kind).map(|(_, plural)| (*plural).to_owned());
    known.unwrap_or_else(|| format!("{}s", kind.to_lowercase()))
}

/// The machine's time: what a server stamps on objects.
pub(super) fn now() -> jiff::Timestamp {
    use ports::Clock;
    ports::SystemClock.now()
}

/// A failure as the API server words it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
}

impl Refused {
    pub(super) fn not_found(plural: &str, name: &str) -> Self {
        let message = format!("{plural} \"{name}\" not found");
        Self { code: 404, reason: "NotFound", message }
    }

    pub(super) fn bad(message: &str) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into() }
    }

    pub(super) fn expired() -> Self {
        let message = "too old resource version".into();
        Self { code: 410, reason: "Expired", message }
    }

    pub(super) fn too_large(version: u64, known: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {version}, current: {known}");
        Self { code: 504, reason: "Timeout", message }
    }

    pub(super) fn injected(code: u16) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            429 => "TooManyRequests",
            _ => "InternalError",
        };
        Self { code, reason, message: format!("refused on purpose with {code}") }
    }

    fn exists(plural: &str, name: &str) -> Self {
        let message = format!("{plural} \"{name}\" already exists");
        Self { code: 409, reason: "AlreadyExists", message }
    }

    fn conflict(plural: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}");
        Self { code: 409, reason: "Conflict", message }
    }

    fn immutable_uid(kind: &str, name: &str, uid: &str) -> Self {
        let message = format!(
            "{kind} \"{name}\" is invalid: metadata.uid: Invalid value: \"{uid}\": field is \
             immutable"
        );
        Self { code: 422, reason: "Invalid", message }
    }

    pub(super) fn status(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": self.code,
            "reason": self.reason, "message": self.message})
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    plural: String,
    namespace: String,
    name: String,
}

impl Key {
    fn of(plural: &str, namespace: &str, name: &str) -> Self {
        Self { plural: plural.into(), namespace: namespace.into(), name: name.into() }
    }
}

/// One step of the history.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) version: u64,
    kind: &'static str,
    key: Key,
    object: Value,
}

impl Event {
    pub(super) fn document(&self) -> Value {
        json!({"type": self.kind, "object": self.object})
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    objects: BTreeMap<Key, Value>,
    history: Vec<Event>,
    version: u64,
    compacted: u64,
}

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
    }

    pub(super) fn is_compacted(&self, version: u64) -> bool {
        version < self.compacted
    }

    pub(super) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.objects.get(&Key::of(plural, namespace, name)).cloned()
    }

    pub(super) fn all(&self, plural: &str) -> Vec<Value> {
        let of_kind = self.objects.iter().filter(|(key, _)| key.plural == plural);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    pub(super) fn select(&self, target: &Target, query: &Query) -> Vec<Value> {
        let chosen = self.objects.iter().filter(|(key, o)| fits(key, o, target, query));
        chosen.map(|(_, object)| object.clone()).collect()
    }

    pub(super) fn list(&self, target: &Target, query: &Query) -> Value {
        json!({
            "apiVersion": target.api_version(),
            "kind": format!("{}List", kind_of(&target.plural)),
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": self.select(target, query),
        })
    }

    pub(super) fn since(&self, version: u64, target: &Target, query: &Query) -> Vec<Event> {
        let newer = self.history.iter().filter(|e| e.version > version);
        newer.filter(|e| fits(&e.key, &e.object, target, query)).cloned().collect()
    }

    /// Creates or replaces, without preconditions.
    pub(super) fn put(&mut self, object: Value) -> Value {
        let plural = plural_of(text(&object, "/kind"));
        let key = Key::of(&plural, text(&object, "/metadata/namespace"), name_of(&object));
        self.store(key, object)
    }

    pub(super) fn create(&mut self, target: &Target, mut object: Value) -> Result<Value, Refused> {
        if name_of(&object).is_empty() {
            let prefix = text(&object, "/metadata/generateName").to_owned();
            object["metadata"]["name"] = format!("{prefix}{}", self.version + 1).into();
        }
        let name = name_of(&object).to_owned();
        let key = Key::of(&target.plural, &target.namespace, &name);
        if self.objects.contains_key(&key) {
            return Err(Refused::exists(&target.plural, &name));
        }
        object["apiVersion"] = target.api_version().into();
        object["kind"] = kind_of(&target.plural).into();
        if !target.namespace.is_empty() {
            object["metadata"]["namespace"] = target.namespace.clone().into();
        }
        Ok(self.store(key, object))
    }

    pub(super) fn replace(&mut self, target: &Target, object: Value) -> Result<Value, Refused> {
        let (key, known) = self.find(target)?;
        let wanted = text(&object, "/metadata/resourceVersion");
        if !wanted.is_empty() && wanted != text(&known, "/metadata/resourceVersion") {
            let why = "the object has been modified; please apply your changes to the latest \
                       version and try again";
            return Err(Refused::conflict(&target.plural, &target.name, why));
        }
        Ok(self.store(key, object))
    }

    pub(super) fn patch(
        &mut self,
        target: &Target,
        change: &Value,
        strategic: bool,
    ) -> Result<Value, Refused> {
        let (key, known) = self.find(target)?;
        let uid = text(change, "/metadata/uid");
        if !uid.is_empty() && uid != text(&known, "/metadata/uid") {
            return Err(Refused::immutable_uid(kind_of(&target.plural), &target.name, uid));
        }
        let mut object = known.clone();
        match strategic {
            true => patch::strategic(&mut object, change),
            false => patch::merge(&mut object, change),
        }
        if object == known {
            return Ok(known);
        }
        Ok(self.store(key, object))
    }

    /// Pods with a grace period are only marked, as the API server does.
    pub(super) fn delete(&mut self, target: &Target, options: &Value) -> Result<Value, Refused> {
        let (key, known) = self.find(target)?;
        let uid = text(options, "/preconditions/uid");
        let real = text(&known, "/metadata/uid");
        if !uid.is_empty() && uid != real {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in \
                               record ({real}). The object might have been deleted and then \
                               recreated"
            );
            return Err(Refused::conflict(&target.plural, &target.name, &why));
        }
        let default = known.pointer("/spec/terminationGracePeriodSeconds");
        let grace = options["gracePeriodSeconds"].as_i64();
        let grace = grace.or_else(|| default.and_then(Value::as_i64)).unwrap_or_default();
        let bound = !text(&known, "/spec/nodeName").is_empty();
        if target.plural == "pods" && grace > 0 && bound {
            let mut object = known;
            object["metadata"]["deletionTimestamp"] = stamp();
            object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            return Ok(self.store(key, object));
        }
        self.remove(&key.plural, &key.namespace, &key.name);
        Ok(known)
    }

    pub(super) fn remove(&mut self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = Key::of(plural, namespace, name);
        let mut object = self.objects.remove(&key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let event = Event { version: self.version, kind: "DELETED", key, object: object.clone() };
        self.history.push(event);
        Some(object)
    }

    fn find(&self, target: &Target) -> Result<(Key, Value), Refused> {
        let key = Key::of(&target.plural, &target.namespace, &target.name);
        let known = self.objects.get(&key).cloned();
        let known = known.ok_or_else(|| Refused::not_found(&target.plural, &target.name))?;
        Ok((key, known))
    }

    /// Stamps and keeps an object, and writes history.
    fn store(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        let known = self.objects.get(&key);
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        let uid = known.map(|k| text(k, "/metadata/uid").to_owned());
        let made = known.and_then(|k| k.pointer("/metadata/creationTimestamp").cloned());
        if text(&object, "/metadata/uid").is_empty() {
            let fresh = format!("00000000-0000-4000-8000-{:012x}", self.version);
            object["metadata"]["uid"] = uid.unwrap_or(fresh).into();
        }
        if object.pointer("/metadata/creationTimestamp").is_none() {
            object["metadata"]["creationTimestamp"] = made.unwrap_or_else(stamp);
        }
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let event = Event { version: self.version, kind, key: key.clone(), object: object.clone() };
        self.history.push(event);
        self.objects.insert(key, object.clone());
        object
    }
}

fn fits(key: &Key, object: &Value, target: &Target, query: &Query) -> bool {
    let field = |name: &str| text(object, &format!("/{}", name.replace('.', "/"))).to_owned();
    key.plural == target.plural
        && (target.namespace.is_empty() || key.namespace == target.namespace)
        && query.fields.iter().all(|(name, value)| field(name) == *value)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name_of(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn stamp() -> Value {
    let seconds = now().as_second();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string().into()
}
