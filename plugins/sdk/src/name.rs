//! The name of an instance at its backend. Never one that a user chose: two clusters would meet in one project.

use sha2::{Digest, Sha256};

use crate::Identity;

/// `px-<20 hex digits>-<incarnation>`, the digits from the installation's id and the UID of the `Proxy`. The same for
/// every call about one instance, so a repeated create meets what the first one made. Valid as a DNS-1123 label.
pub fn instance_name(identity: &Identity) -> String {
    let owner = &identity.owner;
    // NUL stands in neither, so no two pairs run together to the same text.
    let digest =
        Sha256::new().chain_update(&owner.installation).chain_update([0]).chain_update(&owner.proxy_uid).finalize();
    // 80 bits: a collision within one backend stays out of reach, and the name within the shortest known limits.
    let digits: String = digest[..10].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("px-{digits}-{}", identity.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn mk_identity(installation: &str, proxy_uid: &str, incarnation: u32) -> Identity {
        let mut identity = testing::identity();
        identity.owner.installation = installation.into();
        identity.owner.proxy_uid = proxy_uid.into();
        identity.incarnation = incarnation;
        identity
    }

    #[test]
    fn a_name_never_changes_between_releases() {
        // printf 'i\0u' | sha256sum
        assert_eq!(instance_name(&mk_identity("i", "u", 7)), "px-b3d6ba6204e7257908ec-7");
    }

    #[test]
    fn a_name_follows_installation_uid_and_incarnation_only() {
        let base = instance_name(&mk_identity("a", "b", 0));
        assert_ne!(base, instance_name(&mk_identity("ab", "", 0)));
        assert_ne!(base, instance_name(&mk_identity("a", "c", 0)));
        assert_ne!(base, instance_name(&mk_identity("a", "b", 1)));
        let mut other = mk_identity("a", "b", 0);
        other.owner.name = "renamed".into();
        other.placement = "somewhere".into();
        assert_eq!(base, instance_name(&other));
    }

    #[test]
    fn a_name_fits_a_dns_label() {
        assert!(instance_name(&mk_identity("a", "b", u32::MAX)).len() <= 63);
    }
}
