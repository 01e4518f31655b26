//! Whether a state file of CPUs or memory can be discarded without losing an assignment.

use serde_json::Value;

/// Whether a text is a state file without assignments of containers or pods. An unreadable one may have some.
pub fn holds_nothing(text: &str) -> bool {
    let Ok(Value::Object(file)) = serde_json::from_str(text) else { return false };
    let empty = |key: &str| match file.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::Object(entries)) => entries.is_empty(),
        Some(_) => false,
    };
    file.get("policyName").is_some_and(Value::is_string) && empty("entries") && empty("podEntries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_surely_holds_nothing_can_be_given_up() {
        for nothing in [
            r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#,
            r#"{"policyName":"static","defaultCpuSet":"0-7","entries":{},"podEntries":null,"checksum":0}"#,
            r#"{"policyName":"Static","machineState":{"0":{}},"checksum":7}"#,
        ] {
            assert!(holds_nothing(nothing), "{nothing}");
        }
        for something in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"policyName":"static","entries":{"uid":{"c":"1-2"}}}"#,
            r#"{"policyName":"static","podEntries":{"uid":{"cpuSet":"1"}}}"#,
            r#"{"policyName":"static","entries":"odd"}"#,
        ] {
            assert!(!holds_nothing(something), "{something}");
        }
    }
}
