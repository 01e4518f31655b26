//! Hashes that nodes keep across restarts and upgrades.
//!
//! Promises: the same numbers as the Go kubelet for the same input; changing one restarts
//! containers or invalidates checkpoints on every node.

use crate::gojson;

/// 32-bit FNV-1a.
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// 64-bit FNV-1a.
pub fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// 128-bit FNV-1a.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// CRC-32 (IEEE), the checksum of the DRA checkpoint.
pub fn crc32_ieee(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// The hash that decides whether a running container still matches its spec: FNV-1a 32 over the
/// decimal dump of the JSON of name and image (kubelet: `HashContainer`).
pub fn container_hash(name: &str, image: &str) -> u32 {
    let json = format!(r#"{{"image":{},"name":{}}}"#, gojson::quoted(image), gojson::quoted(name));
    fnv1a_32(crate::spew::bytes(json.as_bytes()).as_bytes())
}

/// The checksum of a checkpoint whose data is one string: FNV-1a 32 over `(string)` + data.
pub fn string_checksum(data: &str) -> u32 {
    let mut dump = String::with_capacity(data.len() + 8);
    dump.push_str("(string)");
    dump.push_str(data);
    fnv1a_32(dump.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_has_the_published_vectors() {
        assert_eq!(fnv1a_32(b""), 0x811c_9dc5);
        assert_eq!(fnv1a_32(b"foobar"), 0xbf9c_f968);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a_128(b"abc"), 0xa68d_622c_ec8b_5822_836d_bc79_77af_7f3b);
    }

    #[test]
    fn crc_has_the_published_vector() {
        assert_eq!(crc32_ieee(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn container_hash_is_the_go_kubelets() {
        assert_eq!(container_hash("test_container", "foo/image:v1"), 0x8e45_cbd0);
    }
}
