//! Lease ids: signed, so that a holder can prove its lease to an operator that restarted.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::model::secret::SecretBytes;

const PAYLOAD: usize = 8 + 16 + 4 + 8 + 4;
const MAC: usize = 16;

/// What an id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The ledger that it is of: a deleted or restored ledger knows no old id.
    pub ledger: [u8; 8],
    /// The Proxy's UID.
    pub uid: Uuid,
    /// Its incarnation.
    pub incarnation: u32,
    /// The grant.
    pub generation: u64,
    /// The holder, among those of one shared grant.
    pub holder: u32,
}

/// Signs and reads ids.
pub struct Signer {
    key: SecretBytes,
}

impl Signer {
    /// With a key of 32 random bytes.
    pub fn new(key: SecretBytes) -> Self {
        Self { key }
    }

    /// The id of a claim.
    pub fn sign(&self, claim: &Claim) -> String {
        let mut bytes = Vec::with_capacity(PAYLOAD + MAC);
        bytes.extend(claim.ledger);
        bytes.extend(claim.uid.as_bytes());
        bytes.extend(claim.incarnation.to_be_bytes());
        bytes.extend(claim.generation.to_be_bytes());
        bytes.extend(claim.holder.to_be_bytes());
        let mac = self.mac(&bytes);
        bytes.extend(mac);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What an id says; none when we did not sign it.
    pub fn read(&self, id: &str) -> Option<Claim> {
        let bytes = URL_SAFE_NO_PAD.decode(id).ok().filter(|b| b.len() == PAYLOAD + MAC)?;
        let (payload, mac) = bytes.split_at(PAYLOAD);
        if !bool::from(self.mac(payload).ct_eq(mac)) {
            return None;
        }
        Some(Claim {
            ledger: payload[..8].try_into().ok()?,
            uid: Uuid::from_slice(&payload[8..24]).ok()?,
            incarnation: u32::from_be_bytes(payload[24..28].try_into().ok()?),
            generation: u64::from_be_bytes(payload[28..36].try_into().ok()?),
            holder: u32::from_be_bytes(payload[36..40].try_into().ok()?),
        })
    }

    fn mac(&self, payload: &[u8]) -> [u8; MAC] {
        // HMAC takes keys of every length, so this cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.expose()).expect("HMAC takes any key length");
        mac.update(payload);
        let full: [u8; 32] = mac.finalize().into_bytes().into();
        std::array::from_fn(|i| full[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_and_no_changed_one_is() {
        let signer = Signer::new(vec![1; 32].into());
        let claim = Claim { ledger: [7; 8], uid: Uuid::new_v4(), incarnation: 3, generation: 99, holder: 1 };
        let id = signer.sign(&claim);
        assert_eq!(signer.read(&id), Some(claim));
        assert_eq!(Signer::new(vec![2; 32].into()).read(&id), None);
        for i in 0..id.len() {
            let mut changed = id.clone().into_bytes();
            changed[i] = if changed[i] == b'A' { b'B' } else { b'A' };
            assert_eq!(signer.read(&String::from_utf8(changed).unwrap()), None, "character {i}");
        }
        assert_eq!(signer.read(""), None);
    }
}
