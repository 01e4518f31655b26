//! The nested parts of the configuration.

use crate::value::{Decoder, GoValue, go_struct, kind_of};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use units::duration;
use units::strconv::quote;
use units::{GoDuration, Quantity, SpelledQuantity};

go_struct! {
    /// Who may ask.
    Authentication = "v1beta1.KubeletAuthentication" {
        /// By client certificate.
        x509: X509Authentication, "x509", "KubeletX509Authentication", always;
        /// By token, through the API server.
        webhook: WebhookAuthentication, "webhook", "KubeletWebhookAuthentication", always;
        /// Without any proof.
        anonymous: AnonymousAuthentication, "anonymous", "KubeletAnonymousAuthentication", always;
    }
}

go_struct! {
    /// Authentication by client certificate.
    X509Authentication = "v1beta1.KubeletX509Authentication" {
        /// Authorities that sign clients.
        client_ca_file: String, "clientCAFile", "string", omitempty;
    }
}

go_struct! {
    /// Authentication by token.
    WebhookAuthentication = "v1beta1.KubeletWebhookAuthentication" {
        /// Ask the API server about tokens.
        enabled: Option<bool>, "enabled", "*bool", omitempty;
        /// How long an answer is kept.
        cache_ttl: GoDuration, "cacheTTL", "metav1.Duration", omitempty;
    }
}

go_struct! {
    /// Requests without any proof.
    AnonymousAuthentication = "v1beta1.KubeletAnonymousAuthentication" {
        /// Let them in as `system:anonymous`.
        enabled: Option<bool>, "enabled", "*bool", omitempty;
    }
}

go_struct! {
    /// What callers may do.
    Authorization = "v1beta1.KubeletAuthorization" {
        /// `AlwaysAllow` or `Webhook`.
        mode: String, "mode", "KubeletAuthorizationMode", omitempty;
        /// Answers of the API server.
        webhook: WebhookAuthorization, "webhook", "KubeletWebhookAuthorization", always;
    }
}

go_struct! {
    /// How long answers of the API server are kept.
    WebhookAuthorization = "v1beta1.KubeletWebhookAuthorization" {
        /// A yes.
        cache_authorized_ttl: GoDuration, "cacheAuthorizedTTL", "metav1.Duration", omitempty;
        /// A no.
        cache_unauthorized_ttl: GoDuration, "cacheUnauthorizedTTL", "metav1.Duration", omitempty;
    }
}

go_struct! {
    /// Use of swap by containers.
    MemorySwap = "v1beta1.MemorySwapConfiguration" {
        /// `NoSwap`, `LimitedSwap` or empty.
        swap_behavior: String, "swapBehavior", "string", omitempty;
    }
}

go_struct! {
    /// Restart back-off.
    CrashLoopBackOff = "v1beta1.CrashLoopBackOffConfig" {
        /// Longest wait between two restarts.
        max_container_restart_period: Option<GoDuration>, "maxContainerRestartPeriod", "*metav1.Duration", omitempty;
    }
}

go_struct! {
    /// Grace of pods from a priority on.
    ShutdownGracePeriod = "v1beta1.ShutdownGracePeriodByPodPriority" {
        /// Lowest priority it is for.
        priority: i32, "priority", "int32", always;
        /// Seconds.
        shutdown_grace_period_seconds: i64, "shutdownGracePeriodSeconds", "int64", always;
    }
}

go_struct! {
    /// Memory kept on one NUMA node.
    MemoryReservation = "v1beta1.MemoryReservation" {
        /// The NUMA node.
        numa_node: i32, "numaNode", "int32", always;
        /// Amount per kind of memory.
        limits: BTreeMap<String, SpelledQuantity>, "limits", "v1.ResourceList", always;
    }
}

go_struct! {
    /// A taint of the node.
    Taint = "v1.Taint" {
        /// Key.
        key: String, "key", "string", always;
        /// Value.
        value: String, "value", "string", omitempty;
        /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
        effect: String, "effect", "TaintEffect", always;
        /// When it was added; refused in a configuration.
        time_added: Option<Time>, "timeAdded", "*metav1.Time", omitempty;
    }
}

go_struct! {
    /// Traces.
    Tracing = "v1.TracingConfiguration" {
        /// The collector.
        endpoint: Option<String>, "endpoint", "*string", omitempty;
        /// Traces kept out of a million.
        sampling_rate_per_million: Option<i32>, "samplingRatePerMillion", "*int32", omitempty;
    }
}

