//! Flags about plugins: where they come from, and what is let in.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::plugin::engine::Runtime;
use crate::plugin::load::Policy;

/// This program, also when its file was replaced since it began.
pub(super) const PROGRAM: &str = "/proc/self/exe";
/// Of the memory that the operator may use, this part is for compiling, and this part for calls.
const SHARE: u64 = 2;

#[derive(Args, Default)]
pub(super) struct PluginArgs {
    /// Folder of plugins (NAME.wasm) and of what `plugin compile` made of them, watched
    #[arg(long, env = "PROXY_OPERATOR_PLUGIN_DIR", value_name = "DIR")]
    pub plugin_dir: Option<PathBuf>,
    /// Folder whose sub-folders WASI guests may read, as `spec.files` names them
    #[arg(long, env = "PROXY_OPERATOR_PLUGIN_FILES", value_name = "DIR")]
    pub plugin_files: Option<PathBuf>,
    /// Folder of compiled code and pulled plugins [default: cache in --data]
    #[arg(long, env = "PROXY_OPERATOR_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Digest (sha256:…) of a plugin that may be loaded; may be repeated [default: all may]
    #[arg(long, env = "PROXY_OPERATOR_ALLOW_PLUGIN", value_name = "DIGEST", value_delimiter = ',', value_parser = digest)]
    pub allow_plugin: Vec<String>,
    /// Memory that compiling one plugin may need, such as 64Mi [default: half of the memory limit of the control group]
    #[arg(long, env = "PROXY_OPERATOR_COMPILE_MEMORY", value_name = "BYTES", value_parser = bytes)]
    pub compile_memory: Option<u64>,
    /// Memory that all calls of plugins may hold together, such as 64Mi [default: half of the memory limit of the control group]
    #[arg(long, env = "PROXY_OPERATOR_CALL_MEMORY", value_name = "BYTES", value_parser = bytes)]
    pub call_memory: Option<u64>,
    /// Registry (HOST:PORT) that is spoken to in plain HTTP; may be repeated
    #[arg(long, env = "PROXY_OPERATOR_INSECURE_REGISTRY", value_name = "HOST:PORT", value_delimiter = ',')]
    pub insecure_registry: Vec<String>,
}

impl PluginArgs {
    /// Where compiled code and pulled plugins are kept.
    pub fn cache(&self, data: &Path) -> PathBuf {
        self.cache_dir.clone().unwrap_or_else(|| data.join("cache"))
    }

    /// The engine, with its folders of compiled code.
    pub fn runtime(&self, cache: &Path) -> anyhow::Result<Runtime> {
        let runtime = Runtime::new(Some(cache.to_owned())).map_err(|e| anyhow::anyhow!("{e:#}"))?;
        let runtime = runtime.with_compiler(PROGRAM.into(), self.policy().compile_bytes);
        Ok(match &self.plugin_dir {
            Some(dir) => runtime.with_precompiled(dir),
            None => runtime,
        })
    }

    /// What is let in.
    pub fn policy(&self) -> Policy {
        let all = self.allow_plugin.is_empty();
        let half = memory_limit().map(|limit| limit / SHARE);
        Policy {
            allow: (!all).then(|| self.allow_plugin.iter().cloned().collect()),
            compile_bytes: self.compile_memory.or(half).unwrap_or(u64::MAX),
            call_bytes: self.call_memory.or(half).unwrap_or(u64::MAX),
        }
    }
}

fn digest(text: &str) -> Result<String, String> {
    let hash = text.strip_prefix("sha256:").unwrap_or_default();
    if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        Ok(text.to_owned())
    } else {
        Err("a digest is sha256: and 64 of 0-9 and a-f, as `plugin check` prints it".into())
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return Err("write bytes, or a number with Ki, Mi or Gi".into()),
    };
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(|| "no number of bytes".into())
}

/// The memory limit of this process's control group, or of one above it; none: unlimited.
fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // Inside a container the path is that of the host, and its own group is at the root.
        for group in Path::new(path).ancestors() {
            let at = Path::new(root).join(group.strip_prefix("/").unwrap_or(group)).join(file);
            limits.extend(std::fs::read_to_string(at).ok().and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    // Version 1 writes a number near 2^63 where there is no limit.
    limits.into_iter().filter(|limit| *limit < 1 << 60).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_digests_are_read_strictly() {
        assert_eq!((bytes("64Mi"), bytes("10"), bytes("2Gi")), (Ok(64 << 20), Ok(10), Ok(2 << 30)));
        for wrong in ["", "Mi", "64MB", "-1", "99999999999Gi", "1.5Gi"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert!(digest(&format!("sha256:{}", "0a".repeat(32))).is_ok());
        for wrong in ["sha256:0a", &"0a".repeat(32), &format!("sha256:{}", "0A".repeat(32))] {
            assert!(digest(wrong).is_err(), "{wrong}");
        }
    }
}
