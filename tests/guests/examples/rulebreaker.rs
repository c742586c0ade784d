//! The provider that `plugin new` writes, with a switch for each rule: `{"sizes": {"break": CASE}}` in its config breaks the
//! one that the conformance kit's case of this name looks at, and no other. `build/rules.rs` says how.

include!(concat!(env!("OUT_DIR"), "/rulebreaker.rs"));
