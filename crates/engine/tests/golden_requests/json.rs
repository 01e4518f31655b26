//! CRI messages in the form the goldens have: proto field names, enums by name, 64-bit numbers
//! as text, zero values left out.

use proto::cri_v1::{self as cri, security_profile::ProfileType};
use serde_json::{Map, Value};

/// An object without its zero values.
struct Object(Map<String, Value>);

impl Object {
    fn new() -> Self {
        Self(Map::new())
    }

    fn text(mut self, key: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.0.insert(key.into(), value.into());
        }
        self
    }

    fn flag(mut self, key: &str, value: bool) -> Self {
        if value {
            self.0.insert(key.into(), true.into());
        }
        self
    }

    fn small(mut self, key: &str, value: i64) -> Self {
        if value != 0 {
            self.0.insert(key.into(), value.into());
        }
        self
    }

    fn wide(self, key: &str, value: i64) -> Self {
        if value == 0 { self } else { self.text(key, &value.to_string()) }
    }

    fn list(mut self, key: &str, values: impl IntoIterator<Item = Value>) -> Self {
        let values: Vec<Value> = values.into_iter().collect();
        if !values.is_empty() {
            self.0.insert(key.into(), values.into());
        }
        self
    }

    fn texts(self, key: &str, values: &[String]) -> Self {
        self.list(key, values.iter().map(|v| v.as_str().into()))
    }

    fn map(mut self, key: &str, values: &std::collections::BTreeMap<String, String>) -> Self {
        if !values.is_empty() {
            let entries = values.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
            self.0.insert(key.into(), Value::Object(entries));
        }
        self
    }

    fn message<T>(mut self, key: &str, value: Option<&T>, form: fn(&T) -> Value) -> Self {
        if let Some(value) = value {
            self.0.insert(key.into(), form(value));
        }
        self
    }

    /// An enum by name; the zero value is left out.
    fn name(self, key: &str, number: i32, name: &str) -> Self {
        if number == 0 { self } else { self.text(key, name) }
    }

    fn done(self) -> Value {
        Value::Object(self.0)
    }
}

pub(crate) fn sandbox(config: &cri::PodSandboxConfig) -> Value {
    Object::new()
        .message("metadata", config.metadata.as_ref(), |m| {
            Object::new()
                .text("name", &m.name)
                .text("namespace", &m.namespace)
                .text("uid", &m.uid)
                .small("attempt", m.attempt.into())
                .done()
        })
        .text("hostname", &config.hostname)
        .text("log_directory", &config.log_directory)
        .message("dns_config", config.dns_config.as_ref(), |d| {
            Object::new()
                .texts("servers", &d.servers)
                .texts("searches", &d.searches)
                .texts("options", &d.options)
                .done()
        })
        .list("port_mappings", config.port_mappings.iter().map(port_mapping))
        .map("labels", &config.labels)
        .map("annotations", &config.annotations)
        .message("linux", config.linux.as_ref(), |l| {
            Object::new()
                .text("cgroup_parent", &l.cgroup_parent)
                .message("security_context", l.security_context.as_ref(), sandbox_security)
                .map("sysctls", &l.sysctls)
                .message("overhead", l.overhead.as_ref(), resources)
                .message("resources", l.resources.as_ref(), resources)
                .done()
        })
        .done()
}

pub(crate) fn container(config: &cri::ContainerConfig) -> Value {
    Object::new()
        .message("metadata", config.metadata.as_ref(), |m| {
            Object::new().text("name", &m.name).small("attempt", m.attempt.into()).done()
        })
        .message("image", config.image.as_ref(), image)
        .texts("command", &config.command)
        .texts("args", &config.args)
        .text("working_dir", &config.working_dir)
        .list(
            "envs",
            config.envs.iter().map(|e| {
                let value = String::from_utf8_lossy(&e.value);
                Object::new().text("key", &e.key).text("value", &value).done()
            }),
        )
        .list("mounts", config.mounts.iter().map(mount))
        .list(
            "devices",
            config.devices.iter().map(|d| {
                Object::new()
                    .text("container_path", &d.container_path)
                    .text("host_path", &d.host_path)
                    .text("permissions", &d.permissions)
                    .done()
            }),
        )
        .map("labels", &config.labels)
        .map("annotations", &config.annotations)
        .text("log_path", &config.log_path)
        .flag("stdin", config.stdin)
        .flag("stdin_once", config.stdin_once)
        .flag("tty", config.tty)
        .message("linux", config.linux.as_ref(), |l| {
            Object::new()
                .message("resources", l.resources.as_ref(), resources)
                .message("security_context", l.security_context.as_ref(), container_security)
                .done()
        })
        .list(
            "CDI_devices",
            config.cdi_devices.iter().map(|d| Object::new().text("name", &d.name).done()),
        )
        .name("stop_signal", config.stop_signal, config.stop_signal().as_str_name())
        .done()
}

