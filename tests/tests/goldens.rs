//! Golden pods under a kubelet on real parts.
fn main() {}
