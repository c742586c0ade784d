//! The ledger: which proxies may be lent, durable before a grant is answered.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Mode;
use crate::store::StoreError;
use crate::store::local::database::{Database, Write};

const TABLE: &str = "leases";

/// One marked proxy: it may be lent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Counts the grants.
    pub generation: u64,
    /// How it was lent.
    pub mode: Mode,
    /// The longest life that was promised: a duration, since no clock's date is trusted.
    pub hold_ms: u64,
    /// The holder of an exclusive grant.
    pub subject: String,
}

/// Of which incarnation of which Proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The Proxy's UID.
    pub uid: Uuid,
    /// Its incarnation.
    pub incarnation: u32,
}

/// Where marks are kept.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Names this ledger; another one knows none of its ids.
    fn nonce(&self) -> [u8; 8];

    /// Generations of this run begin after this number, which no earlier run reached.
    fn first_generation(&self) -> u64;

    /// All marks, when the operator starts.
    fn marks(&self) -> Result<Vec<(Slot, Mark)>, StoreError>;

    /// Sets a mark; on return it, or a later one, is durable: writes may overtake each other, and a mark never replaces one
    /// of a higher generation, or of its own that promises more.
    async fn mark(&self, slot: Slot, mark: &Mark) -> Result<(), StoreError>;

    /// Removes the marks of these generations, but none that a later grant has replaced.
    async fn unmark(&self, marks: &[(Slot, Mark)]) -> Result<(), StoreError>;
}

/// The ledger of a standalone operator. Its database is locked by one process, so only grants need their sync.
pub struct LocalLedger {
    database: Database,
    nonce: [u8; 8],
    run: u32,
}

impl LocalLedger {
    /// The ledger in this database, made when there is none.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn open(database: Database) -> Result<Self, StoreError> {
        let nonce = database.once("meta", "ledger", || rand::random::<[u8; 8]>().to_vec()).await?;
        let nonce = nonce.try_into().map_err(|_| StoreError::Unavailable("the ledger's nonce is damaged".into()))?;
        let damaged = |_| StoreError::Unavailable("the ledger's count of runs is damaged".into());
        let run = match database.get("meta", "run")? {
            Some(bytes) => u32::from_be_bytes(bytes.try_into().map_err(damaged)?).saturating_add(1),
            None => 1,
        };
        database.write(vec![Write::put("meta", "run", run.to_be_bytes().to_vec())]).await?;
        Ok(Self { database, nonce, run })
    }

    /// The key that signs lease ids.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn signing_key(&self) -> Result<Vec<u8>, StoreError> {
        self.database.once("keys", "lease", || rand::random::<[u8; 32]>().to_vec()).await
    }
}

fn key(slot: &Slot) -> String {
    format!("{}/{}", slot.uid, slot.incarnation)
}

#[async_trait]
impl Ledger for LocalLedger {
    fn nonce(&self) -> [u8; 8] {
        self.nonce
    }

    fn first_generation(&self) -> u64 {
        u64::from(self.run) << 32
    }

    fn marks(&self) -> Result<Vec<(Slot, Mark)>, StoreError> {
        let damaged = |key: &str| StoreError::Unavailable(format!("the ledger's entry {key:?} is damaged"));
        self.database
            .all(TABLE)?
            .into_iter()
            .map(|(key, value)| {
                let (uid, incarnation) = key.split_once('/').ok_or_else(|| damaged(&key))?;
                let slot = Slot {
                    uid: uid.parse().map_err(|_| damaged(&key))?,
                    incarnation: incarnation.parse().map_err(|_| damaged(&key))?,
                };
                Ok((slot, serde_json::from_slice(&value).map_err(|_| damaged(&key))?))
            })
            .collect()
    }

    async fn mark(&self, slot: Slot, mark: &Mark) -> Result<(), StoreError> {
        self.database.write(vec![Write::put_unless(TABLE, key(&slot), bytes(mark)?, is_later)]).await
    }

    async fn unmark(&self, marks: &[(Slot, Mark)]) -> Result<(), StoreError> {
        let writes = marks.iter().map(|(slot, mark)| Ok(Write::remove_if(TABLE, key(slot), bytes(mark)?, is_same)));
        self.database.write(writes.collect::<Result<_, _>>()?).await
    }
}

/// What decides between two marks of one slot; none of what is no mark.
fn order(value: &[u8]) -> Option<(u64, u64)> {
    serde_json::from_slice(value).ok().map(|mark: Mark| (mark.generation, mark.hold_ms))
}

fn is_later(found: &[u8], new: &[u8]) -> bool {
    order(found) > order(new)
}

fn is_same(found: &[u8], given: &[u8]) -> bool {
    order(found).map(|o| o.0) == order(given).map(|o| o.0)
}

fn bytes(mark: &Mark) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(mark).map_err(|e| StoreError::Unavailable(e.to_string()))
}
