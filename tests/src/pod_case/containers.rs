//! Containers: what they run, when they end, what they may do.

use serde_json::{Value, json};

use super::probes::Server;
use super::{AGNHOST, BUSYBOX, Draw};

/// What a container is in its pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Before the others.
    Init,
    /// Beside the others, from before they start.
    Side,
    /// One of those that the pod is about.
    Main,
}

const SERVES: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

/// What can be seen from inside.
const SIGHTS: [&str; 15] = [
    "id",
    "cat /etc/hosts",
    "cat /etc/resolv.conf",
    "cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname /etc/hostname",
    "env | sort",
    "grep -E '^(Cap|NoNew|Seccomp:|Groups|Uid|Gid)' /proc/self/status",
    "cat /proc/self/oom_score_adj",
    "grep -E ' /(mnt|etc|dev/t|dev/s|sys|proc)' /proc/mounts | cut -d' ' -f2,3,4 | sort",
    "ls /dev | sort",
    "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ping_group_range",
    "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.shares cpu/cpu.cfs_quota_us",
    "find -L /mnt -maxdepth 4 -name '..*' -prune -o -exec stat -L -c '%a %u %g %F %n' {} + | sort | head -60",
    "for f in $(find -L /mnt -maxdepth 4 -type f -size -2k | grep -v '/\\.\\.' | sort | head -20); do echo \"$f:\"; cat $f; done",
    "pwd; umask; cat /proc/1/comm; echo \"$0|$1|$2|$3\"",
    "ulimit -n; ulimit -c; test -w /; echo $?; touch /x; for d in /mnt/*; do touch $d/x; echo $d $?; done",
];

impl Draw {
    /// One container.
    pub(super) fn container(&mut self, role: Role, index: usize, policy: &str) -> Value {
        let name = match role {
            Role::Init => format!("i{index}"),
            Role::Side => format!("s{index}"),
            Role::Main => char::from(b'a' + u8::try_from(index).unwrap_or(25)).to_string(),
        };
        let mut made = json!({ "name": name, "image": BUSYBOX });
        self.environment(&mut made, "a");
        self.mounts(&mut made);
        self.resources(&mut made, role != Role::Init && policy != "Never");
        self.rights(&mut made);
        self.messages(&mut made);
        let mut server = Server::None;
        match role {
            Role::Init => {
                let run = self.init_run();
                self.command(&mut made, &run);
            }
            Role::Main | Role::Side if self.rng.once_in(5) => {
                server = self.serve_http(&mut made, index + usize::from(role == Role::Side) * 3);
            }
            _ => {
                let run = self.main_run(&mut made, role, policy);
                self.command(&mut made, &run);
            }
        }
        if role == Role::Side {
            made["restartPolicy"] = json!("Always");
        } else {
            self.restarts(&mut made);
        }
        if role != Role::Init {
            self.probes(&mut made, server);
            self.hooks(&mut made, server);
            self.ports(&mut made, server, index);
        }
        if self.rng.once_in(20) {
            made["tty"] = json!(true);
            made["stdin"] = json!(true);
        }
        let policies =
            json!(["Never", "Never", "IfNotPresent", "IfNotPresent", "IfNotPresent", "Always"]);
        self.maybe(&mut made, "imagePullPolicy", 6, &policies);
        self.maybe(&mut made, "workingDir", 12, &json!(["/tmp", "/", "/made/here", "/usr/../etc"]));
        made
    }

    fn command(&mut self, made: &mut Value, run: &str) {
        let mut words = vec![json!("sh"), json!("-c"), json!(run)];
        let odd = self.odd_words();
        if self.rng.once_in(4) && !odd.is_empty() {
            made["args"] = Value::Array(odd);
        } else {
            words.extend(odd);
        }
        made["command"] = Value::Array(words);
    }

    /// Seconds until some container ends, another number for each.
    pub(super) fn next_end(&mut self) -> u64 {
        self.ends += 1;
        self.ends * 2 + 1
    }

