//! What a ConfigMap holds of plugins, by the names of its keys: `NAME.wasm`, compressed as `NAME.wasm.zst`, and either cut
//! into parts, `NAME.wasm.2-of-3`, since the API server takes 1 MiB for all keys of an object together.

use std::collections::BTreeMap;
use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::plugin::contract::foreign;
use crate::plugin::limits::FILE_BYTES;
use crate::plugin::load::{LoadError, digest_of};

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

    /// Whether it belongs to the same whole, as far as the key tells.
    pub fn is_with(&self, other: &Self) -> bool {
        (&self.plugin, self.part.1, self.compressed) == (&other.plugin, other.part.1, other.compressed)
    }

    /// What goes first of one ConfigMap.
    fn rank(&self) -> (String, u32, bool, u32) {
        (self.plugin.clone(), self.part.1, self.compressed, self.part.0)
    }

    /// The key.
    pub fn key(&self) -> String {
        let (part, all) = self.part;
        let zst = if self.compressed { ".zst" } else { "" };
        let cut = if all == 1 { String::new() } else { format!(".{part}-of-{all}") };
        format!("{}.wasm{zst}{cut}", self.plugin)
    }
}

/// What the keys of one ConfigMap name, and the keys that are passed over, each with the one that goes before it: of several
/// that give the same plugin a whole goes before parts, fewer parts before more, and a file as it is before a compressed one.
pub fn pieces<'k>(keys: impl Iterator<Item = &'k str>) -> (Vec<Piece>, Vec<(Piece, Piece)>) {
    let all: BTreeMap<_, _> = keys.filter_map(Piece::parse).map(|piece| (piece.rank(), piece)).collect();
    let mut first: BTreeMap<String, Piece> = BTreeMap::new();
    let (mut taken, mut over) = (Vec::new(), Vec::new());
    for piece in all.into_values() {
        let first = first.entry(piece.plugin.clone()).or_insert_with(|| piece.clone());
        if piece.is_with(first) {
            taken.push(piece);
        } else {
            over.push((piece, first.clone()));
        }
    }
    (taken, over)
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
    let broken = |error: &dyn std::fmt::Display| LoadError::NotZstd(foreign(&error.to_string()));
    if packed.is_empty() {
        return Err(broken(&"it is empty"));
    }
    let (mut rest, mut bytes) = (packed.as_slice(), Vec::new());
    // Some tools compress in pieces, one frame after the other, with frames of their own between them.
    while !rest.is_empty() {
        // The window is memory too, as much as a frame asks for.
        let mut decoder = match StreamingDecoder::new_with_max_window_size(&mut rest, FILE_BYTES as u64) {
            Ok(decoder) => decoder,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                rest = rest.get(length as usize..).ok_or_else(|| broken(&"it is cut off"))?;
                continue;
            }
            Err(error) => return Err(broken(&error)),
        };
        // One byte more than is taken tells a file of that size from a larger one, however far it would grow.
        let room = (FILE_BYTES - bytes.len()) as u64 + 1;
        decoder.by_ref().take(room).read_to_end(&mut bytes).map_err(|e| broken(&e))?;
        if bytes.len() > FILE_BYTES {
            return Err(LoadError::TooLarge(bytes.len() as u64));
        }
        let (written, found) = (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
        if written.is_some() && written != found {
            return Err(broken(&"its checksum is another"));
        }
    }
    Ok(bytes)
}

/// The file that was uploaded in parts, which is the one that they name, if they name one.
///
/// # Errors
/// As [`unpack`], and when it is another.
pub fn whole(compressed: bool, parts: &[Vec<u8>], named: Option<&str>) -> Result<Vec<u8>, LoadError> {
    let bytes = unpack(compressed, parts)?;
    let found = digest_of(&bytes);
    match named {
        Some(named) if named != found => Err(LoadError::Digest { found, named: foreign(named) }),
        _ => Ok(bytes),
    }
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

    #[test]
    fn of_keys_for_one_plugin_the_same_goes_first_in_whatever_order() {
        let mut keys = [
            "kvm.wasm.zst",
            "kvm.wasm.2-of-2",
            "kvm.wasm",
            "cut.wasm.zst.1-of-2",
            "cut.wasm.zst.2-of-2",
            "cut.wasm.1-of-3",
            "small.wasm.zst",
            "readme",
        ];
        for _ in 0..keys.len() {
            keys.rotate_left(1);
            let (taken, over) = pieces(keys.into_iter());
            let taken: Vec<_> = taken.iter().map(Piece::key).collect();
            assert_eq!(taken, ["cut.wasm.zst.1-of-2", "cut.wasm.zst.2-of-2", "kvm.wasm", "small.wasm.zst"]);
            let over: Vec<_> = over.iter().map(|(over, taken)| (over.key(), taken.key())).collect();
            let expected = [
                ("cut.wasm.1-of-3", "cut.wasm.zst.1-of-2"),
                ("kvm.wasm.zst", "kvm.wasm"),
                ("kvm.wasm.2-of-2", "kvm.wasm"),
            ];
            assert_eq!(over, expected.map(|(over, taken)| (over.to_owned(), taken.to_owned())));
        }
        // Written in two ways, a part is the same part.
        assert_eq!(pieces(["a.wasm.01-of-2", "a.wasm.1-of-2"].into_iter()).0.len(), 1);
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
        assert!(matches!(unpack(true, &[]), Err(LoadError::NotZstd(_))));
        // A frame that asks for a window of 128 MiB before its first block.
        let window = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0x88][..], &[0x03, 0, 0x10, 0]].concat();
        let error = unpack(true, &[window]).unwrap_err().to_string();
        assert!(error.contains("window"), "{error}");
    }

    #[test]
    fn frames_one_after_the_other_are_one_file() {
        let frame = |bytes: &[u8]| compress_to_vec(bytes, CompressionLevel::Fastest);
        let skipped = [&0x184D_2A50u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"xyz"].concat();
        let all = [skipped.clone(), frame(b"one "), skipped, frame(b"two")].concat();
        assert_eq!(unpack(true, &[all]).unwrap(), b"one two");
        let cut = [frame(b"one"), 0x184D_2A50u32.to_le_bytes().to_vec(), 9u32.to_le_bytes().to_vec()].concat();
        assert!(unpack(true, &[cut]).unwrap_err().to_string().contains("cut off"));
        let half = [frame(b"one"), vec![0x28, 0xb5]].concat();
        assert!(matches!(unpack(true, &[half]), Err(LoadError::NotZstd(_))));
        let bombs = [frame(&vec![0; FILE_BYTES / 2 + 1]), frame(&vec![0; FILE_BYTES / 2 + 1])].concat();
        assert!(matches!(unpack(true, &[bombs]), Err(LoadError::TooLarge(_))));
    }

    #[test]
    fn a_frame_with_the_checksum_of_another_is_refused() {
        let mut frame = compress_to_vec(b"content".as_slice(), CompressionLevel::Fastest);
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert!(matches!(unpack(true, &[frame]), Err(LoadError::NotZstd(_))));
    }
}
