//! Key exchange groups: which of those named by `tlsCurvePreferences` are offered. As in Go, it is
//! a set: its order has no meaning.
//!
//! Deliberately absent: ML-KEM, which the TLS library does not have.

use super::TlsError;
use p521::elliptic_curve::Generate;
use p521::elliptic_curve::point::AffineCoordinates;
use p521::elliptic_curve::sec1::ToSec1Point;
use rustls::crypto::ring::kx_group;
use rustls::crypto::{ActiveKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// A key exchange group that can be offered.
pub(super) type Group = &'static dyn SupportedKxGroup;

/// The length of an uncompressed point of this curve.
const P521_POINT: usize = 133;
const NOT_PACKED: u8 = 4;

/// All groups that are offered, in Go's order.
fn all() -> [Group; 4] {
    [kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1, &P521]
}

/// The groups with these numbers; all if the list is empty.
pub(super) fn offered(wanted: &[i32]) -> Result<Vec<Group>, TlsError> {
    let number = |group: &Group| i32::from(u16::from(group.name()));
    let known: Vec<i32> = all().iter().map(number).collect();
    for lacking in wanted.iter().filter(|wanted| !known.contains(wanted)) {
        tracing::warn!(curve = lacking, "key exchange is not offered by this build");
    }
    let is_wanted = |group: &Group| wanted.is_empty() || wanted.contains(&number(group));
    let offered: Vec<Group> = all().into_iter().filter(is_wanted).collect();
    if offered.is_empty() {
        return Err(TlsError::NoExchange(wanted.to_vec()));
    }
    Ok(offered)
}

/// The curve that ring does not have.
#[derive(Debug)]
struct Secp521r1;

static P521: Secp521r1 = Secp521r1;

impl SupportedKxGroup for Secp521r1 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let secret = p521::SecretKey::try_generate().map_err(|_| GetRandomFailed)?;
        let public = secret.public_key().to_sec1_point(false).as_bytes().to_vec();
        Ok(Box::new(Begun { secret, public }))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

/// Our key share of an exchange.
struct Begun {
    secret: p521::SecretKey,
    public: Vec<u8>,
}

impl ActiveKeyExchange for Begun {
    fn complete(self: Box<Self>, theirs: &[u8]) -> Result<SharedSecret, Error> {
        let no_point = || Error::from(PeerMisbehaved::InvalidKeyShare);
        if theirs.len() != P521_POINT || theirs.first() != Some(&NOT_PACKED) {
            return Err(no_point());
        }
        let theirs = p521::PublicKey::from_sec1_bytes(theirs).map_err(|_| no_point())?;
        let shared = theirs.to_projective() * *self.secret.to_nonzero_scalar();
        Ok(SharedSecret::from(&*shared.to_affine().x()))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_offered() {
        let names = |wanted: &[i32]| -> Vec<u16> {
            offered(wanted).unwrap().iter().map(|group| u16::from(group.name())).collect()
        };
        assert_eq!(names(&[]), [29, 23, 24, 25]);
        assert_eq!(names(&[25, 4588, 23]), [23, 25]);
        let none = offered(&[4588, 4587]).unwrap_err().to_string();
        assert!(none.contains("[4588, 4587]"), "{none}");
    }

    #[test]
    fn both_sides_of_the_largest_curve_find_the_same_secret() {
        let (one, other) = (P521.start().unwrap(), P521.start().unwrap());
        let (public, theirs) = (one.pub_key().to_vec(), other.pub_key().to_vec());
        assert_eq!(public.len(), P521_POINT);
        let (one, other) = (one.complete(&theirs).unwrap(), other.complete(&public).unwrap());
        assert_eq!(one.secret_bytes(), other.secret_bytes());
        assert_eq!(one.secret_bytes().len(), 66);
        let mut off_the_curve = public.clone();
        off_the_curve[P521_POINT - 1] ^= 1;
        let packed = [&[2], &public[1..67]].concat();
        for bad in [&off_the_curve[..], &packed, &[0], &[]] {
            assert!(P521.start().unwrap().complete(bad).is_err(), "{}", bad.len());
        }
    }
}
