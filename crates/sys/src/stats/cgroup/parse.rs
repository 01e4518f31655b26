//! Parsers for the formats of the kernel's files. A malformed line is skipped.

use super::{DeviceIo, Pressure};

/// Pairs of a name and a number, one per line.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}

/// The numbers of some names among pairs, without parsing those of others; 0 for a missing name.
pub(super) fn numbers<const N: usize>(text: &str, names: [&str; N]) -> [u64; N] {
    let mut found = [0; N];
    for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        let place = names.iter().zip(&mut found).find(|(name, _)| **name == key);
        if let Some((_, place)) = place {
            *place = value.trim().parse().unwrap_or(0);
        }
    }
    found
}

/// The number of a name among pairs; 0 if it is missing.
pub(super) fn pair(text: &str, name: &str) -> u64 {
    pairs(text).find(|(key, _)| *key == name).map_or(0, |(_, value)| value)
}

pub(super) fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`
pub(super) fn io_stat(text: &str) -> Vec<DeviceIo> {
    let mut devices = Vec::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let Some(numbers) = fields.next().and_then(device) else { continue };
        let mut io = DeviceIo { device: numbers, ..DeviceIo::default() };
        for field in fields {
            let Some((key, value)) = field.split_once('=') else { continue };
            let Ok(value) = value.parse() else { continue };
            match key {
                "rbytes" => io.bytes.insert("Read", value),
                "wbytes" => io.bytes.insert("Write", value),
                "rios" => io.operations.insert("Read", value),
                "wios" => io.operations.insert("Write", value),
                _ => None,
            };
        }
        devices.push(io);
    }
    devices
}

/// `8:0 Read 1234`
pub(super) fn blkio_line(line: &str) -> Option<((u64, u64), &'static str, u64)> {
    const OPERATIONS: [&str; 6] = ["Read", "Write", "Sync", "Async", "Discard", "Total"];
    let mut fields = line.split_whitespace();
    let numbers = device(fields.next()?)?;
    let word = fields.next()?;
    let operation = OPERATIONS.iter().find(|o| **o == word)?;
    Some((numbers, operation, fields.next()?.parse().ok()?))
}

pub(super) fn pressure(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let target = match fields.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        for field in fields {
            let Some((key, value)) = field.split_once('=') else { continue };
            match key {
                "avg10" => target.avg10 = value.parse().unwrap_or(0.0),
                "avg60" => target.avg60 = value.parse().unwrap_or(0.0),
                "avg300" => target.avg300 = value.parse().unwrap_or(0.0),
                "total" => target.total_us = value.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
    pressure
}
