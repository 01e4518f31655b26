//! The command line against the parity table.

use super::*;
use crate::kubelet::KubeletConfiguration;

const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parity/flags.tsv"));

struct Row<'a> {
    name: &'a str,
    shorthand: &'a str,
    type_name: &'a str,
    default: &'a str,
    deprecation_kind: &'a str,
    field: &'a str,
}

/// Every flag of a Linux build.
fn rows() -> Vec<Row<'static>> {
    let rows: Vec<_> = TABLE
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|columns| columns[7] != "windows")
        .map(|columns| Row {
            name: columns[0],
            shorthand: columns[1],
            type_name: columns[2],
            default: columns[3],
            deprecation_kind: columns[5],
            field: columns[6],
        })
        .collect();
    assert_eq!(rows.len(), 149);
    rows
}

fn run(args: &[&str]) -> (KubeletConfiguration, KubeletFlags, Vec<String>, Option<String>) {
    let (mut kubelet, mut flags) = (KubeletConfiguration::default(), KubeletFlags::default());
    let parsed = parse(args.iter().copied());
    let (notices, fault) = validate_uses(&parsed, &mut kubelet, &mut flags);
    (kubelet, flags, notices, fault)
}

fn fault(args: &[&str]) -> String {
    run(args).3.unwrap_or_else(|| panic!("{args:?} was taken"))
}

#[test]
fn every_row_of_the_parity_table_is_here_and_no_other() {
    let rows = rows();
    assert_eq!(all().len(), rows.len());
    for row in rows {
        let flag = find(row.name).unwrap_or_else(|| panic!("{} is missing", row.name));
        assert_eq!(flag.shorthand.map(String::from).unwrap_or_default(), row.shorthand);
        let type_name = flag.kind.type_name().trim_end_matches(",...");
        assert_eq!(type_name, row.type_name, "{}", row.name);
        assert_eq!(flag.default, row.default, "{}", row.name);
        let kind = match flag.deprecation {
            Deprecation::None => "",
            Deprecation::UseConfigFile => "use-config-file",
            Deprecation::CadvisorLeak => "cadvisor-leak",
            Deprecation::UseEviction => "use-eviction",
            Deprecation::Removal | Deprecation::RemovalForCsi => "removal-planned",
        };
        assert_eq!(kind, row.deprecation_kind, "{}", row.name);
        assert_eq!(flag.field, row.field, "{}", row.name);
    }
}

/// A value each kind of flag takes.
fn good_value(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "false",
        Kind::Duration => "7s",
        Kind::Gates => "AllAlpha=false",
        Kind::Headers => "a:b",
        Kind::Int | Kind::Int32 | Kind::Int64 | Kind::Level => "3",
        Kind::Ip => "10.0.0.1",
        Kind::Labels | Kind::Map | Kind::SinglePair => "a=b",
        Kind::LangleMap => "a<b",
        Kind::Quantity => "1Ki",
        Kind::ReservedMemory => "0:memory=1Gi",
        Kind::Strings => "a,b",
        Kind::Taints => "a=b:NoSchedule",
        Kind::Text => "text",
        Kind::VModule => "a=1",
        Kind::Version => "false",
    }
}

#[test]
fn every_flag_is_taken_in_every_spelling_with_its_notice() {
    for row in rows() {
        let flag = find(row.name).unwrap();
        let value = good_value(flag.kind);
        let underscored = row.name.replace('-', "_");
        let mut spellings =
            vec![vec![format!("--{}={value}", row.name)], vec![format!("--{underscored}={value}")]];
        if flag.kind.bare_value().is_none() {
            spellings.push(vec![format!("--{}", row.name), value.to_owned()]);
        } else {
            spellings.push(vec![format!("--{}", row.name)]);
        }
        if let Some(letter) = flag.shorthand {
            spellings.push(vec![format!("-{letter}={value}")]);
        }
        for args in spellings {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let (_, _, notices, fault) = run(&args);
            assert_eq!(fault, None, "{args:?}");
            let text = flag.deprecation.text();
            let expected: Vec<String> = text
                .map(|text| format!("Flag --{} has been deprecated, {text}", row.name))
                .into_iter()
                .collect();
            assert_eq!(notices, expected, "{args:?}");
        }
    }
}

#[test]
fn every_flag_with_a_field_sets_that_field() {
    for row in rows().iter().filter(|row| !row.field.is_empty()) {
        let flag = find(row.name).unwrap();
        let value = if flag.kind == Kind::Bool { "true" } else { good_value(flag.kind) };
        let (kubelet, ..) = run(&[&format!("--{}={value}", row.name)]);
        let json = serde_json::to_value(&kubelet).unwrap();
        let pointer = format!("/{}", row.field.replace('.', "/"));
        let set = json.pointer(&pointer).unwrap_or_else(|| panic!("{} is unset", row.field));
        let default = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        assert_ne!(Some(set), default.pointer(&pointer), "{}", row.name);
    }
}

