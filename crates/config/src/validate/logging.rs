//! Faults of the logging and tracing settings, in the form of API field errors.

use crate::gates::Gates;
use crate::kubelet::{Logging, Tracing};
use units::Quantity;
use units::strconv::quote;

/// What is wrong with the logging settings.
pub(crate) fn logging_faults(logging: &Logging, gates: &Gates) -> Vec<String> {
    let mut faults = Vec::new();
    if logging.flush_frequency.duration.as_nanos() <= 0 {
        let frequency = &logging.flush_frequency;
        let shown = if frequency.as_text {
            quote(&frequency.duration.to_string())
        } else {
            frequency.duration.as_nanos().to_string()
        };
        faults.push(format!(
            "logging.flushFrequency: Invalid value: {shown}: Must be greater than zero"
        ));
    }
    match logging.format.as_str() {
        "text" => {}
        "json" if gates.enabled("LoggingBetaOptions") => {}
        "json" => faults.push(
            "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"
                .to_owned(),
        ),
        other => faults.push(format!(
            "logging.format: Invalid value: {}: Unsupported log format",
            quote(other)
        )),
    }
    const MAX: u32 = 0x7fff_ffff;
    if logging.verbosity > MAX {
        faults.push(format!(
            "logging.verbosity: Invalid value: {}: Must be <= {MAX}",
            logging.verbosity
        ));
    }
    if !logging.vmodule.is_empty() && !["", "text"].contains(&logging.format.as_str()) {
        faults.push("logging.vmodule: Forbidden: Only supported for text log format".to_owned());
    }
    for (index, item) in logging.vmodule.iter().enumerate() {
        let path = format!("logging.vmodule[{index}]");
        if item.file_pattern.is_empty() {
            faults.push(format!("{path}: Required value: File pattern must not be empty"));
        }
        if item.file_pattern.contains(['=', ',']) {
            faults.push(format!(
                "{path}: Invalid value: {}: File pattern must not contain equal sign or comma",
                quote(&item.file_pattern)
            ));
        }
        if item.verbosity > MAX {
            faults.push(format!("{path}: Invalid value: {}: Must be <= {MAX}", item.verbosity));
        }
    }
    let alpha = gates.enabled("LoggingAlphaOptions");
    let options = &logging.options;
    let formats: [(&str, bool, Quantity); 2] = [
        ("text", options.text.split_stream, options.text.info_buffer_size),
        ("json", options.json.split_stream, options.json.info_buffer_size),
    ];
    for (format, split, buffer) in formats {
        for (option, used) in [("splitStream", split), ("infoBufferSize", buffer.value() != 0)] {
            if used && !alpha {
                faults.push(format!(
                    "logging.options.{format}.{option}: Forbidden: Feature LoggingAlphaOptions is \
                     disabled"
                ));
            }
        }
    }
    faults
}

/// What is wrong with the tracing settings.
pub(super) fn tracing_faults(tracing: &Tracing) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(rate) = tracing.sampling_rate_per_million {
        let path = "tracing.samplingRatePerMillion";
        if rate < 0 {
            faults.push(format!("{path}: Invalid value: {rate}: sampling rate must be positive"));
        }
        if rate > 1_000_000 {
            faults.push(format!(
                "{path}: Invalid value: {rate}: sampling rate per million must be less than or \
                 equal to one million"
            ));
        }
    }
    if let Some(endpoint) = &tracing.endpoint {
        let endpoint =
            if endpoint.contains("//") { endpoint.clone() } else { format!("dns://{endpoint}") };
        let scheme = match units::gourl::parse(&endpoint) {
            Ok(url) => url.scheme,
            Err(why) => {
                let shown = quote(&endpoint);
                faults.push(format!("tracing.endpoint: Invalid value: {shown}: {why}"));
                return faults;
            }
        };
        if !["dns", "unix", "unix-abstract"].contains(&scheme.as_str()) {
            faults.push(format!(
                "tracing.endpoint: Invalid value: {}: unsupported scheme: {scheme}.  Options are \
                 none, dns, unix, or unix-abstract.  See \
                 https://github.com/grpc/grpc/blob/master/doc/naming.md",
                quote(&endpoint)
            ));
        }
    }
    faults
}
