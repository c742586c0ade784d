//! Parts of an upload, compressed or not, and the keys that name them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_operator::plugin::source::upload::Piece;

fuzz_target!(|bytes: &[u8]| {
    if let Some(piece) = std::str::from_utf8(bytes).ok().and_then(Piece::parse) {
        assert_eq!(Piece::parse(&piece.key()), Some(piece));
    }
    let _ = proxy_operator_fuzz::join(bytes);
});
