//! What a ConfigMap holds of plugins, by the names of its keys: `NAME.wasm`, compressed as `NAME.wasm.zst`, and either cut
//! into parts, `NAME.wasm.2-of-3`, since the API server takes 1 MiB for all keys of an object together.

use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::plugin::limits::FILE_BYTES;
use crate::plugin::load::LoadError;

/// Bytes of one ConfigMap's values; the rest of 1 MiB is for its metadata.
pub const CONFIG_MAP_BYTES: usize = (1 << 20) - 4096;
/// Parts of one plugin.
pub const PARTS: u32 = 64;

/// One key of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which plugin.
    pub plugin: String,
    /// Whether the whole is compressed.
    pub compressed: bool,
    /// Which part of how many; from 1.
    pub part: (u32, u32),
}

impl Piece {
    /// What a key names; none when it is none of a plugin.
    pub fn parse(key: &str) -> Option<Self> {
        let cut = key.rsplit_once('.').and_then(|(whole, last)| Some((whole, last.split_once("-of-")?)));
        let (key, part) = match cut {
            Some((whole, (part, all))) => (whole, (part.parse().ok()?, all.parse().ok()?)),
            None => (key, (1, 1)),
        };
        if part.0 < 1 || part.0 > part.1 || part.1 > PARTS {
            return None;
        }
        let (name, compressed) = match key.strip_suffix(".zst") {
            Some(name) => (name, true),
            None => (key, false),
        };
        Some(Self { plugin: name.strip_suffix(".wasm")?.to_owned(), compressed, part })
    }

    /// The key.
    pub fn key(&self) -> String {
        let (part, all) = self.part;
        let zst = if self.compressed { ".zst" } else { "" };
        let cut = if all == 1 { String::new() } else { format!(".{part}-of-{all}") };
        format!("{}.wasm{zst}{cut}", self.plugin)
    }
}

/// The file that was uploaded, out of its parts in order.
///
/// # Errors
/// What is over the limit once it is decompressed, or no zstd.
pub fn unpack(compressed: bool, parts: &[Vec<u8>]) -> Result<Vec<u8>, LoadError> {
    let packed = parts.concat();
    if !compressed {
        return Ok(packed);
    }
    let broken = |error: String| LoadError::NotZstd(error);
    let decoder = StreamingDecoder::new(packed.as_slice()).map_err(|e| broken(e.to_string()))?;
    let mut bytes = Vec::new();
    // One byte more than is taken tells a file of that size from a larger one, however far it would grow.
    decoder.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| broken(e.to_string()))?;
    if bytes.len() > FILE_BYTES {
        return Err(LoadError::TooLarge(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Cuts a file so that each ConfigMap holds one piece: as it is where that fits, otherwise compressed.
pub fn pack(plugin: &str, bytes: &[u8]) -> Vec<(Piece, Vec<u8>)> {
    let fits = bytes.len() <= CONFIG_MAP_BYTES;
    let packed = if fits { bytes.to_vec() } else { compress_to_vec(bytes, CompressionLevel::Fastest) };
    let all = packed.len().div_ceil(CONFIG_MAP_BYTES).max(1) as u32;
    let piece = |part: u32| Piece { plugin: plugin.to_owned(), compressed: !fits, part: (part, all) };
    (1..).map(piece).zip(packed.chunks(CONFIG_MAP_BYTES).map(<[u8]>::to_vec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_plugin_compression_and_part() {
        for (key, expected) in [
            ("kvm.wasm", Some(("kvm", false, (1, 1)))),
            ("kvm.wasm.zst", Some(("kvm", true, (1, 1)))),
            ("kvm.wasm.2-of-3", Some(("kvm", false, (2, 3)))),
            ("kvm.wasm.zst.3-of-3", Some(("kvm", true, (3, 3)))),
            ("kvm.wasm.0-of-3", None),
            ("kvm.wasm.4-of-3", None),
            ("kvm.wasm.1-of-65", None),
            ("kvm.wasm.x-of-y", None),
            ("kvm.wasm.gz", None),
            ("readme.txt", None),
            ("wasm", None),
        ] {
            let expected = expected.map(|(plugin, compressed, part)| Piece { plugin: plugin.into(), compressed, part });
            assert_eq!(Piece::parse(key), expected, "{key}");
            if let Some(piece) = expected {
                assert_eq!(piece.key(), key);
            }
        }
    }

    /// Bytes that no compressor makes smaller.
    fn noise(len: usize) -> Vec<u8> {
        use rand::{RngExt, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        (0..len).map(|_| random.random()).collect()
    }

    #[test]
    fn what_was_packed_is_unpacked_the_same() {
        for (len, pieces) in
            [(10, 1), (CONFIG_MAP_BYTES, 1), (CONFIG_MAP_BYTES + 1, 2), (3 * CONFIG_MAP_BYTES - 900, 3)]
        {
            let bytes = noise(len);
            let packed = pack("p", &bytes);
            assert_eq!(packed.len(), pieces, "{len}");
            assert!(packed.iter().all(|(_, bytes)| bytes.len() <= CONFIG_MAP_BYTES));
            let compressed = packed[0].0.compressed;
            let parts: Vec<_> = packed.into_iter().map(|(_, bytes)| bytes).collect();
            assert!(unpack(compressed, &parts).unwrap() == bytes);
        }
    }

    #[test]
    fn a_bomb_and_nonsense_are_refused() {
        let bomb = compress_to_vec(vec![0; FILE_BYTES + 2].as_slice(), CompressionLevel::Fastest);
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(unpack(true, &[bomb]), Err(LoadError::TooLarge(_))));
        assert!(matches!(unpack(true, &[b"nonsense".to_vec()]), Err(LoadError::NotZstd(_))));
    }
}
