//! Short texts: quantities, durations, sets of processors, addresses.

use std::fmt::Display;
use std::str::FromStr;

use units::{CpuSet, GoDuration, Percentage, Quantity};

use crate::{Target, text};

pub(crate) const TARGETS: &[Target] = &[
    ("quantity", quantity),
    ("duration", |input| same_again::<GoDuration>(text(input))),
    ("cpuset", |input| same_again::<CpuSet>(text(input))),
    ("percentage", |input| drop(Percentage::from_str(text(input)))),
    ("numbers", numbers),
    ("base64", |input| drop(units::base64::decode(text(input)))),
    ("pem", pem),
    ("url", |input| drop(units::gourl::parse(text(input)))),
    ("probe-url", |input| probes::fuzzing::url(text(input))),
    ("probe-answer", probes::fuzzing::probe_answer),
    ("proxy", proxy),
];

/// What is read is the same when it is written and read again.
fn same_again<T: FromStr + Display + PartialEq>(text: &str) {
    let Ok(value) = text.parse::<T>() else { return };
    let shown = value.to_string();
    assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} became {shown:?}");
}

fn quantity(input: &[u8]) {
    let _ = units::HeldQuantity::parse(text(input));
    let Ok(quantity) = Quantity::from_str(text(input)) else { return };
    quantity.value();
    quantity.milli_value();
    let _rounded = quantity.round_up();
    let _sum = quantity.saturating_add(quantity).saturating_mul(3);
    // Beyond its largest unit Go shows a quantity without one, and so do we.
    if quantity.as_f64().abs() < 1e21 {
        same_again::<Quantity>(text(input));
    }
}

fn numbers(input: &[u8]) {
    let text = text(input);
    for base in [0, 2, 8, 10, 16] {
        let _ = units::strconv::parse_int(text, base, 64);
        let _ = units::strconv::parse_uint(text, base, 32);
    }
    let _ = units::strconv::parse_bool(text);
    units::strconv::parse_ip(text);
    let _ = units::strconv::parse_float32(text);
    units::cri_log::parse_time(input);
    units::strconv::quote_bytes(input);
}

fn pem(input: &[u8]) {
    let blocks = units::pem::blocks(input);
    assert!(blocks.len() <= input.len());
    units::pem::private_key(input);
    units::x509::pair_outline_fault(input, input);
}

fn proxy(input: &[u8]) {
    let mut words = text(input).split('\n');
    let mut next = || words.next().unwrap_or_default();
    let (scheme, host, port, proxy, none) = (next(), next(), next(), next(), next());
    units::goproxy::choose(scheme, host, Some(port), |name| match name {
        "HTTP_PROXY" | "HTTPS_PROXY" => Some(proxy.to_owned()),
        "NO_PROXY" => Some(none.to_owned()),
        _ => None,
    });
}