#[test]
fn every_flag_that_needs_a_value_says_so() {
    for row in rows() {
        let flag = find(row.name).unwrap();
        if flag.kind.bare_value().is_none() {
            let name = format!("--{}", row.name);
            assert_eq!(fault(&[&name]), format!("flag needs an argument: {name}"));
        }
    }
}

#[test]
fn every_kind_refuses_in_upstreams_words() {
    for row in rows() {
        let flag = find(row.name).unwrap();
        let number = r#"strconv.ParseInt: parsing "x": invalid syntax"#;
        let reason = match (flag.kind, flag.registry) {
            (Kind::Bool | Kind::Int | Kind::Duration, Registry::Go) => "parse error",
            (Kind::Int | Kind::Int32 | Kind::Int64, _) => number,
            (Kind::Bool | Kind::Version, _) => r#"strconv.ParseBool: parsing "x": invalid syntax"#,
            (Kind::Level, _) => r#"strconv.ParseUint: parsing "x": invalid syntax"#,
            (Kind::Duration, _) => r#"time: invalid duration "x""#,
            (Kind::Ip, _) => r#""x" is not a valid IP address"#,
            (Kind::Map | Kind::SinglePair, _) => "malformed pair, expect string=string",
            (Kind::LangleMap, _) => "malformed pair, expect string<string",
            (Kind::Gates, _) => "malformed pair, expect string=bool",
            (Kind::Headers, _) => "malformed pair, expect string:string",
            (Kind::Taints, _) => "invalid taint spec: x",
            (Kind::VModule, _) => r#""x" does not have the pattern=N format"#,
            (Kind::Quantity, _) => {
                "quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            (Kind::ReservedMemory, _) => {
                "the reserved memory has incorrect format, expected \
                 numaNodeID:type=quantity[,type=quantity...], got x"
            }
            (Kind::Strings | Kind::Text | Kind::Labels, _) => continue,
        };
        let name = match flag.shorthand {
            Some(letter) => format!("-{letter}, --{}", row.name),
            None => format!("--{}", row.name),
        };
        assert_eq!(
            fault(&[&format!("--{}=x", row.name)]),
            format!("invalid argument \"x\" for \"{name}\" flag: {reason}")
        );
    }
}