    fn init_run(&mut self) -> String {
        match self.rng.below(12) {
            0 => {
                self.settles = false;
                format!("sleep 2; exit {}", [1, 2, 42][self.rng.below(3)])
            }
            1 => "echo said; sleep 2".to_owned(),
            2 => "sleep 1; true".to_owned(),
            _ => self.looks() + "; sleep 2",
        }
    }

    fn looks(&mut self) -> String {
        let mut all = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let sight = self.word(&SIGHTS);
            if !all.contains(&sight) {
                all.push(sight);
            }
        }
        let groups = all.iter().map(|sight| format!("({sight})")).collect::<Vec<_>>();
        format!("{{ {}; }} >/dev/termination-log 2>&1", groups.join("; "))
    }

    fn main_run(&mut self, made: &mut Value, role: Role, policy: &str) -> String {
        let code = [0, 0, 1, 3, 42, 137][self.rng.below(6)];
        let again =
            role == Role::Side || policy == "Always" || (policy == "OnFailure" && code != 0);
        match self.rng.below(20) {
            0 | 1 if again => {
                // Ends once, then stays.
                let mount = json!({ "name": "once", "mountPath": "/once" });
                match made["volumeMounts"].as_array_mut() {
                    Some(list) => list.push(mount),
                    None => made["volumeMounts"] = json!([mount]),
                }
                self.settles = false;
                let name = made["name"].as_str().unwrap_or_default();
                let at = self.next_end();
                format!(
                    "test -e /once/{name} && {{ {SERVES}; }}; touch /once/{name}; sleep {at}; exit {code}"
                )
            }
            2 if again => {
                self.settles = false;
                format!("sleep {}; exit {code}", self.next_end())
            }
            0..=4 if !again => {
                self.settles = false;
                format!("sleep {}; exit {code}", self.next_end())
            }
            5 | 6 if !again => {
                self.settles = false;
                format!("{}; sleep {}; exit {code}", self.looks(), self.next_end())
            }
            7 => "trap '' TERM; sleep 3600 & wait; wait".to_owned(),
            8 => {
                "trap 'echo bye; echo left > /dev/termination-log; exit 5' TERM; sleep 3600 & wait"
                    .to_owned()
            }
            9 => "echo one; echo two >&2; exec sleep 3600".to_owned(),
            10 if !again => {
                self.settles = false;
                format!("sleep {}; kill -9 $$; kill -ABRT $$; sleep 1; exit 9", self.next_end())
            }
            11 => format!("trap 'sleep 1; exit {code}' TERM; sleep 3600 & wait"),
            _ => SERVES.to_owned(),
        }
    }

    fn serve_http(&mut self, made: &mut Value, index: usize) -> Server {
        let port = self.port + u64::try_from(index).unwrap_or_default() % 4;
        made["image"] = json!(AGNHOST);
        made["args"] = json!(["netexec", format!("--http-port={port}"), "--udp-port=-1"]);
        made["ports"] = json!([{ "name": "web", "containerPort": port }]);
        Server::Http(port)
    }

    fn ports(&mut self, made: &mut Value, server: Server, index: usize) {
        // Only one container of a pod may have them.
        if index == 0 && server == Server::None && self.rng.once_in(6) {
            let (port, udp) = (self.port + 3, self.port + 2);
            made["ports"] = self.one(&json!([
                [{ "containerPort": 80 }],
                [{ "containerPort": 80, "name": "p" }, { "containerPort": 80, "protocol": "UDP" }],
                [{ "containerPort": 53, "hostPort": udp, "protocol": "UDP" }],
                [{ "containerPort": 81, "hostPort": port, "hostIP": "127.0.0.1" }],
                [{ "containerPort": 82, "hostPort": port, "protocol": "SCTP" }],
            ]));
        }
    }

    /// Own restart policies and rules.
    fn restarts(&mut self, made: &mut Value) {
        if !self.rng.once_in(14) {
            return;
        }
        made["restartPolicy"] = self.one(&json!(["Never", "OnFailure", "Always"]));
        if made["name"].as_str().is_some_and(|name| name.starts_with('i')) {
            made["restartPolicy"] = self.one(&json!(["Never", "OnFailure"]));
        }
        if self.rng.once_in(2) {
            let rule = |operator: &str, values: Value| json!([{ "action": "Restart", "exitCodes": { "operator": operator, "values": values } }]);
            made["restartPolicyRules"] = self.one(&json!([
                rule("In", json!([42, 3])),
                rule("NotIn", json!([0])),
                rule("In", json!([0])),
                rule("NotIn", json!([1, 42])),
            ]));
        }
    }

    fn resources(&mut self, made: &mut Value, may_restart: bool) {
        let list = json!([
            { "requests": { "cpu": "10m" } },
            { "limits": { "cpu": "40m" } },
            { "requests": { "cpu": "1m", "memory": "16Mi" } },
            { "requests": { "memory": "10M" }, "limits": { "memory": "128Mi", "cpu": "1500u" } },
            { "requests": { "cpu": "20m", "memory": "64Mi" }, "limits": { "cpu": "20m", "memory": "64Mi" } },
            { "requests": { "cpu": "30m" }, "limits": { "cpu": "250m", "memory": "96Mi" } },
            { "requests": { "cpu": "15m" }, "limits": { "cpu": "1", "memory": "0.1Gi", "ephemeral-storage": "1Gi" } },
            { "requests": { "ephemeral-storage": "1Mi" }, "limits": { "ephemeral-storage": "2Gi" } },
            { "requests": { "cpu": "0", "memory": "0" } },
            { "requests": { "cpu": "0" }, "limits": { "cpu": "0.0155", "memory": "100e6" } },
            { "requests": { "cpu": "2m" }, "limits": { "memory": "67108865" } },
        ]);
        self.maybe(made, "resources", 3, &list);
        if may_restart && made.get("resources").is_some() && self.rng.once_in(4) {
            made["resizePolicy"] = self.one(&json!([
                [{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }],
                [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
                [{ "resourceName": "cpu", "restartPolicy": "NotRequired" }, { "resourceName": "memory", "restartPolicy": "RestartContainer" }],
            ]));
        }
    }

    /// The security context of a container.
    fn rights(&mut self, made: &mut Value) {
        if !self.rng.once_in(4) {
            return;
        }
        let mut rights = json!({});
        self.maybe(&mut rights, "runAsUser", 3, &json!([0, 1000, 65534, 4_000_000]));
        self.maybe(&mut rights, "runAsGroup", 5, &json!([0, 1000, 3000]));
        if rights["runAsUser"].as_u64().is_some_and(|user| user > 0) {
            self.maybe(&mut rights, "runAsNonRoot", 2, &json!([true, false]));
        }
        self.maybe(&mut rights, "readOnlyRootFilesystem", 5, &json!([true, false]));
        self.maybe(&mut rights, "capabilities", 3, &json!([
            { "drop": ["ALL"] }, { "add": ["NET_ADMIN"] }, { "add": ["SYS_TIME", "CHOWN"], "drop": ["KILL"] },
            { "add": ["ALL"], "drop": ["MKNOD"] }, { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] }, {},
        ]));
        self.maybe(
            &mut rights,
            "seccompProfile",
            5,
            &json!([{ "type": "RuntimeDefault" }, { "type": "Unconfined" }]),
        );
        self.maybe(
            &mut rights,
            "seLinuxOptions",
            12,
            &json!([{ "level": "s0:c1,c2" }, { "type": "t", "user": "u", "role": "r" }]),
        );
        match self.rng.below(6) {
            0 => rights["privileged"] = json!(true),
            1 => rights["allowPrivilegeEscalation"] = json!(false),
            2 => rights["allowPrivilegeEscalation"] = json!(true),
            3 => rights["privileged"] = json!(false),
            _ => {}
        }
        made["securityContext"] = rights;
    }

    fn messages(&mut self, made: &mut Value) {
        let policies = json!(["FallbackToLogsOnError", "File"]);
        self.maybe(made, "terminationMessagePolicy", 5, &policies);
        let paths = json!(["/tmp/why", "/dev/termination-log", "/made/here/why", "/mnt/why"]);
        self.maybe(made, "terminationMessagePath", 14, &paths);
    }
}
