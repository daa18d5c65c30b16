//! Certificates of a test: an authority, and those that it issues, as files.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use crate::access::replace;

/// Who signs certificates.
#[derive(Debug)]
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    /// A new one, which nothing knows yet.
    ///
    /// # Panics
    /// When the system has no random bytes.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes `NAME.key` and `NAME.pem` for a name, each in one step; the key comes first.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn issue(&self, directory: &Path, name: &str, san: SanType) {
        self.issue_until(directory, name, san, SystemTime::now() + Duration::from_secs(86_400));
    }

    /// The same, good until then.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn issue_until(&self, directory: &Path, name: &str, san: SanType, until: SystemTime) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![san];
        params.not_before = (until - Duration::from_secs(30 * 86_400)).into();
        params.not_after = until.into();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        replace(&directory.join(format!("{name}.key")), key.serialize_pem());
        replace(&directory.join(format!("{name}.pem")), certificate.pem());
    }
}

impl Default for Ca {
    fn default() -> Self {
        Self::new()
    }
}

/// A name as a URI.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// A name in the DNS.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}