#[test]
fn grammar_faults_read_as_pflags() {
    let cases: [(&[&str], &str); 9] = [
        (&["--nope"], "unknown flag: --nope"),
        (&["--no_pe=1"], "unknown flag: --no_pe"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (
            &["-vx"],
            "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["---x"], "bad flag syntax: ---x"),
        (
            &["--sync-frequency=5"],
            "invalid argument \"5\" for \"--sync-frequency\" flag: time: missing unit in duration \"5\"",
        ),
        (
            &["--feature-gates=A=x"],
            "invalid argument \"A=x\" for \"--feature-gates\" flag: invalid value of A: x, err: strconv.ParseBool: parsing \"x\": invalid syntax",
        ),
    ];
    for (args, text) in cases {
        assert_eq!(fault(args), text, "{args:?}");
    }
}

#[test]
fn flags_of_older_releases_are_unknown() {
    for name in [
        "pod-infra-container-image",
        "container-runtime",
        "network-plugin",
        "cloud-config",
        "logtostderr",
        "log-dir",
    ] {
        assert_eq!(fault(&[&format!("--{name}=x")]), format!("unknown flag: --{name}"));
    }
}

#[test]
fn verbosity_is_taken_in_every_short_form() {
    for args in [&["-v", "2"][..], &["-v2"], &["-v=2"], &["--v=2"], &["--v", "2"]] {
        assert_eq!(run(args).0.logging.verbosity, 2, "{args:?}");
    }
}

#[test]
fn a_bare_switch_does_not_eat_the_next_argument() {
    let parsed = parse(["--runonce", "false"]);
    assert_eq!(parsed.uses[0].value, "true");
    assert_eq!(parsed.positional, ["false"]);
    let parsed = parse(["--v=1", "--", "--v=2"]);
    assert_eq!(parsed.positional, ["--v=2"]);
}

#[test]
fn maps_start_anew_at_the_first_use_and_then_add_up() {
    let (kubelet, flags, ..) = run(&[
        "--kube-reserved=cpu=1, memory = 2Gi,",
        "--kube-reserved=pid=3",
        "--node-labels=a=1,b",
        "--node-labels=c=",
        "--cpu-manager-policy-options=a=1,b=2",
        "--manifest-url-header=a:b,a:c",
        "--manifest-url-header=d:e:f",
    ]);
    assert_eq!(kubelet.kube_reserved["memory"], "2Gi");
    assert_eq!(kubelet.kube_reserved.len(), 3);
    assert_eq!(flags.node_labels["b"], "");
    assert_eq!(flags.node_labels.len(), 3);
    assert_eq!(kubelet.cpu_manager_policy_options["a"], "1,b=2");
    assert_eq!(kubelet.static_pod_url_header["a"], ["b", "c"]);
    assert_eq!(kubelet.static_pod_url_header["d"], ["e:f"]);
}

#[test]
fn taints_need_an_effect_and_are_unique() {
    let (kubelet, ..) = run(&["--register-with-taints=a=b:NoSchedule,c:NoExecute,d-"]);
    assert_eq!(kubelet.register_with_taints.len(), 2);
    let cases = [
        ("a=b:No", "invalid taint effect: No, unsupported taint effect"),
        ("a:b:c", "invalid taint spec: a:b:c"),
        ("a=b=c:NoSchedule", "invalid taint spec: a=b=c:NoSchedule"),
        (
            "a=1:NoExecute,a=2:NoExecute",
            "duplicated taints with the same key and effect: {a 2 NoExecute <nil>}",
        ),
    ];
    for (value, reason) in cases {
        let text = fault(&[&format!("--register-with-taints={value}")]);
        assert!(text.ends_with(reason), "{text}");
    }
}

#[test]
fn reserved_memory_is_told_apart() {
    let (kubelet, ..) = run(&[
        "--reserved-memory=0:memory=1Gi,hugepages-2Mi=1Gi;1:memory=2Gi",
        "--reserved-memory=2:memory=1",
    ]);
    assert_eq!(kubelet.reserved_memory.len(), 3);
    let cases = [
        ("a:memory=1", "failed to convert the NUMA node ID, expected integer, got a"),
        ("0:memory", "the reserved limit has incorrect value, expected type=quantity, got memory"),
        ("0:cpu=1", "memory type conversion error, unknown type: \"cpu\""),
        ("0:memory=x", "failed to parse the quantity: x"),
    ];
    for (value, reason) in cases {
        let text = fault(&[&format!("--reserved-memory={value}")]);
        assert!(text.ends_with(reason), "{text}");
    }
}

#[test]
fn notices_stop_where_the_line_stops_being_understood() {
    let (_, _, notices, fault) = run(&["--port=1", "--max-pods=x", "--max-pods=2"]);
    assert_eq!(notices.len(), 1);
    assert!(fault.is_some());
    let (_, _, notices, _) = run(&["--port=1", "--port=2"]);
    assert_eq!(notices.len(), 2);
}

#[test]
fn the_version_request_is_understood() {
    assert_eq!(run(&["--version"]).1.version, VersionRequest::Print);
    assert_eq!(run(&["--version=raw"]).1.version, VersionRequest::PrintRaw);
    assert_eq!(run(&["--version=false"]).1.version, VersionRequest::No);
    assert_eq!(
        run(&["--version=v1.36.4-custom.1"]).1.version,
        VersionRequest::Report("v1.36.4-custom.1".to_owned())
    );
    assert_eq!(
        fault(&["--version=v1.35.0"]),
        "invalid argument \"v1.35.0\" for \"--version\" flag: version \"v1.35.0\" must match \
         major/minor/patch of default version \"v1.36.4\""
    );
}

#[test]
fn help_lists_every_flag_with_type_default_and_deprecation() {
    let help = help();
    for row in rows() {
        let flag = find(row.name).unwrap();
        let head = format!("--{}", row.name);
        let line = help
            .lines()
            .find(|line| {
                let line = line.trim_start();
                let line =
                    line.split_once(", ").filter(|(s, _)| s.len() == 2).map_or(line, |l| l.1);
                line.split(' ').next() == Some(head.as_str())
            })
            .unwrap_or_else(|| panic!("{} is not in the help", row.name));
        if let Some(text) = flag.deprecation.text()
            && flag.kind != Kind::Gates
        {
            assert!(line.ends_with(&format!("(DEPRECATED: {text})")), "{line}");
        }
    }
    assert!(help.contains("\n\nUsage:\n  kubelet [flags]\n\nFlags:\n      --address ip "));
    assert!(help.contains("  -v, --v Level "));
    assert!(help.contains("--version version[=true] "));
    assert!(help.contains("--seccomp-default RuntimeDefault "));
    assert!(help.contains("(default \"/var/lib/kubelet/pki\")"));
}