pub(crate) fn resources(r: &cri::LinuxContainerResources) -> Value {
    Object::new()
        .wide("cpu_period", r.cpu_period)
        .wide("cpu_quota", r.cpu_quota)
        .wide("cpu_shares", r.cpu_shares)
        .wide("memory_limit_in_bytes", r.memory_limit_in_bytes)
        .wide("oom_score_adj", r.oom_score_adj)
        .text("cpuset_cpus", &r.cpuset_cpus)
        .text("cpuset_mems", &r.cpuset_mems)
        .list(
            "hugepage_limits",
            r.hugepage_limits.iter().map(|h| {
                let limit = i64::try_from(h.limit).unwrap_or(i64::MAX);
                Object::new().text("page_size", &h.page_size).wide("limit", limit).done()
            }),
        )
        .map("unified", &r.unified)
        .wide("memory_swap_limit_in_bytes", r.memory_swap_limit_in_bytes)
        .done()
}

fn port_mapping(port: &cri::PortMapping) -> Value {
    Object::new()
        .name("protocol", port.protocol, port.protocol().as_str_name())
        .small("container_port", port.container_port.into())
        .small("host_port", port.host_port.into())
        .text("host_ip", &port.host_ip)
        .done()
}

fn image(image: &cri::ImageSpec) -> Value {
    Object::new()
        .text("image", &image.image)
        .map("annotations", &image.annotations)
        .text("user_specified_image", &image.user_specified_image)
        .text("runtime_handler", &image.runtime_handler)
        .done()
}

fn mount(mount: &cri::Mount) -> Value {
    assert!(mount.uid_mappings.is_empty() && mount.gid_mappings.is_empty());
    Object::new()
        .text("container_path", &mount.container_path)
        .text("host_path", &mount.host_path)
        .flag("readonly", mount.readonly)
        .flag("selinux_relabel", mount.selinux_relabel)
        .name("propagation", mount.propagation, mount.propagation().as_str_name())
        .flag("recursive_read_only", mount.recursive_read_only)
        .message("image", mount.image.as_ref(), image)
        .text("image_sub_path", &mount.image_sub_path)
        .done()
}

fn sandbox_security(c: &cri::LinuxSandboxSecurityContext) -> Value {
    Object::new()
        .message("namespace_options", c.namespace_options.as_ref(), namespaces)
        .message("selinux_options", c.selinux_options.as_ref(), selinux)
        .message("run_as_user", c.run_as_user.as_ref(), int64)
        .message("run_as_group", c.run_as_group.as_ref(), int64)
        .flag("readonly_rootfs", c.readonly_rootfs)
        .list("supplemental_groups", c.supplemental_groups.iter().map(|g| g.to_string().into()))
        .name(
            "supplemental_groups_policy",
            c.supplemental_groups_policy,
            c.supplemental_groups_policy().as_str_name(),
        )
        .flag("privileged", c.privileged)
        .message("seccomp", c.seccomp.as_ref(), profile)
        .message("apparmor", c.apparmor.as_ref(), profile)
        .done()
}

fn container_security(c: &cri::LinuxContainerSecurityContext) -> Value {
    Object::new()
        .message("capabilities", c.capabilities.as_ref(), |caps| {
            Object::new()
                .texts("add_capabilities", &caps.add_capabilities)
                .texts("drop_capabilities", &caps.drop_capabilities)
                .done()
        })
        .flag("privileged", c.privileged)
        .message("namespace_options", c.namespace_options.as_ref(), namespaces)
        .message("selinux_options", c.selinux_options.as_ref(), selinux)
        .message("run_as_user", c.run_as_user.as_ref(), int64)
        .message("run_as_group", c.run_as_group.as_ref(), int64)
        .text("run_as_username", &c.run_as_username)
        .flag("readonly_rootfs", c.readonly_rootfs)
        .list("supplemental_groups", c.supplemental_groups.iter().map(|g| g.to_string().into()))
        .name(
            "supplemental_groups_policy",
            c.supplemental_groups_policy,
            c.supplemental_groups_policy().as_str_name(),
        )
        .flag("no_new_privs", c.no_new_privs)
        .texts("masked_paths", &c.masked_paths)
        .texts("readonly_paths", &c.readonly_paths)
        .message("seccomp", c.seccomp.as_ref(), profile)
        .message("apparmor", c.apparmor.as_ref(), profile)
        .text("apparmor_profile", &c.apparmor_profile)
        .done()
}

fn namespaces(n: &cri::NamespaceOption) -> Value {
    Object::new()
        .name("network", n.network, n.network().as_str_name())
        .name("pid", n.pid, n.pid().as_str_name())
        .name("ipc", n.ipc, n.ipc().as_str_name())
        .text("target_id", &n.target_id)
        .message("userns_options", n.userns_options.as_ref(), |u| {
            assert!(u.uids.is_empty() && u.gids.is_empty());
            Object::new().name("mode", u.mode, u.mode().as_str_name()).done()
        })
        .done()
}

fn selinux(o: &cri::SeLinuxOption) -> Value {
    Object::new()
        .text("user", &o.user)
        .text("role", &o.role)
        .text("type", &o.r#type)
        .text("level", &o.level)
        .done()
}

fn int64(value: &cri::Int64Value) -> Value {
    Object::new().wide("value", value.value).done()
}

fn profile(p: &cri::SecurityProfile) -> Value {
    let name = match p.profile_type() {
        ProfileType::RuntimeDefault => "RuntimeDefault",
        ProfileType::Unconfined => "Unconfined",
        ProfileType::Localhost => "Localhost",
    };
    Object::new()
        .name("profile_type", p.profile_type, name)
        .text("localhost_ref", &p.localhost_ref)
        .done()
}