go_struct! {
    /// User namespaces of pods.
    UserNamespaces = "v1beta1.UserNamespaces" {
        /// User ids per pod.
        ids_per_pod: Option<i64>, "idsPerPod", "*int64", omitempty;
    }
}

go_struct! {
    /// Log output.
    Logging = "v1.LoggingConfiguration" {
        /// `text` or `json`.
        format: String, "format", "string", omitempty;
        /// Time between two flushes.
        flush_frequency: FlushFrequency, "flushFrequency", "TimeOrMetaDuration", always;
        /// Verbosity.
        verbosity: u32, "verbosity", "VerbosityLevel", always;
        /// Verbosity per file.
        vmodule: Vec<VModuleItem>, "vmodule", "VModuleConfiguration", omitempty;
        /// Options of the formats.
        options: LogOptions, "options", "FormatOptions", always;
    }
}

go_struct! {
    /// Verbosity of the files that match.
    VModuleItem = "v1.VModuleItem" {
        /// File name without its suffix, with `*` and `?`.
        file_pattern: String, "filePattern", "string", always;
        /// Verbosity.
        verbosity: u32, "verbosity", "VerbosityLevel", always;
    }
}

go_struct! {
    /// Options of the log formats.
    LogOptions = "v1.FormatOptions" {
        /// Of `text`.
        text: TextLogOptions, "text", "TextOptions", always;
        /// Of `json`.
        json: JsonLogOptions, "json", "JSONOptions", always;
    }
}

go_struct! {
    /// Options of the text format.
    TextLogOptions = "v1.TextOptions" {
        /// Info to standard output, errors to standard error.
        split_stream: bool, "splitStream", "bool", omitempty;
        /// Buffer for info messages.
        info_buffer_size: Quantity, "infoBufferSize", "resource.QuantityValue", omitempty;
    }
}

go_struct! {
    /// Options of the JSON format.
    JsonLogOptions = "v1.JSONOptions" {
        /// Info to standard output, errors to standard error.
        split_stream: bool, "splitStream", "bool", omitempty;
        /// Buffer for info messages.
        info_buffer_size: Quantity, "infoBufferSize", "resource.QuantityValue", omitempty;
    }
}

/// A duration that files may also give in nanoseconds, and that is written back the way it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushFrequency {
    /// The duration.
    pub duration: GoDuration,
    /// Whether it is written as text rather than as nanoseconds.
    pub as_text: bool,
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.as_text {
            self.duration.serialize(serializer)
        } else {
            serializer.serialize_i64(self.duration.as_nanos())
        }
    }
}

impl GoValue for FlushFrequency {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        if value.is_string() {
            self.as_text = true;
            self.duration.decode(value, go_type, decoder);
        } else {
            self.as_text = false;
            match value.as_i64() {
                Some(nanos) => self.duration = GoDuration::from_nanos(nanos),
                None if value.is_null() => {}
                None => {
                    let raw = decoder.written(value);
                    let kind = match value {
                        Value::Number(_) => format!("number {raw}"),
                        other => kind_of(other).to_owned(),
                    };
                    decoder.fail(format!(
                        "invalid duration {}: json: cannot unmarshal {kind} into Go value of type \
                         time.Duration",
                        quote(&raw)
                    ));
                }
            }
        }
    }
}

/// A point in time as a file gives it (RFC 3339).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Time(String);

impl Time {
    /// As Go prints a time of UTC; another one as it was given.
    pub(crate) fn shown(&self) -> String {
        match self.0.strip_suffix('Z').and_then(|time| time.split_once('T')) {
            Some((day, time)) => format!("{day} {time} +0000 UTC"),
            None => self.0.clone(),
        }
    }
}

impl GoValue for Time {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        if !matches!(value, Value::Null | Value::String(_)) {
            let text = decoder.mismatch_text(value, go_type);
            return decoder.fail(text);
        }
        self.0.decode(value, go_type, decoder);
        if let (Value::String(text), Err(why)) = (value, time_fault(&self.0)) {
            decoder.fail(format!("parsing time {}{why}", duration::quote(text)));
        }
    }
}

/// What is wrong with a text that should be a time (Go: `time.Parse`, which is less strict than RFC
/// 3339 about hours and fractions).
fn time_fault(text: &str) -> Result<(), String> {
    const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
    let unlike = |rest: &str, part: &str| {
        let (rest, part) = (duration::quote(rest), duration::quote(part));
        format!(" as {}: cannot parse {rest} as {part}", duration::quote(LAYOUT))
    };
    let range = |what: &str| format!(": {what} out of range");
    let mut rest = text;
    let mut numbers = [0; 6];
    let parts = [
        ("2006", "-", "", 4..=4, 0..=9999),
        ("01", "-", "month", 2..=2, 1..=12),
        ("02", "T", "", 2..=2, 0..=99),
        ("15", ":", "hour", 1..=2, 0..=23),
        ("04", ":", "minute", 2..=2, 0..=59),
        ("05", "", "second", 2..=2, 0..=59),
    ];
    for (at, (part, mark, what, digits, allowed)) in parts.into_iter().enumerate() {
        let taken = rest.bytes().take(*digits.end()).take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(taken).unwrap_or((rest, ""));
        if !digits.contains(&taken) {
            return Err(unlike(rest, part));
        }
        numbers[at] = number.parse().unwrap_or(0);
        if !allowed.contains(&numbers[at]) {
            return Err(range(what));
        }
        rest = after.strip_prefix(mark).ok_or_else(|| unlike(after, mark))?;
    }
    if let Some(fraction) = rest.strip_prefix(['.', ','])
        && fraction.starts_with(|c: char| c.is_ascii_digit())
    {
        rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    rest = match rest.strip_prefix('Z') {
        Some(after) => after,
        None => offset(rest).ok_or_else(|| unlike(rest, "Z07:00"))?.map_err(range)?,
    };
    if !rest.is_empty() {
        return Err(format!(": extra text: {}", duration::quote(rest)));
    }
    let [year, month, day, ..] = numbers;
    if day < 1 || day > days(year, month) {
        return Err(range("day"));
    }
    Ok(())
}

/// What follows an offset like `+01:00`, or which part of it is too large.
fn offset(text: &str) -> Option<Result<&str, &'static str>> {
    let (offset, after) = text.split_at_checked(6)?;
    let [b'+' | b'-', h1, h2, b':', m1, m2] = offset.as_bytes() else { return None };
    if ![h1, h2, m1, m2].into_iter().all(u8::is_ascii_digit) {
        return None;
    }
    let two = |high: &u8, low: &u8| (high - b'0') * 10 + (low - b'0');
    Some(match (two(h1, h2), two(m1, m2)) {
        (_, 61..) => Err("time zone offset minute"),
        (25.., _) => Err("time zone offset hour"),
        _ => Ok(after),
    })
}

fn days(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_refused_in_the_words_of_go() {
        for good in [
            "2024-02-29T00:00:00Z",
            "2024-01-01T1:00:00.5+24:60",
            "0000-12-31T23:59:59,123456789012-00:00",
        ] {
            assert_eq!(time_fault(good), Ok(()), "{good}");
        }
        let unlike = |rest: &str, part: &str| {
            format!(" as \"2006-01-02T15:04:05Z07:00\": cannot parse {rest:?} as {part:?}")
        };
        for (text, why) in [
            ("", unlike("", "2006")),
            ("2024-1-01T00:00:00Z", unlike("1-01T00:00:00Z", "01")),
            ("2024-01-01", unlike("", "T")),
            ("2024-01-01t00:00:00Z", unlike("t00:00:00Z", "T")),
            ("2024-01-01T00:00:00", unlike("", "Z07:00")),
            ("2024-01-01T00:00:00.Z", unlike(".Z", "Z07:00")),
            ("2024-01-01T00:00:00+0100", unlike("+0100", "Z07:00")),
            ("2024-13-01T00:00:00Z", ": month out of range".to_owned()),
            ("2024-01-01T24:00:00Z", ": hour out of range".to_owned()),
            ("2024-01-01T00:00:60Z", ": second out of range".to_owned()),
            ("2024-01-01T00:00:00+25:00", ": time zone offset hour out of range".to_owned()),
            ("2023-02-29T00:00:00Z", ": day out of range".to_owned()),
            ("2024-01-01T00:00:00Zx", ": extra text: \"x\"".to_owned()),
        ] {
            assert_eq!(time_fault(text), Err(why), "{text}");
        }
    }
}
